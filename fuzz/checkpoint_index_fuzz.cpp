// A checkpoint's index, given a right checksum: what is accepted is consistent, holds each element once and
// reads back the same.
#include "checkpoint/index.h"
#include "fuzz.h"

namespace {

void count_elements(const zero::StoredTensor& tensor) {
  using namespace zero;
  const BoxRange whole = BoxRange::whole(tensor.shape);
  if (whole.numel > 4096) return;
  std::vector<int> holders(static_cast<size_t>(whole.numel), 0);
  for (const StoredPiece& piece : tensor.pieces) {
    CommonRuns runs(whole, piece.range);
    fuzz::check(runs.numel() == piece.range.numel);
    while (const auto run = runs.next())
      for (int64_t i = 0; i < run->numel; ++i) ++holders[static_cast<size_t>(run->from_a + i)];
  }
  for (const int count : holders) fuzz::check(count == 1);
}

void read_index(std::string_view body) {
  using namespace zero;
  using namespace zero::checkpoint;
  fuzz::attempt([&] { index_from_text(body, "fuzz"); });
  std::string text(body);
  const std::string checksum = to_hex(checksum_of(text));
  text += ",\n\"checksum\": \"" + checksum + "\"\n}\n";
  fuzz::attempt([&] {
    const Index index = index_from_text(text, "fuzz");
    for (const auto& [name, tensor] : index.tensors) count_elements(tensor);
    const std::string again = to_text(index);
    fuzz::check(to_text(index_from_text(again, "fuzz")) == again);
  });
}

}  // namespace

ZERO_FUZZ(read_index)
