#pragma once
// A rule over one segment of a shard, by at:: operators: for any device. The operations are the kernels',
// each rounded to fp32, so the values agree to rounding.

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "optim/kernels/exact_sum.h"
#include "optim/kernels/rules.h"
#include "optim/rule_memory.h"

namespace zero::tensor_passes {

/// Whole tensors as the rules' vectors.
struct Tensors {
  using Reg = at::Tensor;
  static double set(float value) { return value; }
  static Reg add(const Reg& a, const Reg& b) { return a.add(b); }
  static Reg add(const Reg& a, double b) { return a.add(b); }
  static Reg sub(const Reg& a, const Reg& b) { return a.sub(b); }
  static Reg mul(const Reg& a, const Reg& b) { return a.mul(b); }
  static Reg mul(const Reg& a, double b) { return a.mul(b); }
  static Reg mul(double a, const Reg& b) { return b.mul(a); }
  static Reg div(const Reg& a, const Reg& b) { return a.div(b); }
  static Reg sqrt(const Reg& a) { return a.sqrt(); }
  static Reg sign(const Reg& a) { return a.sign(); }
};

/// Squares of a rule's sums, block by block: [blocks, kSums] on the elements' device.
struct TensorSums {
  at::Tensor partials;
  void add_square(int sum, const at::Tensor& of) {
    const int64_t blocks = rule_blocks_of(of.numel());
    const at::Tensor squares = at::zeros({blocks * kRuleBlockNumel}, of.options().dtype(at::kDouble));
    squares.narrow(0, 0, of.numel()).copy_(of.to(at::kDouble).square());
    partials.select(1, sum).copy_(squares.view({blocks, kRuleBlockNumel}).sum(1));
  }
};

// What an operator makes is as large as its arguments: a part of a segment at a time bounds it.
inline constexpr int64_t kMostNumel = int64_t{4} << 20;

template <class Work>
void in_parts(int64_t begin, int64_t end, Work work) {
  for (int64_t from = begin; from < end; from += kMostNumel) work(from, std::min(kMostNumel, end - from));
}

/// fp32 master of elements [from, from + numel), joined where it is split.
at::Tensor master_of(const RuleMemory& memory, int64_t from, int64_t numel);
/// Writes master and parameter.
void set_master(const RuleMemory& memory, int64_t from, const at::Tensor& values);

template <int kStates>
kernels::Elements<Tensors, kStates> load(const RuleMemory& memory, int64_t from, int64_t numel) {
  kernels::Elements<Tensors, kStates> x;
  x.gradient = memory.gradient.narrow(0, from, numel).to(at::kFloat);
  x.master = master_of(memory, from, numel);
  for (int k = 0; k < kStates; ++k) x.states[k] = memory.states[k].narrow(0, from, numel);
  return x;
}

template <int kStates>
void store_states(const RuleMemory& memory, int64_t from, const kernels::Elements<Tensors, kStates>& x) {
  for (int k = 0; k < kStates; ++k) memory.states[k].narrow(0, from, x.states[k].numel()).copy_(x.states[k]);
}

template <class Rule, int kStates>
void update_with(const RuleMemory& memory, const ShardSegment& segment,
                 const typename kernels::Arithmetic<Rule>::Scalars& scalars) {
  in_parts(segment.begin, segment.end, [&](int64_t from, int64_t numel) {
    auto x = load<kStates>(memory, from, numel);
    kernels::Arithmetic<Rule>::update(scalars, x);
    constexpr bool kHasNew =
        kernels::Arithmetic<Rule>::kSums == 0 || kernels::only_measures<kernels::Arithmetic<Rule>>();
    if constexpr (kHasNew) store_states(memory, from, x);
    set_master(memory, from, x.master);
  });
}

template <class Rule>
void update(const RuleMemory& memory, const ShardSegment& segment,
            const typename kernels::Arithmetic<Rule>::Scalars& scalars) {
  using Arithmetic = kernels::Arithmetic<Rule>;
  if (static_cast<int>(memory.states.size()) == Arithmetic::kMostStates)
    return update_with<Rule, Arithmetic::kMostStates>(memory, segment, scalars);
  update_with<Rule, Arithmetic::kLeastStates>(memory, segment, scalars);
}

/// Adds the sums of elements [begin, end) to digits [kSums, kDigits], exactly.
template <class Rule>
void direction(const RuleMemory& memory, int64_t begin, int64_t end,
               const typename kernels::Arithmetic<Rule>::Scalars& scalars, double* digits) {
  using Arithmetic = kernels::Arithmetic<Rule>;
  constexpr int kStates = kernels::only_measures<Arithmetic>() ? 0 : Arithmetic::kMostStates;
  in_parts(begin, end, [&](int64_t from, int64_t numel) {
    TensorSums all{
        at::zeros({rule_blocks_of(numel), Arithmetic::kSums}, memory.gradient.options().dtype(at::kDouble))};
    auto x = load<kStates>(memory, from, numel);
    Arithmetic::direction(scalars, x, all);
    store_states(memory, from, x);
    const at::Tensor found = all.partials.cpu();
    for (int64_t i = 0; i < found.numel(); ++i)
      kernels::add_exactly(found.const_data_ptr<double>()[i],
                           digits + i % Arithmetic::kSums * kernels::kDigits);
  });
}

}  // namespace zero::tensor_passes
