#pragma once
// The header of a token file. docs/formats.md, section "Token file", is its definition.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace zero::data {

struct TokenHeader {
  char magic[8];               // kMagic
  uint32_t version;            // kVersion
  uint32_t byte_order;         // kByteOrder as the writer's machine stores it
  uint32_t width;              // bytes of a token: 2 or 4
  uint32_t reserved;           // 0
  uint64_t count;              // tokens
  uint64_t vocab_size;         // highest id + 1
  uint64_t vocab_fingerprint;  // Vocabulary::fingerprint
  uint64_t payload_checksum;   // XXH3 64 of the tokens' bytes
  uint64_t header_checksum;    // XXH3 64 of the 56 bytes before
};
static_assert(sizeof(TokenHeader) == 64 && offsetof(TokenHeader, header_checksum) == 56);

inline constexpr char kMagic[8] = {'Z', 'E', 'R', 'O', 'T', 'O', 'K', '\n'};
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kByteOrder = 0x01020304;
inline constexpr uint32_t kOtherByteOrder = 0x04030201;
inline constexpr int64_t kMostOfTwoBytes = int64_t{1} << 16;

}  // namespace zero::data
