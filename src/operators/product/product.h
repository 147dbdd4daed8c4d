#pragma once
// Products of bf16 matrices by AMX, for the shapes of training: a micro-batch of tokens by a layer's weight.
// A general routine packs both sides before it multiplies, waits for memory where the weight is not in the
// cache, and reads the output's lines before it writes them. Here the smaller side is kept packed in the
// second-level cache while the larger one streams by; the next panel is packed, the one after it fetched, and
// the sums of the block before are stored past the caches, while tiles are multiplied. bench/gemm.cpp times
// them beside LibTorch's.

#include <cstdint>

namespace zero::product {

/// One side of a product, bf16 by its bits: element (i, k) is data[i * stride + k] where it lies along k,
/// else data[k * stride + i].
struct Bf16Side {
  const uint16_t* data = nullptr;
  int64_t stride = 0;
  bool along_k = true;
};

/// out(i, j) = bias(j) + sum over k of left(i, k) * right(j, k), summed in fp32 and rounded once, to nearest
/// even.
struct Bf16Product {
  int64_t rows = 0, columns = 0, depth = 0;  // of out, and of k; all > 0
  Bf16Side left, right;                      // [rows, depth], [columns, depth]
  uint16_t* out = nullptr;                   // [rows, columns], each row contiguous
  int64_t out_stride = 0;
  const uint16_t* bias = nullptr;  // [columns], or null
};

/// Each element is the same sum in the same order, however the product is cut.
struct Kernels {
  /// How a product is cut: [begin, end) of its parts may be computed by one thread, in any order.
  int64_t (*parts_of)(const Bf16Product& product);

  /// What multiply() needs to write to for one range of parts, whatever its length.
  int64_t (*scratch_bytes)(const Bf16Product& product);

  /// Computes parts [begin, end). `scratch` starts at a multiple of 64 bytes. Thread safe for ranges that do
  /// not overlap, with a scratch each.
  void (*multiply)(const Bf16Product& product, int64_t begin, int64_t end, char* scratch);
};

#if defined(__x86_64__)
extern const Kernels kAmx;  // for processors that run it (base/processor.h)
#endif

}  // namespace zero::product
