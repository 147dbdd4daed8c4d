#pragma once
// Protocol buffers' wire format: a field is its number and wire type, then a varint, fixed bytes, or a length
// and bytes (protobuf.dev/programming-guides/encoding).

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero::training {

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// The value's bytes, the lowest first.
template <class T>
void append_bytes(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

inline void append_key(std::string& out, uint32_t field, Wire wire) { append_varint(out, field << 3 | wire); }

/// A whole number, negative ones as 64 bits.
inline void append_number(std::string& out, uint32_t field, int64_t value) {
  append_key(out, field, kVarint);
  append_varint(out, static_cast<uint64_t>(value));
}

/// A text or a message.
inline void append_text(std::string& out, uint32_t field, std::string_view text) {
  append_key(out, field, kBytes);
  append_varint(out, text.size());
  out += text;
}

}  // namespace zero::training
