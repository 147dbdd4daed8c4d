#include "optim/eight_bit_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "compute/host_copies.h"
#include "optim/eight_bit.h"

namespace zero::eight_bit_tensors {
namespace {

using eight_bit::kBlockNumel;

/// A map where the device reads it.
struct MapTensors {
  at::Tensor values;   // fp32 [256], ascending
  at::Tensor middles;  // fp32 [255], between neighbours
};

MapTensors tensors_of(const eight_bit::DynamicMap& map, c10::Device device) {
  const at::Tensor values = at::empty({256}, at::kFloat), middles = at::empty({255}, at::kFloat);
  for (int i = 0; i < 256; ++i) values.mutable_data_ptr<float>()[i] = map.value(static_cast<uint8_t>(i));
  for (int i = 0; i < 255; ++i) middles.mutable_data_ptr<float>()[i] = map.middle(i);
  return {detail::copied_to_device(values, device), detail::copied_to_device(middles, device)};
}

// Of blocks that stand in rows.
at::Tensor dequantised(const MapTensors& map, const at::Tensor& codes, const at::Tensor& scales) {
  const at::Tensor scale = scales.view({-1, 1});
  const at::Tensor values = map.values.index_select(0, codes.to(at::kInt)).view({-1, kBlockNumel});
  return values.mul(scale).masked_fill_(scale.eq(0), 0).view({-1});
}

at::Tensor scales_of(const at::Tensor& values) {
  const at::Tensor scales = values.view({-1, kBlockNumel}).abs().amax(1);
  return scales.masked_fill_(scales.isnan(), std::numeric_limits<float>::quiet_NaN());
}

at::Tensor codes_of(const MapTensors& map, const at::Tensor& values, const at::Tensor& scales) {
  const at::Tensor scale = scales.view({-1, 1});
  const at::Tensor relative = values.view({-1, kBlockNumel}).div(scale);
  // As many as there are middles below it.
  const at::Tensor codes = at::bucketize(relative, map.middles, /*out_int32=*/true);
  return codes.masked_fill_(relative.isnan(), 0).to(at::kByte).view({-1});
}

void store_part(const at::Tensor& fresh, const at::Tensor& active, const at::Tensor& to) {
  const at::Tensor part = fresh.narrow(0, 0, to.numel());
  at::Tensor(to).copy_(active.defined() ? at::where(active, part, to) : part);
}

/// One moment of some blocks.
struct Moment {
  at::Tensor codes, scales;  // [count], and one of each block
  at::Tensor values;         // fp32 [blocks * kBlockNumel]: the last one may be filled up
};

}  // namespace

void update(const RuleMemory& memory, const ShardSegment& segment, const at::Tensor& active,
            const std::function<void(const RuleMemory&, const ShardSegment&)>& update) {
  constexpr int64_t kPartNumel = 4096 * kBlockNumel;  // what lies between takes no memory worth counting
  const c10::Device device = memory.states[0].device();
  const std::array maps{tensors_of(eight_bit::DynamicMap::of_signed(), device),
                        tensors_of(eight_bit::DynamicMap::of_unsigned(), device)};
  for (int64_t from = segment.begin; from < segment.end; from += kPartNumel) {
    const int64_t count = std::min(kPartNumel, segment.end - from), blocks = eight_bit::blocks_of(count);
    const auto part_of = [&](const at::Tensor& whole) {
      return whole.defined() ? whole.narrow(0, from, count) : whole;
    };
    std::array<Moment, 2> moments;
    RuleMemory part{.lease = {},
                    .master = part_of(memory.master),
                    .gradient = part_of(memory.gradient),
                    .parameter = part_of(memory.parameter),
                    .states = {}};
    for (size_t i = 0; i < moments.size(); ++i) {
      Moment& moment = moments[i];
      moment.codes = part_of(memory.states[2 * i]);
      moment.scales = memory.states[2 * i + 1].narrow(0, from / kBlockNumel, blocks);
      const at::Tensor rows = at::constant_pad_nd(moment.codes, {0, blocks * kBlockNumel - count});
      moment.values = dequantised(maps[i], rows, moment.scales);
      moment.values.narrow(0, count, moment.values.numel() - count).zero_();
      part.states.push_back(moment.values.narrow(0, 0, count));
    }
    ShardSegment here = segment;
    here.begin = here.counted_begin = 0;
    here.end = here.counted_end = count;
    update(part, here);
    for (size_t i = 0; i < moments.size(); ++i) {
      const Moment& moment = moments[i];
      const at::Tensor scales = scales_of(moment.values);
      store_part(codes_of(maps[i], moment.values, scales), active, moment.codes);
      store_part(scales, active, moment.scales);
    }
  }
}

}  // namespace zero::eight_bit_tensors
