#pragma once
// Products of matrices for the shapes of training: a micro-batch of tokens by a layer's weight. A general
// routine packs both sides before it multiplies, waits for memory where the weight is not in the cache, and
// reads the output's lines before it writes them. Here the weight is packed (or only fetched) and sums are
// written, past the caches, while tiles are multiplied. bf16 is multiplied by AMX, or widened and multiplied
// by vectors as fp32 is, and summed in fp32. bench/gemm.cpp times them beside LibTorch's.

#include <cstdint>
#include <span>

namespace zero::product {

/// One side of a product: element (i, k) is data[i * stride + k] where it lies along k, else data[k * stride
/// + i].
template <class T>
struct SideOf {
  const T* data = nullptr;
  int64_t stride = 0;
  bool along_k = true;
};

/// out(i, j) = bias(j) + sum over k of left(i, k) * right(j, k).
template <class T>
struct ProductOf {
  int64_t rows = 0, columns = 0, depth = 0;  // of out, and of k; all > 0
  SideOf<T> left, right;                     // [rows, depth], [columns, depth]
  T* out = nullptr;                          // [rows, columns], each row contiguous
  int64_t out_stride = 0;
  const T* bias = nullptr;  // [columns], or null
};

/// bf16 by its bits; sums are rounded once, to nearest even.
using Bf16Side = SideOf<uint16_t>;
using Bf16Product = ProductOf<uint16_t>;
using Fp32Side = SideOf<float>;
using Fp32Product = ProductOf<float>;

/// One way to compute products. Each element is the same sum in the same order, however the product is cut.
template <class T>
struct KernelsOf {
  const char* name;

  /// Of what is smaller, in any of the three dims or altogether, LibTorch's product is faster.
  int64_t fewest_rows, fewest_multiplications;
  bool in_batches;  // many products of one size are faster, too

  /// How a product is cut: [begin, end) of its parts may be computed by one thread, in any order.
  int64_t (*parts_of)(const ProductOf<T>& product);

  /// What multiply() needs to write to for one range of parts, whatever its length.
  int64_t (*scratch_bytes)(const ProductOf<T>& product);

  /// Computes parts [begin, end). `scratch` starts at a multiple of 64 bytes. Thread safe for ranges that do
  /// not overlap, with a scratch each.
  void (*multiply)(const ProductOf<T>& product, int64_t begin, int64_t end, char* scratch);
};

/// Those that this processor runs, the fastest last: AVX2, AVX-512 and for bf16 AMX, or none. All that use
/// vectors give the same bits. Thread safe.
std::span<const KernelsOf<uint16_t>* const> bf16_kernels();
std::span<const KernelsOf<float>* const> fp32_kernels();

/// The one to compute with, or null where LibTorch's products are faster: of bf16, where the processor
/// multiplies it by AVX-512 as it is, but has no AMX. Thread safe.
const KernelsOf<uint16_t>* best_bf16_kernels();
const KernelsOf<float>* best_fp32_kernels();

/// True where the processor has AMX for bf16 and the system lets this process use it. Thread safe; asked
/// once.
bool runs_amx();

}  // namespace zero::product
