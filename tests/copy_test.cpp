// Copies of all lengths and alignments, on both sides of where they begin to go past the caches.
#include "compute/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace zero {
namespace {

TEST(CopyBytes, EveryByteAndNoOther) {
  constexpr size_t kStreamed = size_t{8} << 20, kMargin = 128;
  std::vector<uint8_t> from(kStreamed + 40'000), to(from.size() + 2 * kMargin);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 2654435761U >> 13);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, kStreamed - 1, kStreamed, kStreamed + 63,
                             kStreamed + 16384, kStreamed + 33'333})
    for (const size_t shift : {0, 1, 17, 63})
      for (const size_t source : {0, 5}) {
        std::fill(to.begin(), to.end(), uint8_t{0xaa});
        uint8_t* target = to.data() + kMargin + shift;
        detail::copy_bytes(target, from.data() + source, bytes);
        ASSERT_TRUE(std::equal(target, target + bytes, from.data() + source)) << bytes << " at " << shift;
        ASSERT_EQ(target[-1], 0xaa);
        ASSERT_EQ(target[bytes], 0xaa) << bytes << " at " << shift;
      }
}

TEST(StreamBytes, ShortOnesToo) {
  constexpr size_t kMargin = 128;
  std::vector<uint8_t> from(70'000), to(from.size() + 2 * kMargin);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 2654435761U >> 13);
  for (const int pages : {1, 4})
    for (const size_t bytes : {0, 1, 63, 64, 1000, 16383, 16384, 16448, 65'000})
      for (const size_t shift : {0, 1, 17, 63}) {
        std::fill(to.begin(), to.end(), uint8_t{0xaa});
        uint8_t* target = to.data() + kMargin + shift;
        detail::stream_bytes(target, from.data() + 3, bytes, pages);
        ASSERT_TRUE(std::equal(target, target + bytes, from.data() + 3))
            << bytes << " at " << shift << ", " << pages << " pages side by side";
        ASSERT_EQ(target[-1], 0xaa);
        ASSERT_EQ(target[bytes], 0xaa) << bytes << " at " << shift;
      }
}

}  // namespace
}  // namespace zero
