// Sums of rows: short ones, long ones that go past the caches, and what does not fill a page or a line.
#include "mesh/row_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

namespace zero::detail {
namespace {

float value(int64_t row, int64_t i) { return static_cast<float>((i * 7 + row * 13) % 251) / 8 - 10; }

float element(float x) { return x; }
float element(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

template <class In>
In made(float x) {
  if constexpr (sizeof(In) == 4)
    return x;
  else
    return static_cast<In>(std::bit_cast<uint32_t>(x) >> 16);
}

template <class In>
void expect_sums(int64_t ranks, int64_t begin, int64_t end, bool accumulate) {
  const int64_t numel = end + 5;
  std::vector<std::vector<In>> rows(static_cast<size_t>(ranks), std::vector<In>(static_cast<size_t>(numel)));
  for (int64_t row = 0; row < ranks; ++row)
    for (int64_t i = 0; i < numel; ++i)
      rows[static_cast<size_t>(row)][static_cast<size_t>(i)] = made<In>(value(row, i));
  std::vector<const In*> from;
  for (const auto& row : rows) from.push_back(row.data());
  std::vector<float> wanted(static_cast<size_t>(numel), 3);
  for (int64_t i = begin; i < end; ++i) {
    float sum = 0;
    for (const auto& row : rows) sum += element(row[static_cast<size_t>(i)]);
    float& to = wanted[static_cast<size_t>(i)];
    to = accumulate ? to + sum : sum;
  }
  for (const int pages : {1, 4}) {
    std::vector<float> out(static_cast<size_t>(numel), 3);
    add_rows(out.data(), from, begin, end, accumulate, pages);
    EXPECT_TRUE(out == wanted) << ranks << " rows, [" << begin << ", " << end << "), " << sizeof(In)
                               << " bytes each, " << pages << " pages side by side"
                               << (accumulate ? ", added" : "");
  }
}

TEST(RowSums, EveryLengthAndPlace) {
  for (const int64_t ranks : {1, 2, 3})
    for (const int64_t begin : {0, 1, 16, 37})
      for (const int64_t numel : {0, 1, 1000, 1024, 5000, 262'143, 262'144, 300'001})
        for (const bool accumulate : {false, true}) {
          expect_sums<float>(ranks, begin, begin + numel, accumulate);
          expect_sums<uint16_t>(ranks, begin, begin + numel, accumulate);
        }
}

}  // namespace
}  // namespace zero::detail
