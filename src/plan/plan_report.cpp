#include "zero/plan_report.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>

namespace zero {
namespace {

constexpr size_t kLabelColumns = 28;
constexpr size_t kColumns = 14;

std::string right(const std::string& text, size_t columns) {
  return std::string(columns - std::min(columns, text.size()), ' ') + text;
}

std::string left(const std::string& text, size_t columns) {
  return text + std::string(columns - std::min(columns, text.size()), ' ');
}

// 7500000000 as "7,500,000,000".
std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string plural(int64_t count, const std::string& noun) {
  return grouped(count) + " " + noun + (count == 1 ? "" : "s");
}

// One line a purpose, one column a stage.
class StageTable {
 public:
  explicit StageTable(int chosen) {
    text_ = left("", kLabelColumns);
    for (int stage = 0; stage < kStages; ++stage) {
      std::string name = "stage " + std::to_string(stage);
      text_ += right(stage == chosen ? "[" + name + "]" : name + " ", kColumns);
    }
    text_ += "\n";
  }

  void line(const std::string& label, const std::function<std::string(size_t)>& cell) {
    text_ += left(label, kLabelColumns);
    for (size_t stage = 0; stage < kStages; ++stage) text_ += right(cell(stage) + " ", kColumns);
    text_.back() = '\n';  // the last column ends without the space that stands for a bracket
  }
  void gap() { text_ += "\n"; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string bytes_or_dash(int64_t bytes) { return bytes == 0 ? "-" : human_bytes(bytes); }
std::string count_or_dash(int64_t count) { return count == 0 ? "-" : human_count(count); }

// "h.0" and "h.1" are alike: the same words around a number.
std::string without_number(const std::string& name) {
  std::string result;
  for (char c : name)
    if (c < '0' || c > '9') result += c;
  return result;
}

bool alike(const UnitLayout& a, const UnitLayout& b) {
  return without_number(a.name) == without_number(b.name) && a.numel == b.numel && a.dtype == b.dtype &&
         a.trainable == b.trainable;
}

// Runs of equal units in one line.
std::string unit_lines(const Plan& plan) {
  std::string text;
  for (size_t i = 0; i < plan.units.size();) {
    size_t end = i + 1;
    while (end < plan.units.size() && alike(plan.units[i], plan.units[end])) ++end;
    const UnitLayout& unit = plan.units[i];
    bool several = end - i > 1;
    std::string name = several ? unit.name + " .. " + plan.units[end - 1].name : unit.name;
    text += "  " + left(name, kLabelColumns - 2) + right(several ? std::to_string(end - i) + " x" : "", 8) +
            right(grouped(unit.numel), 20) + right(human_bytes(unit.slab_bytes()), 12) + "   " +
            std::string(to_string(unit.dtype)) + (unit.trainable ? "" : ", frozen") + "\n";
    i = end;
  }
  return text;
}

bool shares(const ConfigPlan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const Plan& stage) { return stage.placements.parameter == Placement::Common; });
}

bool has_states_in(const ConfigPlan& plan, Tier tier) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [&](const Plan& stage) { return stage.rank.tier_bytes[static_cast<size_t>(tier)] > 0; });
}
bool is_on_disk(const ConfigPlan& plan) { return has_states_in(plan, Tier::Disk); }
bool is_offloaded(const ConfigPlan& plan) { return is_on_disk(plan) || has_states_in(plan, Tier::Host); }

// Words in lines of at most 100 columns.
std::string wrapped(const std::string& text) {
  constexpr size_t kLine = 100;
  std::string lines;
  size_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (line + end - begin + 1 > kLine) {
      lines.back() = '\n';
      line = 0;
    }
    lines += text.substr(begin, end - begin) + " ";
    line += end - begin + 1;
    begin = end + 1;
  }
  if (!lines.empty()) lines.back() = '\n';
  return lines;
}

// Units with the same tiers in a row in one line.
std::string placement_lines(const TierPlan& tiers) {
  const std::vector<UnitLayout>& units = tiers.plan.units;
  std::string text = left("Where states are", kLabelColumns + 12);
  for (const char* kind : {"parameters", "gradients", "masters", "optimizer"}) text += right(kind, 12);
  text += "\n";
  for (size_t i = 0; i < units.size();) {
    size_t end = i + 1;
    while (end < units.size() && units[end].tiers == units[i].tiers) ++end;
    const std::string name = end - i > 1 ? units[i].name + " .. " + units[end - 1].name : units[i].name;
    text += "  " + left(name, kLabelColumns + 10);
    const StateTiers& t = units[i].tiers;
    for (const Tier tier : {t.parameter, t.gradient, t.master, t.optimizer})
      text += right(std::string(tier == Tier::Device ? "memory" : to_string(tier)), 12);
    text += "\n";
    i = end;
  }
  return text;
}

std::string placement_text(const ConfigPlan& plan) {
  const TierPlan& tiers = *plan.tiers;
  const int64_t written = tiers.traffic.disk_written_bytes * 1000 * tiers.plan.ranks;
  std::string text = "\n" + placement_lines(tiers) + wrapped(tiers.explained);
  if (written > 0)
    text += "All ranks write " + human_bytes(written) + " in 1000 steps; the file of each has " +
            human_bytes(tiers.disk_bytes) + ".\n";
  return text;
}

// Whether hosts are told apart, and not only ranks.
bool crosses_network(const ConfigPlan& plan) {
  return plan.layers.ranks == 1 && plan.hosts > 1 &&
         std::ssize(plan.stages[plan.chosen_stage].network) == plan.hosts;
}

int64_t most_sent_bytes(const Plan& plan) {
  int64_t most = 0;
  for (const HostTraffic& host : plan.network) most = std::max(most, host.sent_bytes);
  return most;
}
int64_t most_received_bytes(const Plan& plan) {
  int64_t most = 0;
  for (const HostTraffic& host : plan.network) most = std::max(most, host.received_bytes);
  return most;
}

// On what the figures rest.
std::string notes(const ConfigPlan& plan) {
  std::string text =
      "\nAt the peak there are either the activations of a micro-batch and what its loss takes, or, at the\n"
      "end of backward, the summed gradients and the largest single one. What the process and operators\n"
      "need for a moment is not counted. 1 GB is 10^9 bytes.\n";
  if (plan.on_cuda) text += "Activations and loss are counted as the operators of CPU ranks keep them.\n";
  if (is_on_disk(plan))
    text +=
        "States on disk are not in memory: they pass through the buffers once when the optimizer steps. "
        "What\n"
        "is written wears a disk out: compare it with what the maker allows.\n";
  if (has_states_in(plan, Tier::Host) && !plan.on_cuda)
    text += "On CPU the host's memory is the ranks' own: offloading to it frees nothing.\n";
  if (plan.communication == Communication::fast && !plan.on_cuda)
    text +=
        "Gradients are summed host by host (parallel.communication fast): other hosts, other last bits.\n";
  if (plan.communication == Communication::fast && plan.on_cuda)
    text +=
        "Gradients are summed by NCCL (parallel.communication fast), in the type that travels and in an "
        "order\n"
        "of its own: two runs may differ in their last bits.\n";
  if (crosses_network(plan))
    text +=
        "What crosses the network are parameters and gradients; with unlike hosts, those of the host\n"
        "that sends most. Each enters a host once for all of its ranks.\n";
  if (shares(plan))
    text +=
        "The ranks of a host share one copy of the parameters in CPU memory (residency.share): each is\n"
        "charged its part, and has all of it resident.\n";
  return text;
}

std::string along_axes(const ConfigPlan& plan) {
  if (plan.layers.ranks == 1) return "";
  return ", " + std::to_string(plan.stages[0].ranks) + " along dp, " + std::to_string(plan.layers.ranks) +
         " along tp" + (plan.layers.sequence ? " (and the sequence)" : "");
}

// The same at every stage: activations, not parameters.
void add_tensor_traffic(const ConfigPlan& plan, StageTable& table) {
  if (plan.layers.ranks == 1) return;
  const TensorTraffic& traffic = plan.tensor_traffic;
  const auto line = [&](const std::string& label, int64_t elements) {
    table.line(label, [elements](size_t) { return count_or_dash(elements); });
  };
  table.gap();
  line("Along tp: all-reduced (x2)", traffic.all_reduce.elements);
  if (plan.layers.sequence) {
    line("  gathered", traffic.all_gather.elements);
    line("  reduce-scattered", traffic.reduce_scatter.elements);
  }
  table.line("  bytes", [&](size_t) { return bytes_or_dash(traffic.bytes()); });
}

std::string fit(int64_t bytes, int64_t memory) { return bytes <= memory ? "yes" : "no"; }

}  // namespace

std::string to_text(const CountPlan& plan) {
  const CountOptions& options = plan.options;
  std::string text =
      plural(options.parameters, "parameter") + " on " + plural(options.ranks, "rank") + ", " +
      std::to_string(options.parameter_bytes) + " + " + std::to_string(options.gradient_bytes) + " + " +
      std::to_string(options.optimizer_bytes) + " bytes a parameter (itself, gradient, optimizer)\n\n";
  StageTable table(-1);
  auto& rows = plan.stages;
  table.line("Bytes a rank: parameters", [&](size_t s) { return human_bytes(rows[s].parameter_bytes); });
  table.line("  gradients", [&](size_t s) { return human_bytes(rows[s].gradient_bytes); });
  table.line("  optimizer", [&](size_t s) { return human_bytes(rows[s].optimizer_bytes); });
  table.line("  model states", [&](size_t s) { return human_bytes(rows[s].state_bytes()); });
  table.line("  in this engine", [&](size_t s) { return human_bytes(rows[s].engine_state_bytes()); });
  table.gap();
  table.line("Elements sent a step", [&](size_t s) { return count_or_dash(rows[s].traffic_elements); });
  if (options.memory_bytes) {
    table.gap();
    table.line("Largest model in " + human_bytes(*options.memory_bytes),
               [&](size_t s) { return human_count(*rows[s].largest_parameters); });
    table.line("  in this engine", [&](size_t s) { return human_count(*rows[s].engine_largest_parameters); });
  }
  return text + table.text() + "\nModel states are those of the ZeRO paper. This engine keeps gradients in " +
         std::to_string(options.engine_gradient_bytes) +
         " bytes\n(data_types.grad_accum_dtype), whole ones at stage 1 only to accumulate micro-batches, and "
         "for the"
         "\noptimizer " +
         std::to_string(options.engine_optimizer_bytes) +
         " bytes beside a bf16 parameter, which is the upper half of its fp32 master.\n"
         "Activations are not counted. 1 GB is 10^9 bytes.\n";
}

std::string to_text(const ConfigPlan& plan) {
  const Plan& chosen = plan.stages[plan.chosen_stage];
  std::string text = plan.model + ": " + plural(plan.parameters, "parameter") + "; " + plan.types + "\n" +
                     plural(plan.all_ranks(), "rank") +
                     (plan.hosts > 1 ? " on " + plural(plan.hosts, "host") : std::string()) +
                     along_axes(plan) +
                     (chosen.replica_ranks > 1 && chosen.shard_ranks > 1
                          ? " in shard groups of " + std::to_string(chosen.shard_ranks)
                          : std::string()) +
                     ", " + grouped(chosen.accumulation_steps) +
                     (chosen.accumulation_steps == 1 ? " micro-batch" : " micro-batches") + " a step, on " +
                     (plan.on_cuda ? "CUDA devices" : "CPU") + "\n\n";
  StageTable table(plan.chosen_stage);
  auto rank = [&](size_t stage) -> const RankPlan& { return plan.stages[stage].rank; };
  table.line("Bytes a rank: parameters", [&](size_t s) { return bytes_or_dash(rank(s).parameter_bytes); });
  table.line("  gradients", [&](size_t s) { return bytes_or_dash(rank(s).gradient_bytes); });
  table.line("  fp32 master", [&](size_t s) { return bytes_or_dash(rank(s).master_bytes); });
  table.line("  optimizer moments", [&](size_t s) { return bytes_or_dash(rank(s).optimizer_bytes); });
  const auto in_tier = [&](Tier tier) {
    return [&, tier](size_t s) { return bytes_or_dash(rank(s).tier_bytes[static_cast<size_t>(tier)]); };
  };
  if (is_offloaded(plan)) {
    table.line("  of it in host memory", in_tier(Tier::Host));
    table.line("  of it on disk", in_tier(Tier::Disk));
    table.line("  buffers for the disk",
               [&](size_t s) { return bytes_or_dash(rank(s).ring_bytes + rank(s).staging_bytes); });
    table.line("  parameters updated ahead", [&](size_t s) { return bytes_or_dash(rank(s).ahead_bytes); });
  }
  if (is_offloaded(plan))
    table.line("  gradients on their way",
               [&](size_t s) { return bytes_or_dash(rank(s).passing_sum_bytes); });
  table.line("  gather window", [&](size_t s) { return bytes_or_dash(rank(s).gather_window_bytes); });
  table.line("  gradient buckets", [&](size_t s) { return bytes_or_dash(rank(s).bucket_bytes); });
  table.line("  largest gradient", [&](size_t s) { return bytes_or_dash(rank(s).largest_gradient_bytes); });
  table.line("  activations", [&](size_t) { return bytes_or_dash(plan.activations.kept); });
  table.line("  loss", [&](size_t) { return bytes_or_dash(plan.activations.loss); });
  if (std::any_of(plan.save_copy_bytes.begin(), plan.save_copy_bytes.end(), [](int64_t b) { return b > 0; }))
    table.line("  copy while saving", [&](size_t s) { return bytes_or_dash(plan.save_copy_bytes[s]); });
  table.line("  at the peak", [&](size_t s) { return human_bytes(plan.total_bytes(s)); });
  if (shares(plan)) {
    table.line("  resident", [&](size_t s) { return human_bytes(plan.resident_bytes(s)); });
    table.line("Bytes a host",
               [&](size_t s) { return human_bytes(plan.total_bytes(s) * plan.host_ranks()); });
  }
  table.gap();
  table.line("Elements per step: gathered",
             [&](size_t s) { return count_or_dash(rank(s).all_gather_elements); });
  table.line("  reduce-scattered", [&](size_t s) { return count_or_dash(rank(s).reduce_scatter_elements); });
  table.line("  all-reduced (x2)", [&](size_t s) { return count_or_dash(rank(s).all_reduce_elements); });
  table.line("  total", [&](size_t s) { return count_or_dash(rank(s).traffic_elements()); });
  table.line("  of it padding", [&](size_t s) { return count_or_dash(rank(s).padding_elements); });
  add_tensor_traffic(plan, table);
  if (crosses_network(plan)) {
    table.gap();
    table.line("Network a host: sent a step",
               [&](size_t s) { return bytes_or_dash(most_sent_bytes(plan.stages[s])); });
    table.line("  received a step",
               [&](size_t s) { return bytes_or_dash(most_received_bytes(plan.stages[s])); });
  }
  if (is_offloaded(plan) && plan.on_cuda) {
    table.gap();
    table.line("Host a rank: memory", [&](size_t s) { return bytes_or_dash(rank(s).host_bytes); });
    table.line("  to the device a step", [&](size_t s) { return bytes_or_dash(rank(s).step_up_bytes); });
    table.line("  from it", [&](size_t s) { return bytes_or_dash(rank(s).step_down_bytes); });
  }
  if (is_on_disk(plan)) {
    table.gap();
    table.line("Disk a rank: file", [&](size_t s) { return bytes_or_dash(rank(s).file_bytes); });
    table.line("  read a step", [&](size_t s) { return bytes_or_dash(rank(s).step_read_bytes); });
    table.line("  written a step", [&](size_t s) { return bytes_or_dash(rank(s).step_written_bytes); });
    table.line("Written in 1000 steps, all", [&](size_t s) {
      return bytes_or_dash(rank(s).step_written_bytes * plan.stages[s].ranks * 1000);
    });
  }
  if (plan.memory_bytes) {
    table.gap();
    table.line("Fits " + human_bytes(*plan.memory_bytes),
               [&](size_t s) { return fit(plan.total_bytes(s), *plan.memory_bytes); });
    table.line("Largest model by its states",
               [&](size_t s) { return human_count(*plan.count[s].engine_largest_parameters); });
  }
  return text + table.text() + "\nUnits of stage " + std::to_string(plan.chosen_stage) +
         right("elements each", 46) + right("slab each", 12) + "\n" + unit_lines(chosen) +
         (plan.tiers ? placement_text(plan) : std::string()) + notes(plan);
}

}  // namespace zero
