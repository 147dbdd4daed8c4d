#pragma once
// How the rules (rules.h) pass over memory, for a vector type V (Scalar in scalar.h; the others beside their
// kernel sets). In an unnamed namespace for the reason that scalar.h gives.

#include <algorithm>
#include <type_traits>

#include "base/mix_bits.h"
#include "optim/kernels/rules.h"
#include "optim/kernels/scalar.h"

namespace zero::kernels {
namespace {

// How far ahead memory is asked for: the hardware's own prefetchers stop at every page, which costs a tenth.
constexpr int64_t kAheadBytes = 2048;

/// Element i and its neighbours. Prefetching past the end is harmless: it never faults.
template <class V, Element kType>
ZERO_ANY_DEVICE typename V::Reg load_as(const void* from, int64_t i) {
  const char* const at = static_cast<const char*>(from) + i * (kType == Element::f32 ? 4 : 2);
  if constexpr (V::kWidth > 1) __builtin_prefetch(at + kAheadBytes);
  if constexpr (kType == Element::bf16) return V::load_bf16(reinterpret_cast<const uint16_t*>(at));
  if constexpr (kType == Element::f16) return V::load_f16(reinterpret_cast<const uint16_t*>(at));
  if constexpr (kType == Element::f32) return V::load(reinterpret_cast<const float*>(at));
}

template <class V>
ZERO_ANY_DEVICE typename V::Reg load(const float* from, int64_t i) {
  return load_as<V, Element::f32>(from, i);
}

template <class V, Element kType>
ZERO_ANY_DEVICE void store_as(void* to, int64_t i, typename V::Reg value) {
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
  ZERO_ANY_DEVICE static typename V::Reg load(const Buffers& b, int64_t i) {
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
  ZERO_ANY_DEVICE static void store(const Buffers& b, int64_t i, typename V::Reg value) {
    if constexpr (kSplit) {
      V::store_split(static_cast<uint16_t*>(b.parameter) + i, b.remainder + i, value);
    } else {
      V::store(b.master + i, value);
      store_as<V, kParameter>(b.parameter, i, value);
    }
  }
};

/// bf16 that is the master itself: new values are rounded stochastically. b.number is even where vectors
/// begin, and all of a pass is in one run (for_each_rounding_run()).
struct RoundedMaster {
  template <class V>
  ZERO_ANY_DEVICE static typename V::Reg load(const Buffers& b, int64_t i) {
    return load_as<V, Element::bf16>(b.parameter, i);
  }
  template <class V>
  ZERO_ANY_DEVICE static void store(const Buffers& b, int64_t i, typename V::Reg value) {
    V::store_rounded(static_cast<uint16_t*>(b.parameter) + i, value, b.rounding.bits, b.number + i);
  }
};

/// Element i goes into lane i % 16, whatever the variant; lanes are added as a tree. Vectors are as wide.
constexpr int64_t kLanes = 16;

ZERO_ANY_DEVICE inline double sum_lanes(double* lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

/// What a rule's direction adds squares to: nothing, lanes of one element at a time, or a vector's.
struct NoSums {};
template <int kSums>
struct LaneSums {
  double lanes[kSums][kLanes] = {};
  int64_t lane = 0;
  ZERO_ANY_DEVICE void add_square(int sum, float value) { lanes[sum][lane] += double{value} * double{value}; }
};
template <class V, int kSums>
struct VectorSums {
  typename V::Squares squares[kSums];
  void add_square(int sum, typename V::Reg value) { squares[sum].add(value); }
};

enum class Phase : uint8_t { fused, direction, measure, update };

/// The phases of a rule, and the states that its first one takes.
template <class Rule>
constexpr Phase kUpdatePhase = Rule::kSums > 0 && !only_measures<Rule>() ? Phase::update : Phase::fused;
template <class Rule>
constexpr Phase kSumsPhase = only_measures<Rule>() ? Phase::measure : Phase::direction;
template <class Rule>
constexpr int kSumsStates = only_measures<Rule>() ? 0 : Rule::kMostStates;

/// One phase of a rule over elements [begin, end).
template <class V, class Rule, Element kGradient, class Weights, int kStates, Phase kPhase, class Sums>
ZERO_ANY_DEVICE void run_elements(const Buffers& b, const typename Rule::Scalars& given, int64_t begin,
                                  int64_t end, Sums& sums) {
  // Copies: stores might change what lies elsewhere.
  const typename Rule::Scalars s = given;
  float* const states[] = {b.first, b.second};
  for (int64_t i = begin; i < end; i += V::kWidth) {
    Elements<V, kStates> x;
    if constexpr (kPhase != Phase::update) x.gradient = load_as<V, kGradient>(b.gradient, i);
    x.master = Weights::template load<V>(b, i);
    for (int k = 0; k < kStates; ++k) x.states[k] = load<V>(states[k], i);
    if constexpr (kPhase == Phase::direction || kPhase == Phase::measure) {
      if constexpr (V::kWidth == 1) sums.lane = i % kLanes;
      Rule::direction(s, x, sums);
    } else {
      Rule::update(s, x);
    }
    if constexpr (kPhase == Phase::fused || kPhase == Phase::direction)
      for (int k = 0; k < kStates; ++k) V::store(states[k] + i, x.states[k]);
    if constexpr (kPhase == Phase::fused || kPhase == Phase::update)
      Weights::template store<V>(b, i, x.master);
  }
}

/// Whole vectors, then the tail one by one.
template <class V, class Rule, Element kGradient, class Weights, int kStates, Phase kPhase>
void run_pass(const Buffers& b, const typename Rule::Scalars& s, int64_t count) {
  // Two elements share random bits.
  const int64_t lead = std::is_same_v<Weights, RoundedMaster> && count > 0 ? b.number % 2 : 0;
  const int64_t whole = count - (count - lead) % V::kWidth;
  NoSums none;
  if (lead > 0) run_elements<Scalar, Rule, kGradient, Weights, kStates, kPhase>(b, s, 0, lead, none);
  run_elements<V, Rule, kGradient, Weights, kStates, kPhase>(b, s, lead, whole, none);
  run_elements<Scalar, Rule, kGradient, Weights, kStates, kPhase>(b, s, whole, count, none);
}

/// Elements [begin, end), where lanes are counted from `begin`, a multiple of kLanes.
template <class V, class Rule, Element kGradient, class Weights>
void run_direction(const Buffers& b, const typename Rule::Scalars& s, int64_t begin, int64_t end,
                   double* sums) {
  static_assert(V::kWidth == 1 || V::kWidth == kLanes);
  constexpr Phase kPhase = kSumsPhase<Rule>;
  constexpr int kStates = kSumsStates<Rule>;
  const int64_t whole = V::kWidth == 1 ? begin : end - (end - begin) % V::kWidth;
  LaneSums<Rule::kSums> lanes;
  if constexpr (V::kWidth > 1) {
    VectorSums<V, Rule::kSums> vectors;
    run_elements<V, Rule, kGradient, Weights, kStates, kPhase>(b, s, begin, whole, vectors);
    for (int k = 0; k < Rule::kSums; ++k) vectors.squares[k].store(lanes.lanes[k]);
  }
  run_elements<Scalar, Rule, kGradient, Weights, kStates, kPhase>(b, s, whole, end, lanes);
  for (int k = 0; k < Rule::kSums; ++k) sums[k] = sum_lanes(lanes.lanes[k]);
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

/// Calls f with the gradient's type as a constant.
template <class F>
void with_gradient(const Buffers& buffers, F f) {
  with_element(buffers.gradient_type, [&](auto gradient) {
    if constexpr (gradient.value != Element::none) f(gradient);
  });
}

/// Calls f with a Master.
template <class F>
void with_master(const Buffers& buffers, F f) {
  if (buffers.remainder) return f(Master<Element::bf16, true>{});
  with_element(buffers.parameter_type, [&](auto parameter) { f(Master<parameter.value, false>{}); });
}

/// Calls f with the number of states as a constant.
template <class Rule, class F>
void with_states(const Buffers& buffers, F f) {
  if constexpr (Rule::kLeastStates == Rule::kMostStates) {
    f(std::integral_constant<int, Rule::kMostStates>{});
  } else if (buffers.first) {
    f(std::integral_constant<int, Rule::kMostStates>{});
  } else {
    f(std::integral_constant<int, Rule::kLeastStates>{});
  }
}

/// use(from, numel, mixed key, number of the first in its run) for parts of `count` elements from number
/// `first` on. A pair's number has 32 bits; its upper half is mixed into the key.
template <class Use>
void for_each_rounding_run(int64_t count, const RoundingKey& key, int64_t first, Use use) {
  constexpr int64_t kRunNumel = int64_t{1} << 33;
  for (int64_t i = 0; i < count;) {
    const int64_t at = first + i, run = at / kRunNumel, in_run = at % kRunNumel;
    const int64_t part = std::min(count - i, kRunNumel - in_run);
    use(i, part, run == 0 ? key.bits : mix_bits(key.bits + static_cast<uint64_t>(run)), in_run);
    i += part;
  }
}

template <class V, class Rule>
void update_pass(const Buffers& buffers, const typename Rule::Scalars& scalars, int64_t count) {
  constexpr Phase kPhase = kUpdatePhase<Rule>;
  const auto run = [&](auto gradient) {
    with_states<Rule>(buffers, [&](auto states) {
      if (buffers.number >= 0)
        return for_each_rounding_run(count, buffers.rounding, buffers.number,
                                     [&](int64_t from, int64_t numel, uint64_t key, int64_t number) {
                                       Buffers part = advance(buffers, from);
                                       part.rounding.bits = key;
                                       part.number = number;
                                       run_pass<V, Rule, gradient.value, RoundedMaster, states.value, kPhase>(
                                           part, scalars, numel);
                                     });
      with_master(buffers, [&](auto weights) {
        run_pass<V, Rule, gradient.value, decltype(weights), states.value, kPhase>(buffers, scalars, count);
      });
    });
  };
  if constexpr (kPhase == Phase::update)
    run(ElementConstant<Element::f32>{});  // of the gradient, which is not read
  else
    with_gradient(buffers, run);
}

template <class V, class Rule>
void direction_pass(const Buffers& buffers, const typename Rule::Scalars& scalars, int64_t count,
                    int64_t block, double* sums) {
  // The master is only read: no copy of it is made.
  Buffers read = buffers;
  if (!read.remainder) read.parameter_type = Element::none;
  with_gradient(read, [&](auto gradient) {
    const auto run = [&](auto weights) {
      for (int64_t begin = 0; begin < count; begin += block, sums += Rule::kSums)
        run_direction<V, Rule, gradient.value, decltype(weights)>(
            read, scalars, begin, begin + block < count ? begin + block : count, sums);
    };
    if (read.remainder) return run(Master<Element::bf16, true>{});
    run(Master<Element::none, false>{});
  });
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

constexpr int64_t kRoundedAtATime = 2048;

/// At most kRoundedAtATime elements, from the first or the second one of a pair on.
inline void round_run(const float* values, uint16_t* halves, int64_t count, uint64_t key, uint32_t pair,
                      bool is_odd) {
  const auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  uint32_t words[kRoundedAtATime / 2 + 1];
  uint16_t random[kRoundedAtATime + 2];
  const auto pairs = static_cast<uint32_t>((count + (is_odd ? 1 : 0) + 1) / 2);
  for (uint32_t i = 0; i < pairs; ++i) words[i] = random_word(pair + i, low, high);
  std::memcpy(random, words, pairs * sizeof *words);
  const uint16_t* const here = random + (is_odd ? 1 : 0);
  for (int64_t i = 0; i < count; ++i) halves[i] = rounded_by(values[i], here[i]);
}

inline void round_randomly(const float* values, uint16_t* halves, int64_t count, const RoundingKey& key,
                           int64_t first) {
  for_each_rounding_run(count, key, first, [&](int64_t from, int64_t numel, uint64_t mixed, int64_t number) {
    for (int64_t i = 0; i < numel; i += kRoundedAtATime)
      round_run(values + from + i, halves + from + i, std::min(kRoundedAtATime, numel - i), mixed,
                static_cast<uint32_t>((number + i) / 2), (number + i) % 2 != 0);
  });
}

inline void widen_halves(const uint16_t* halves, float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = from_bf16(halves[i]);
}

}  // namespace
}  // namespace zero::kernels
