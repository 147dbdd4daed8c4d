#pragma once
// The update rules, written once over a vector type V (Scalar in scalar.h; the others beside their kernel
// sets). In an unnamed namespace for the reason that scalar.h gives.

#include "optim/kernels/scalar.h"

namespace zero::kernels {
namespace {

// How far ahead memory is asked for: the hardware's own prefetchers stop at every page, which costs a tenth.
constexpr int64_t kAheadBytes = 2048;

/// Element i and its neighbours. Prefetching past the end is harmless: it never faults.
template <class V, Element kType>
typename V::Reg load_as(const void* from, int64_t i) {
  const char* const at = static_cast<const char*>(from) + i * (kType == Element::f32 ? 4 : 2);
  if constexpr (V::kWidth > 1) __builtin_prefetch(at + kAheadBytes);
  if constexpr (kType == Element::bf16) return V::load_bf16(reinterpret_cast<const uint16_t*>(at));
  if constexpr (kType == Element::f16) return V::load_f16(reinterpret_cast<const uint16_t*>(at));
  if constexpr (kType == Element::f32) return V::load(reinterpret_cast<const float*>(at));
}

template <class V>
typename V::Reg load(const float* from, int64_t i) {
  return load_as<V, Element::f32>(from, i);
}

template <class V, Element kType>
void store_as(void* to, int64_t i, typename V::Reg value) {
  if constexpr (kType != Element::none) {
    char* const at = static_cast<char*>(to) + i * (kType == Element::f32 ? 4 : 2);
    if constexpr (V::kWidth > 1) __builtin_prefetch(at + kAheadBytes, 1);
    if constexpr (kType == Element::bf16) V::store_bf16(reinterpret_cast<uint16_t*>(at), value);
    if constexpr (kType == Element::f16) V::store_f16(reinterpret_cast<uint16_t*>(at), value);
    if constexpr (kType == Element::f32) V::store(reinterpret_cast<float*>(at), value);
  }
}

/// Where the master is and what is copied of it: fp32 with or without a copy, or split in two halves.
template <Element kParameter, bool kSplit>
struct Master {
  template <class V>
  static typename V::Reg load(const Buffers& b, int64_t i) {
    if constexpr (!kSplit) {
      return kernels::load<V>(b.master, i);
    } else {
      const auto* const half = static_cast<const uint16_t*>(b.parameter) + i;
      const Remainder* const remainder = b.remainder + i;
      if constexpr (V::kWidth > 1) {
        __builtin_prefetch(reinterpret_cast<const char*>(half) + kAheadBytes, 1);
        __builtin_prefetch(reinterpret_cast<const char*>(remainder) + kAheadBytes, 1);
      }
      return V::load_split(half, remainder);
    }
  }
  template <class V>
  static void store(const Buffers& b, int64_t i, typename V::Reg value) {
    if constexpr (kSplit) {
      V::store_split(static_cast<uint16_t*>(b.parameter) + i, b.remainder + i, value);
    } else {
      V::store(b.master + i, value);
      store_as<V, kParameter>(b.parameter, i, value);
    }
  }
};

template <Element kGradient, class Weights, bool kDecoupled>
struct AdamPass {
  template <class V>
  static void run(const Buffers& b, const AdamScalars& s, int64_t begin, int64_t end) {
    const auto scale = V::set(s.gradient_scale), decay = V::set(s.decay);
    const auto beta1 = V::set(s.beta1), one_minus_beta1 = V::set(s.one_minus_beta1);
    const auto beta2 = V::set(s.beta2), one_minus_beta2 = V::set(s.one_minus_beta2);
    const auto correction = V::set(s.inverse_root_correction), eps = V::set(s.eps),
               step_size = V::set(s.step_size);
    for (int64_t i = begin; i < end; i += V::kWidth) {
      auto g = V::mul(load_as<V, kGradient>(b.gradient, i), scale);
      auto p = Weights::template load<V>(b, i);
      if constexpr (kDecoupled) {
        p = V::mul(p, decay);
      } else {
        g = V::add(g, V::mul(decay, p));
      }
      const auto m = V::add(V::mul(load<V>(b.first, i), beta1), V::mul(one_minus_beta1, g));
      const auto v = V::add(V::mul(load<V>(b.second, i), beta2), V::mul(V::mul(one_minus_beta2, g), g));
      const auto denominator = V::add(V::mul(V::sqrt(v), correction), eps);
      p = V::sub(p, V::div(V::mul(step_size, m), denominator));
      V::store(b.first + i, m);
      V::store(b.second + i, v);
      Weights::template store<V>(b, i, p);
    }
  }
};

enum class Momentum : uint8_t { none, heavy_ball, nesterov };

template <Element kGradient, class Weights, Momentum kMomentum>
struct SgdPass {
  template <class V>
  static void run(const Buffers& b, const SgdScalars& s, int64_t begin, int64_t end) {
    const auto scale = V::set(s.gradient_scale), decay = V::set(s.weight_decay), lr = V::set(s.lr);
    const auto momentum = V::set(s.momentum), undamped = V::set(s.one_minus_dampening);
    const auto nesterov = V::set(s.nesterov_momentum);
    for (int64_t i = begin; i < end; i += V::kWidth) {
      auto p = Weights::template load<V>(b, i);
      auto g = V::add(V::mul(load_as<V, kGradient>(b.gradient, i), scale), V::mul(decay, p));
      if constexpr (kMomentum != Momentum::none) {
        const auto buffer = V::add(V::mul(load<V>(b.first, i), momentum), V::mul(undamped, g));
        V::store(b.first + i, buffer);
        g = kMomentum == Momentum::nesterov ? V::add(g, V::mul(nesterov, buffer)) : buffer;
      }
      p = V::sub(p, V::mul(lr, g));
      Weights::template store<V>(b, i, p);
    }
  }
};

template <Element kGradient, class Weights>
struct LionPass {
  template <class V>
  static void run(const Buffers& b, const LionScalars& s, int64_t begin, int64_t end) {
    const auto scale = V::set(s.gradient_scale), decay = V::set(s.decay), lr = V::set(s.lr);
    const auto beta1 = V::set(s.beta1), one_minus_beta1 = V::set(s.one_minus_beta1);
    const auto beta2 = V::set(s.beta2), one_minus_beta2 = V::set(s.one_minus_beta2);
    for (int64_t i = begin; i < end; i += V::kWidth) {
      const auto g = V::mul(load_as<V, kGradient>(b.gradient, i), scale);
      const auto m = load<V>(b.first, i);
      const auto direction = V::sign(V::add(V::mul(m, beta1), V::mul(one_minus_beta1, g)));
      const auto p = V::sub(V::mul(Weights::template load<V>(b, i), decay), V::mul(lr, direction));
      V::store(b.first + i, V::add(V::mul(m, beta2), V::mul(one_minus_beta2, g)));
      Weights::template store<V>(b, i, p);
    }
  }
};

/// Whole vectors, then the tail one by one.
template <class V, class Pass, class Scalars>
void run_pass(const Buffers& buffers, const Scalars& scalars, int64_t count) {
  const int64_t whole = count - count % V::kWidth;
  Pass::template run<V>(buffers, scalars, 0, whole);
  Pass::template run<Scalar>(buffers, scalars, whole, count);
}

template <Element kType>
struct ElementConstant {
  static constexpr Element value = kType;
};

template <class F>
void with_element(Element type, F f) {
  switch (type) {
    case Element::none:
      return f(ElementConstant<Element::none>{});
    case Element::f32:
      return f(ElementConstant<Element::f32>{});
    case Element::bf16:
      return f(ElementConstant<Element::bf16>{});
    case Element::f16:
      return f(ElementConstant<Element::f16>{});
  }
}

/// Calls f with the gradient's type as a constant and a Master.
template <class F>
void with_elements(const Buffers& buffers, F f) {
  with_element(buffers.gradient_type, [&](auto gradient) {
    if constexpr (gradient.value != Element::none) {
      if (buffers.remainder) return f(gradient, Master<Element::bf16, true>{});
      with_element(buffers.parameter_type,
                   [&](auto parameter) { f(gradient, Master<parameter.value, false>{}); });
    }
  });
}

template <class V>
void adam(const Buffers& buffers, const AdamScalars& scalars, int64_t count) {
  with_elements(buffers, [&](auto gradient, auto weights) {
    using W = decltype(weights);
    if (scalars.decoupled) return run_pass<V, AdamPass<gradient.value, W, true>>(buffers, scalars, count);
    run_pass<V, AdamPass<gradient.value, W, false>>(buffers, scalars, count);
  });
}

template <class V>
void sgd(const Buffers& buffers, const SgdScalars& scalars, int64_t count) {
  with_elements(buffers, [&](auto gradient, auto weights) {
    constexpr Element kG = gradient.value;
    using W = decltype(weights);
    if (!buffers.first) return run_pass<V, SgdPass<kG, W, Momentum::none>>(buffers, scalars, count);
    if (scalars.nesterov) return run_pass<V, SgdPass<kG, W, Momentum::nesterov>>(buffers, scalars, count);
    run_pass<V, SgdPass<kG, W, Momentum::heavy_ball>>(buffers, scalars, count);
  });
}

template <class V>
void lion(const Buffers& buffers, const LionScalars& scalars, int64_t count) {
  with_elements(buffers, [&](auto gradient, auto weights) {
    run_pass<V, LionPass<gradient.value, decltype(weights)>>(buffers, scalars, count);
  });
}

/// Element i goes into lane i % 16, whatever the variant; lanes are added as a tree. Vectors are as wide.
constexpr int64_t kLanes = 16;

inline double sum_lanes(double* lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

template <Element kType>
void add_tail_squares(const void* values, int64_t first, int64_t begin, int64_t end, double* lanes) {
  for (int64_t i = begin; i < end; ++i) {
    const double value = load_as<Scalar, kType>(values, i);
    lanes[(i - first) % kLanes] += value * value;
  }
}

template <class V, Element kType>
double sum_of_squares(const void* values, int64_t begin, int64_t end) {
  static_assert(V::kWidth == 1 || V::kWidth == kLanes);
  double lanes[kLanes] = {};
  const int64_t whole = V::kWidth == 1 ? begin : end - (end - begin) % kLanes;
  if constexpr (V::kWidth > 1) {
    typename V::Squares squares;
    for (int64_t i = begin; i < whole; i += kLanes) squares.add(load_as<V, kType>(values, i));
    squares.store(lanes);
  }
  add_tail_squares<kType>(values, begin, whole, end, lanes);
  return sum_lanes(lanes);
}

/// Blocks that are summed side by side: memory gives more to several streams than to one.
constexpr int64_t kStreams = 4;

template <class V, Element kType>
void sums_of_streams(const void* values, int64_t begin, int64_t block, double* sums) {
  typename V::Squares squares[kStreams];
  for (int64_t i = 0; i < block; i += kLanes)
    for (int64_t s = 0; s < kStreams; ++s) squares[s].add(load_as<V, kType>(values, begin + s * block + i));
  for (int64_t s = 0; s < kStreams; ++s) {
    double lanes[kLanes];
    squares[s].store(lanes);
    sums[s] = sum_lanes(lanes);
  }
}

/// V::Squares adds kLanes elements at a time into partial sums of fp64; void: one by one.
template <class V>
void sums_of_squares(const void* values, Element type, int64_t count, int64_t block, double* sums) {
  with_element(type, [&](auto element) {
    constexpr Element kType = element.value;
    if constexpr (kType != Element::none) {
      int64_t begin = 0;
      if constexpr (V::kWidth > 1) {
        const int64_t streams = block % kLanes == 0 ? count / (kStreams * block) : 0;
        for (int64_t i = 0; i < streams; ++i, begin += kStreams * block, sums += kStreams)
          sums_of_streams<V, kType>(values, begin, block, sums);
      }
      for (; begin < count; begin += block)
        *sums++ = sum_of_squares<V, kType>(values, begin, begin + block < count ? begin + block : count);
    }
  });
}

template <class V>
void split(const float* masters, uint16_t* halves, Remainder* remainders, int64_t count) {
  const int64_t whole = count - count % V::kWidth;
  for (int64_t i = 0; i < whole; i += V::kWidth)
    V::store_split(halves + i, remainders + i, V::load(masters + i));
  for (int64_t i = whole; i < count; ++i) Scalar::store_split(halves + i, remainders + i, masters[i]);
}

template <class V>
void join(const uint16_t* halves, const Remainder* remainders, float* masters, int64_t count) {
  const int64_t whole = count - count % V::kWidth;
  for (int64_t i = 0; i < whole; i += V::kWidth)
    V::store(masters + i, V::load_split(halves + i, remainders + i));
  for (int64_t i = whole; i < count; ++i) masters[i] = Scalar::load_split(halves + i, remainders + i);
}

template <class V>
constexpr KernelSet kernel_set(std::string_view name) {
  return {name, adam<V>, sgd<V>, lion<V>, sums_of_squares<V>, split<V>, join<V>};
}

}  // namespace
}  // namespace zero::kernels
