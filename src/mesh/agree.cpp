#include "mesh/agree.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/error_text.h"
#include "compute/wait_place.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

constexpr size_t kReportBytes = 1024;

// One byte of kind, counted from 1 so that 0 is "no error"; then the text without its "KIND error: ".
std::string report_of(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  const ErrorKind kind = own ? own->kind() : ErrorKind::Internal;
  return static_cast<char>(static_cast<int>(kind) + 1) + text_without_kind(error);
}

}  // namespace

std::string gather_bytes(const Mesh& mesh, const Group& all, const std::string& mine, std::string_view what) {
  const auto size = static_cast<int64_t>(mine.size());
  at::Tensor in = at::empty({size}, at::kByte);
  std::memcpy(in.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor every = at::empty({size * all.size()}, at::TensorOptions(at::kByte).device(mesh.device()));
  const WaitPlace place("bytes of all ranks");
  all.all_gather(every, in.to(mesh.device()), what).wait();
  every = every.cpu();
  return std::string(static_cast<const char*>(every.const_data_ptr()), every.numel());
}

std::optional<Failure> first_failure(const Mesh& mesh, const Group& all, const std::exception* own,
                                     std::string_view what) {
  std::string report = own ? report_of(*own) : "";
  report.resize(kReportBytes, '\0');
  const std::string every = gather_bytes(mesh, all, report, what);
  for (int rank = 0; rank < all.size(); ++rank) {
    const char* theirs = every.data() + rank * kReportBytes;
    if (*theirs == 0) continue;
    bool is_everywhere = true;
    for (int other = 0; other < all.size(); ++other)
      is_everywhere &= std::memcmp(theirs, every.data() + other * kReportBytes, kReportBytes) == 0;
    return Failure{all.members()[rank], static_cast<ErrorKind>(*theirs - 1),
                   std::string(theirs + 1, strnlen(theirs + 1, kReportBytes - 1)), is_everywhere};
  }
  return std::nullopt;
}

void together(const Mesh& mesh, const Group& all, std::string_view what, const std::function<void()>& phase) {
  std::optional<Failure> failure;
  try {
    phase();
  } catch (const std::exception& error) {
    failure = first_failure(mesh, all, &error, what);
    // What is no Error keeps its type; what all ranks say is not one rank's.
    if (failure->is_everywhere || dynamic_cast<const Error*>(&error) == nullptr) throw;
  }
  if (!failure) failure = first_failure(mesh, all, nullptr, what);
  if (failure)
    throw Error(failure->kind, "rank " + std::to_string(failure->rank),
                failure->text.substr(0, failure->text.find('\n')));
}

std::vector<std::string> gather_text(const Mesh& mesh, const Group& all, const std::string& text,
                                     const std::string& what) {
  at::Tensor sizes = at::empty({all.size()}, at::TensorOptions(at::kLong).device(mesh.device()));
  const at::Tensor size = at::tensor({static_cast<int64_t>(text.size())}, at::kLong);
  const WaitPlace place("sizes of all ranks' texts");
  all.all_gather(sizes, size.to(mesh.device()), what).wait();
  sizes = sizes.cpu();
  const int64_t longest = std::max<int64_t>(1, sizes.max().item<int64_t>());
  std::string padded = text;
  padded.resize(longest, '\0');
  const std::string every = gather_bytes(mesh, all, padded, what);
  std::vector<std::string> texts;
  texts.reserve(all.size());
  for (int rank = 0; rank < all.size(); ++rank)
    texts.push_back(every.substr(rank * longest, sizes.const_data_ptr<int64_t>()[rank]));
  return texts;
}

std::string text_of_rank(const Mesh& mesh, int root, const std::string& text, std::string_view what) {
  at::Tensor size = at::tensor({static_cast<int64_t>(text.size())}, at::kLong).to(mesh.device());
  const WaitPlace place("text of a rank");
  mesh.world().broadcast(size, root, what).wait();
  const auto bytes = size.item<int64_t>();
  if (bytes == 0) return {};
  at::Tensor data = at::zeros({bytes}, at::kByte);
  if (mesh.rank() == root) std::memcpy(data.mutable_data_ptr(), text.data(), text.size());
  data = data.to(mesh.device());
  mesh.world().broadcast(data, root, what).wait();
  data = data.cpu();
  return std::string(static_cast<const char*>(data.const_data_ptr()), bytes);
}

void require_same(const Mesh& mesh, const std::string& text, const std::string& what) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  std::string mine(sizeof hash, '\0');
  std::memcpy(mine.data(), &hash, sizeof hash);
  const std::string all = gather_bytes(mesh, mesh.world(), mine, what);
  for (int rank = 1; rank < mesh.size(); ++rank)
    require(all.compare(rank * sizeof hash, sizeof hash, all, 0, sizeof hash) == 0, ErrorKind::Config, what,
            "rank " + std::to_string(rank) + " has another one than rank 0",
            "give all ranks the same file and arguments");
}

}  // namespace zero::detail
