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

}  // namespace

std::string gather_bytes(const Mesh& mesh, const Group& all, const std::string& mine, std::string_view what) {
  const auto size = static_cast<int64_t>(mine.size());
  at::Tensor in = at::empty({size}, at::kByte);
  std::memcpy(in.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor every = at::empty({size * all.size()}, at::TensorOptions(at::kByte).device(mesh.device()));
  all.all_gather(every, in.to(mesh.device()), what).wait();
  every = every.cpu();
  return {static_cast<const char*>(every.const_data_ptr()), static_cast<size_t>(every.numel())};
}

std::optional<Failure> first_failure(const Mesh& mesh, const Group& all, const std::exception* own,
                                     std::string_view what) {
  std::string report = own ? report_of(*own) : "";
  report.resize(kReportBytes, '\0');
  const std::string every = gather_bytes(mesh, all, report, what);
  for (int rank = 0; rank < all.size(); ++rank) {
    const char* theirs = every.data() + static_cast<size_t>(rank) * kReportBytes;
    if (*theirs == 0) continue;
    return Failure{rank, static_cast<ErrorKind>(*theirs - 1),
                   std::string(theirs + 1, strnlen(theirs + 1, kReportBytes - 1))};
  }
  return std::nullopt;
}

void together(const Mesh& mesh, const Group& all, const std::string& what,
              const std::function<void()>& phase) {
  std::optional<Failure> failure;
  try {
    phase();
  } catch (const std::exception& error) {
    failure = first_failure(mesh, all, &error, what);
  }
  if (!failure) failure = first_failure(mesh, all, nullptr, what);
  if (!failure) return;
  const std::string who = all.size() > 1 ? "rank " + std::to_string(failure->rank) + ": " : "";
  throw Error(failure->kind, what, who + failure->text.substr(0, failure->text.find('\n')));
}

std::vector<std::string> gather_text(const Mesh& mesh, const Group& all, const std::string& text,
                                     const std::string& what) {
  at::Tensor sizes = at::empty({all.size()}, at::TensorOptions(at::kLong).device(mesh.device()));
  const at::Tensor size = at::tensor({static_cast<int64_t>(text.size())}, at::kLong);
  all.all_gather(sizes, size.to(mesh.device()), what).wait();
  sizes = sizes.cpu();
  const int64_t longest = std::max<int64_t>(1, sizes.max().item<int64_t>());
  std::string padded = text;
  padded.resize(static_cast<size_t>(longest), '\0');
  const std::string every = gather_bytes(mesh, all, padded, what);
  std::vector<std::string> texts;
  texts.reserve(static_cast<size_t>(all.size()));
  for (int rank = 0; rank < all.size(); ++rank)
    texts.push_back(every.substr(static_cast<size_t>(rank * longest),
                                 static_cast<size_t>(sizes.const_data_ptr<int64_t>()[rank])));
  return texts;
}

}  // namespace zero::detail
