// A token file, given a right checksum of its header: every id that is read is one of the vocabulary.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "data/token_header.h"
#include "fuzz.h"
#include "zero/token_file.h"

namespace {

void read_tokens(std::string_view input) {
  using namespace zero;
  std::string bytes(input);
  constexpr size_t kChecksum = offsetof(data::TokenHeader, header_checksum);
  if (bytes.size() >= sizeof(data::TokenHeader)) {
    const uint64_t checksum = XXH3_64bits(bytes.data(), kChecksum);
    std::memcpy(bytes.data() + kChecksum, &checksum, sizeof checksum);
  }
  fuzz::attempt([&] {
    const TokenFile file = TokenFile::open(fuzz::in_file(bytes));
    fuzz::attempt([&] { file.verify(); });
    std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(file.size(), 100)));
    file.read(file.size() - static_cast<int64_t>(ids.size()), ids);
    for (const int32_t id : ids) fuzz::check(id >= 0 && id < file.vocabulary().size);
  });
}

}  // namespace

ZERO_FUZZ(read_tokens)
