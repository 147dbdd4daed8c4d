// What the passes over a shard's memory share, whatever the rule.
#include <ATen/ops/empty_like.h>

#include "optim/kernel_passes.h"
#include "optim/split_master.h"
#include "optim/tensor_passes.h"

namespace zero {

void RuleMemory::stage(c10::Device device) {
  const auto bring = [&](at::Tensor& values, bool comes_back) {
    if (!values.defined() || !values.is_cpu()) return;
    const at::Tensor on_host = values;
    values = on_host.to(device);
    staged.push_back({values, on_host, comes_back});
  };
  bring(master, true);
  bring(parameter, true);
  bring(gradient, false);
}

void RuleMemory::put_back() const {
  for (const Staged& one : staged)
    if (one.comes_back) one.on_host.copy_(one.on_device);
}

kernels::Buffers kernel_passes::buffers_of(const RuleMemory& memory) {
  // In 8 bits they are no fp32: update_narrow() puts those of some blocks in their place.
  return rule_buffers(memory.master, memory.gradient, memory.parameter,
                      is_in_8bit(memory) ? std::vector<at::Tensor>() : memory.states);
}

kernel_passes::NarrowMoments::NarrowMoments(const RuleMemory& memory)
    : codes{memory.states[0].mutable_data_ptr<uint8_t>(), memory.states[2].mutable_data_ptr<uint8_t>()},
      scales{memory.states[1].mutable_data_ptr<float>(), memory.states[3].mutable_data_ptr<float>()} {}

void kernel_passes::NarrowMoments::widen(int64_t from, int64_t count, std::array<float*, 2> into) const {
  for (size_t i = 0; i < codes.size(); ++i)
    eight_bit::dequantise(eight_bit::DynamicMap::of_moment(i), codes[i] + from,
                          scales[i] + from / eight_bit::kBlockNumel, into[i], count);
}

void kernel_passes::NarrowMoments::store(int64_t from, int64_t count,
                                         std::array<const float*, 2> moments) const {
  for (size_t i = 0; i < codes.size(); ++i)
    eight_bit::quantise(eight_bit::DynamicMap::of_moment(i), moments[i], codes[i] + from,
                        scales[i] + from / eight_bit::kBlockNumel, count);
}

void kernel_passes::set_rounded(const RuleMemory& memory, const ShardSegment& segment,
                                const at::Tensor& values, const kernels::RoundingKey& key) {
  const at::Tensor flat = values.contiguous();
  parallel_over(flat, kLeastNumel, [&](int64_t begin, int64_t end) {
    kernels::best_kernels().round(flat.const_data_ptr<float>() + begin,
                                  halves_of(memory.master) + segment.begin + begin, end - begin, key,
                                  segment.parameter_begin + begin);
  });
}

void kernel_passes::add_partials(const at::Tensor& partials, double* sums) {
  const int64_t count = partials.size(-1);
  const double* const values = partials.const_data_ptr<double>();
  for (int64_t i = 0; i < partials.numel(); ++i) sums[i % count] += values[i];
}

at::Tensor kernel_passes::sums_of_squares(const at::Tensor& values) {
  const kernels::Element type = element_of(values.scalar_type());
  const auto* const base = static_cast<const char*>(values.const_data_ptr());
  const at::Tensor partials = at::empty({sum_blocks_of(values.numel())}, at::kDouble);
  double* const sums = partials.mutable_data_ptr<double>();
  parallel_over(partials, 1, [&](int64_t first, int64_t last) {
    const int64_t from = first * kSumBlockNumel;
    const int64_t count = std::min(last * kSumBlockNumel, values.numel()) - from;
    kernels::best_kernels().sums_of_squares(base + from * values.element_size(), type, count, kSumBlockNumel,
                                            sums + first);
  });
  return partials;
}

at::Tensor tensor_passes::master_of(const RuleMemory& memory, int64_t from, int64_t numel) {
  const at::Tensor master = memory.master.narrow(0, from, numel);
  if (!is_remainder(master)) return master.to(at::kFloat);
  at::Tensor whole = at::empty_like(master, at::kFloat);
  join_master(memory.parameter.narrow(0, from, numel), master, whole);
  return whole;
}

void tensor_passes::set_master(const RuleMemory& memory, int64_t from, const at::Tensor& values) {
  const at::Tensor master = memory.master.narrow(0, from, values.numel());
  const auto parameter = [&] { return memory.parameter.narrow(0, from, values.numel()); };
  if (is_remainder(master)) return split_master(values, parameter(), master);
  at::Tensor(master).copy_(values);
  if (memory.parameter.defined()) parameter().copy_(values);
}

}  // namespace zero
