#include "plan/step_time.h"

#include <algorithm>

#include "pipeline/timeline.h"

namespace zero {
namespace {

/// Seconds of a micro-batch on the heaviest rank.
struct Passes {
  double forward = 0, backward_input = 0, backward_weight = 0;  // computation
  double tensor_forward = 0, tensor_backward = 0;
};

Passes passes_of(const Cluster& cluster, const StepLayout& layout, const StepWork& work) {
  const double rate = cluster.rate_of(work.dtype) * cluster.compute_efficiency;
  const double products = work.product_flops / rate, scores = work.score_flops / rate;
  const double moved = 2 * work.kept_bytes / cluster.memory_bytes_per_s;
  const TensorTraffic& tensor = work.tensor;
  const auto calls = static_cast<double>(2 * tensor.all_reduce.calls + tensor.all_gather.calls +
                                         tensor.reduce_scatter.calls);
  const double both =
      ring_seconds(cluster, group_of(cluster, layout.tp, 1), static_cast<double>(tensor.bytes()), calls);
  Passes passes{.forward = products + scores + moved,
                .backward_input = products + 2 * scores + 2 * moved,
                .backward_weight = products,
                .tensor_forward = both / 2,
                .tensor_backward = both / 2};
  if (layout.recompute) {
    passes.backward_input += passes.forward;
    passes.tensor_backward += passes.tensor_forward;
  }
  return passes;
}

pipeline::StageCosts costs_of(const Passes& passes, double scale) {
  return {.forward = scale * (passes.forward + passes.tensor_forward),
          .backward_input = scale * (passes.backward_input + passes.tensor_backward),
          .backward_weight = scale * passes.backward_weight};
}

// Between neighbours along "pp", which are dp * tp ranks apart. Of a host all ranks send at a time.
double message_seconds(const Cluster& cluster, const StepLayout& layout, double bytes) {
  const int stride = layout.dp * layout.tp;
  const RankGroup pair{.ranks = 2, .of_host = stride < cluster.devices_per_host ? 2 : 1};
  const ClusterLink link = link_of(cluster, pair);
  return link.latency_s + bytes / link.bytes_per_s;
}

void add_waiting(const StepLayout& layout, pipeline::StageCosts costs, double transfer, bool exact,
                 StepTime& time) {
  const int64_t stages =
      int64_t{layout.pp} * (layout.schedule == pipeline::Kind::Interleaved ? layout.chunks : 1);
  if (!exact) {
    time.bubble_s = bubble_by_formula(layout, costs);
    time.pipeline_s = 2 * static_cast<double>(stages - 1) * transfer;
    return;
  }
  const pipeline::Table table = pipeline::make_schedule(
      layout.schedule, layout.pp, static_cast<int>(layout.micro_batches), layout.chunks, {.costs = costs});
  const pipeline::Timeline alone = pipeline::time_of(table, costs);
  time.bubble_s = alone.duration - alone.ideal;
  costs.transfer = transfer;
  time.pipeline_s = std::max(0.0, pipeline::time_of(table, costs).duration - alone.duration);
}

// A rank that waits leaves its core to the others. So cores that ranks share are busy with the mean of all
// ranks' work, unless the schedule keeps even ranks with cores of their own longer than that.
void share_cores(double devices_per_core, double mean_of_heaviest, StepTime& time) {
  if (devices_per_core <= 1) return;
  const double waiting = (time.compute_s + time.tensor_s + time.bubble_s) / devices_per_core;
  time.compute_s *= mean_of_heaviest;
  time.tensor_s *= mean_of_heaviest;
  time.bubble_s = std::max(0.0, waiting - time.compute_s - time.tensor_s);
}

}  // namespace

double bubble_by_formula(const StepLayout& layout, const pipeline::StageCosts& costs) {
  using pipeline::Kind;
  const double waiting = layout.pp - 1;
  const double forward_input = costs.forward + costs.backward_input, weight = costs.backward_weight;
  switch (layout.schedule) {
    case Kind::GPipe:
    case Kind::OneFOneB:
      return waiting * (forward_input + weight);
    case Kind::Interleaved:
      return waiting * (forward_input + weight) / layout.chunks;
    case Kind::ZbH1:
      return waiting * std::max(0.0, forward_input - weight);
    default:
      return waiting * std::max(0.0, forward_input - 2 * weight);
  }
}

StepTime time_of_step(const Cluster& cluster, const StepLayout& layout, const StepWork& work,
                      bool exact_schedule) {
  const Passes passes = passes_of(cluster, layout, work);
  const auto count = static_cast<double>(layout.micro_batches);
  const double backward = passes.backward_input + passes.backward_weight;
  StepTime time;
  time.compute_s = count * (passes.forward + backward);
  time.tensor_s = count * (passes.tensor_forward + passes.tensor_backward);
  if (layout.pp > 1)
    add_waiting(layout, costs_of(passes, work.mean_of_heaviest),
                message_seconds(cluster, layout, work.message_bytes), exact_schedule, time);
  share_cores(cluster.devices_per_core(), work.mean_of_heaviest, time);
  const DataTraffic& data = work.data;
  time.data_all_s = ring_seconds(cluster, group_of(cluster, layout.dp, layout.tp), data.bytes, data.calls);
  const double beside =
      layout.overlap ? data.beside_forwards * passes.forward + data.beside_backwards * backward : 0;
  // The last of what backward makes has nothing beside it.
  const double last = data.calls > 0 ? time.data_all_s / data.calls : 0;
  time.data_s = std::max(time.data_all_s - beside, last);
  time.optimizer_s = work.optimizer_bytes / cluster.memory_bytes_per_s;
  const double flops = work.all_flops + (layout.recompute ? work.again_flops : 0);
  time.flops = flops / time.step_s() / (layout.dp * layout.tp * layout.pp);
  time.tokens_per_s = work.tokens / time.step_s();
  return time;
}

}  // namespace zero
