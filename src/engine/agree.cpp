#include "engine/agree.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "zero/error.h"

namespace zero::detail {
namespace {

constexpr int64_t kReportBytes = 1024;

// The kind, counted from 1 so that 0 is "no error"; then the text without its "KIND error: ".
std::string failure_report(const std::exception& error) {
  ErrorKind kind = ErrorKind::Internal;
  std::string text = error.what();
  if (const auto* own = dynamic_cast<const Error*>(&error)) {
    kind = own->kind();
    const std::string prefix = std::string(to_string(kind)) + " error: ";
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
  }
  text = text.substr(0, text.find('\n'));
  return static_cast<char>(static_cast<int>(kind) + 1) + text.substr(0, kReportBytes - 2);
}

// Every rank's [bytes] on every rank.
at::Tensor gather_bytes(const Mesh& mesh, const Group& all, const std::string& mine, int64_t bytes,
                        const std::string& what) {
  at::Tensor in = at::zeros({bytes}, at::kByte);
  std::memcpy(in.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor every = at::empty({all.size() * bytes}, at::TensorOptions(at::kByte).device(mesh.device()));
  all.all_gather(every, in.to(mesh.device()), what).wait();
  return every.cpu();
}

}  // namespace

void together(const Mesh& mesh, const Group& all, const std::string& what,
              const std::function<void()>& phase) {
  std::string mine;
  try {
    phase();
  } catch (const std::exception& error) {
    mine = failure_report(error);
  }
  const at::Tensor every = gather_bytes(mesh, all, mine, kReportBytes, what);
  for (int rank = 0; rank < all.size(); ++rank) {
    const char* theirs = static_cast<const char*>(every.const_data_ptr()) + rank * kReportBytes;
    if (*theirs == 0) continue;
    const std::string who = all.size() > 1 ? "rank " + std::to_string(rank) + ": " : "";
    throw Error(static_cast<ErrorKind>(*theirs - 1), what, who + (theirs + 1));
  }
}

std::vector<std::string> gather_text(const Mesh& mesh, const Group& all, const std::string& text,
                                     const std::string& what) {
  at::Tensor sizes = at::empty({all.size()}, at::TensorOptions(at::kLong).device(mesh.device()));
  const at::Tensor size = at::tensor({static_cast<int64_t>(text.size())}, at::kLong);
  all.all_gather(sizes, size.to(mesh.device()), what).wait();
  sizes = sizes.cpu();
  const int64_t longest = std::max<int64_t>(1, sizes.max().item<int64_t>());
  const at::Tensor every = gather_bytes(mesh, all, text, longest, what);
  std::vector<std::string> texts;
  texts.reserve(static_cast<size_t>(all.size()));
  for (int rank = 0; rank < all.size(); ++rank)
    texts.emplace_back(static_cast<const char*>(every.const_data_ptr()) + rank * longest,
                       static_cast<size_t>(sizes.const_data_ptr<int64_t>()[rank]));
  return texts;
}

}  // namespace zero::detail
