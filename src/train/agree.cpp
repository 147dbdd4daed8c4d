#include "train/agree.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "engine/agree.h"
#include "zero/error.h"

namespace zero::training {
void together(const Mesh& mesh, std::string_view what, const std::function<void()>& phase) {
  try {
    phase();
  } catch (const std::exception& error) {
    detail::first_failure(mesh, mesh.world(), &error, what);
    throw;
  }
  if (const auto failure = detail::first_failure(mesh, mesh.world(), nullptr, what))
    throw Error(failure->kind, "rank " + std::to_string(failure->rank), failure->text);
}

std::string text_of_rank0(const Mesh& mesh, const std::string& text, std::string_view what) {
  return text_of_rank(mesh, 0, text, what);
}

std::string text_of_rank(const Mesh& mesh, int root, const std::string& text, std::string_view what) {
  at::Tensor size = at::tensor({static_cast<int64_t>(text.size())}, at::kLong).to(mesh.device());
  mesh.world().broadcast(size, root, what).wait();
  const auto bytes = size.item<int64_t>();
  if (bytes == 0) return {};
  at::Tensor data = at::zeros({bytes}, at::kByte);
  if (mesh.rank() == root) std::memcpy(data.mutable_data_ptr(), text.data(), text.size());
  data = data.to(mesh.device());
  mesh.world().broadcast(data, root, what).wait();
  data = data.cpu();
  return {static_cast<const char*>(data.const_data_ptr()), static_cast<size_t>(bytes)};
}

void require_same(const Mesh& mesh, const std::string& text, const std::string& what) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  std::string mine(sizeof hash, '\0');
  std::memcpy(mine.data(), &hash, sizeof hash);
  const std::string all = detail::gather_bytes(mesh, mesh.world(), mine, what);
  for (int rank = 1; rank < mesh.size(); ++rank)
    require(all.compare(static_cast<size_t>(rank) * sizeof hash, sizeof hash, all, 0, sizeof hash) == 0,
            ErrorKind::Config, what, "rank " + std::to_string(rank) + " has another one than rank 0",
            "give all ranks the same file and arguments");
}

}  // namespace zero::training
