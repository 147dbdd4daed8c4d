// A checkpoint's index, given a right checksum: what is accepted is consistent and reads back the same.
#include "checkpoint/index.h"
#include "fuzz.h"

namespace {

void read_index(std::string_view body) {
  using namespace zero;
  using namespace zero::checkpoint;
  fuzz::attempt([&] { index_from_text(body, "fuzz"); });
  std::string text(body);
  const std::string checksum = to_hex(checksum_of(text));
  text += ",\n\"checksum\": \"" + checksum + "\"\n}\n";
  fuzz::attempt([&] {
    const Index index = index_from_text(text, "fuzz");
    const std::string again = to_text(index);
    fuzz::check(to_text(index_from_text(again, "fuzz")) == again);
  });
}

}  // namespace

ZERO_FUZZ(read_index)
