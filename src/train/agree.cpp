#include "train/agree.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "zero/error.h"

namespace zero::training {
namespace {

constexpr size_t kReportBytes = 1024;

// One byte of kind, counted from 1 so that 0 is "no error"; then the text without its "KIND error: ".
std::string report_of(const std::exception& error) {
  ErrorKind kind = ErrorKind::Internal;
  std::string text = error.what();
  if (const auto* own = dynamic_cast<const Error*>(&error)) {
    kind = own->kind();
    const std::string prefix = std::string(to_string(kind)) + " error: ";
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
  }
  return static_cast<char>(static_cast<int>(kind) + 1) + text;
}

// Every rank's bytes, one after the other.
std::string gather(const Mesh& mesh, const std::string& mine, std::string_view what) {
  const auto size = static_cast<int64_t>(mine.size());
  at::Tensor in = at::empty({size}, at::kByte);
  std::memcpy(in.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor out = at::empty({size * mesh.size()}, at::TensorOptions(at::kByte).device(mesh.device()));
  mesh.world().all_gather(out, in.to(mesh.device()), what).wait();
  out = out.cpu();
  return {static_cast<const char*>(out.const_data_ptr()), static_cast<size_t>(out.numel())};
}

}  // namespace

void together(const Mesh& mesh, std::string_view what, const std::function<void()>& phase) {
  std::exception_ptr own;
  std::string report;
  try {
    phase();
  } catch (const std::exception& error) {
    own = std::current_exception();
    report = report_of(error);
  }
  report.resize(kReportBytes, '\0');
  const std::string all = gather(mesh, report, what);
  if (own) std::rethrow_exception(own);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const char* theirs = all.data() + static_cast<size_t>(rank) * kReportBytes;
    if (*theirs == 0) continue;
    const std::string text(theirs + 1, strnlen(theirs + 1, kReportBytes - 1));
    throw Error(static_cast<ErrorKind>(*theirs - 1), "rank " + std::to_string(rank), text);
  }
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
  const std::string all = gather(mesh, mine, what);
  for (int rank = 1; rank < mesh.size(); ++rank)
    require(all.compare(static_cast<size_t>(rank) * sizeof hash, sizeof hash, all, 0, sizeof hash) == 0,
            ErrorKind::Config, what, "rank " + std::to_string(rank) + " has another one than rank 0",
            "give all ranks the same file and arguments");
}

}  // namespace zero::training
