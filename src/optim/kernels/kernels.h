#pragma once
// Element-wise optimizer updates on raw memory: one pass reads gradient, master and state once, and writes
// master, state and the low-precision parameter. No tensors and no threads here: callers split the range.
//
// All variants do the same IEEE operations in the same order (no fused multiply-add), so they give the same
// bits. Only the payload of a NaN in fp32 is left open, as IEEE 754 leaves it.

#include <cstdint>
#include <span>
#include <string_view>

namespace zero::kernels {

enum class Element : uint8_t { none, f32, bf16, f16 };

/// An fp32 value in two halves: bits(value) = (bf16 << 16) + remainder, where bf16 is the value rounded to
/// nearest even. Of 65537 remainders one does not fit: half way above an even bf16 (32768) is kept as 32767,
/// one fp32 unit in the last place nearer. A NaN is the quiet NaN with remainder 0.
using Remainder = int16_t;

/// Pointers to the first element of a range. They need only the alignment of their elements.
struct Buffers {
  float* master = nullptr;  // updated; null with a remainder
  Remainder* remainder =
      nullptr;  // not null: the parameter is bf16, and the two are the master, both updated
  const void* gradient = nullptr;  // read; f32, bf16 or f16
  void* parameter = nullptr;       // master rounded to nearest even; NaN becomes the quiet NaN
  float* first = nullptr;          // Adam's exp_avg, SGD's momentum (null: none), Lion's exp_avg
  float* second = nullptr;         // Adam's exp_avg_sq
  Element gradient_type = Element::f32;
  Element parameter_type = Element::none;  // none: no copy
};

/// The same buffers, `count` elements further on.
Buffers advance(Buffers buffers, int64_t count);

// Scalars are computed in double and rounded once. g is gradient * gradient_scale, p the master.

/// torch::optim::Adam and AdamW:  decoupled: p *= decay;  else: g += decay * p
///   m = beta1 m + one_minus_beta1 g;  v = beta2 v + one_minus_beta2 g g
///   p -= step_size m / (sqrt(v) inverse_root_correction + eps)
struct AdamScalars {
  float gradient_scale = 1;
  float decay = 0;  // decoupled: 1 - lr * weight_decay; else weight_decay
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float inverse_root_correction = 1;  // 1 / sqrt(1 - beta2^step)
  float eps = 0;
  float step_size = 0;  // lr / (1 - beta1^step)
  bool decoupled = true;
};

/// torch::optim::SGD:  g += weight_decay p;  buffer = momentum buffer + one_minus_dampening g
///   p -= lr (no buffer: g;  nesterov: g + nesterov_momentum buffer;  else: buffer)
/// A buffer's first step is momentum = 0, one_minus_dampening = 1.
struct SgdScalars {
  float gradient_scale = 1;
  float weight_decay = 0;
  float momentum = 0, one_minus_dampening = 1, nesterov_momentum = 0;
  float lr = 0;
  bool nesterov = false;
};

/// Lion (arXiv 2302.06675):  p = decay p - lr sign(beta1 m + one_minus_beta1 g);  m = beta2 m +
/// one_minus_beta2 g sign(0) and sign(NaN) are 0, as torch::sign.
struct LionScalars {
  float gradient_scale = 1;
  float decay = 1;  // 1 - lr * weight_decay
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float lr = 0;
};

/// One implementation of all kernels. Each updates `count` elements.
struct KernelSet {
  std::string_view name;  // "reference", "avx2", "avx512"
  void (*adam)(const Buffers& buffers, const AdamScalars& scalars, int64_t count);
  void (*sgd)(const Buffers& buffers, const SgdScalars& scalars, int64_t count);
  void (*lion)(const Buffers& buffers, const LionScalars& scalars, int64_t count);
  /// Sums of squares in fp64, one for every `block` elements and one for the rest; each in 16 interleaved
  /// partial sums.
  void (*sums_of_squares)(const void* gradient, Element type, int64_t count, int64_t block, double* sums);
  /// A master and its two parts, as Buffers::remainder says.
  void (*split)(const float* masters, uint16_t* halves, Remainder* remainders, int64_t count);
  void (*join)(const uint16_t* halves, const Remainder* remainders, float* masters, int64_t count);
};

/// The sets that this processor and operating system can run, slowest first; the reference is always there.
std::span<const KernelSet* const> available_kernels();

/// The last of available_kernels().
const KernelSet& best_kernels();

}  // namespace zero::kernels
