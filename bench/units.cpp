#include "units.h"

#include <chrono>
#include <cstddef>

#if defined(__AMX_BF16__)
#include <immintrin.h>
#endif

namespace zero::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTimes = 100000;  // between two looks at the clock

/// `flops` are those of one call.
template <class Call>
double rate_of(double seconds, double flops, Call call) {
  const auto began = Clock::now();
  double calls = 0, took = 0;
  do {
    call();
    ++calls;
    took = std::chrono::duration<double>(Clock::now() - began).count();
  } while (took < seconds);
  return calls * flops / took / 1e9;
}

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
constexpr int kSums = 12;  // more than the units have in flight, and few enough to stay in registers

}  // namespace

double fp32_unit_gflops(double seconds) {
  Vector sums[kSums] = {};
  Vector x = {}, y = {};
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = 1e-9F, y[lane] = 0.5F;
  const double rate = rate_of(seconds, 2.0 * kTimes * kSums * kLanes, [&] {
    Vector kept[kSums];
    for (int i = 0; i < kSums; ++i) kept[i] = sums[i];
    for (int time = 0; time < kTimes; ++time) {
#pragma GCC unroll 12
      for (int i = 0; i < kSums; ++i) kept[i] = kept[i] * y + x;
    }
    for (int i = 0; i < kSums; ++i) sums[i] = kept[i];
  });
  for (const Vector& sum : sums) asm volatile("" ::"m"(sum));
  return rate;
}

#if defined(__AMX_BF16__)
namespace {

struct alignas(64) TileShapes {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {};
  unsigned char rows[16] = {};
};

}  // namespace

std::optional<double> bf16_unit_gflops(double seconds) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.row_bytes[tile] = 64, shapes.rows[tile] = 16;
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  constexpr double kFlopsOfTile = 2.0 * 16 * 16 * 32;
  const double rate = rate_of(seconds, 4.0 * kTimes * kFlopsOfTile, [&] {
    for (int time = 0; time < kTimes; ++time) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  });
  _tile_release();
  return rate;
}
#else
std::optional<double> bf16_unit_gflops(double) { return std::nullopt; }
#endif

}  // namespace zero::bench
