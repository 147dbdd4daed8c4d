#include "train/breakdown.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "train/text_table.h"
#include "zero/plan_report.h"

namespace zero::training {
namespace {

using Row = TextRow;

std::string ms(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f ms", seconds * 1e3);
  return text;
}

std::string percent(double part, double whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", whole > 0 ? 100 * part / whole : 0.0);
  return text;
}

}  // namespace

void Breakdown::add(const StepReport& report) {
  ++steps_;
  forward_s_ += report.forward_s;
  backward_s_ += report.backward_s;
  optimizer_s_ += report.optimizer_s;
  waited_s_ += report.waited_s;
  step_s_ += report.step_s;
}

std::string Breakdown::times() const {
  const double rest_s = std::max(0.0, step_s_ - forward_s_ - backward_s_ - optimizer_s_);
  std::vector<Row> rows = {{"time of a step, mean of " + std::to_string(steps_), "", ""}};
  const auto row = [&](const char* name, double seconds) {
    rows.push_back({name, ms(seconds / static_cast<double>(steps_)), percent(seconds, step_s_)});
  };
  // A pipeline's forwards and backwards are woven into each other.
  const bool woven = backward_s_ == 0 && forward_s_ > 0;
  row(woven ? "forward and backward" : "forward", forward_s_);
  if (!woven) row("backward", backward_s_);
  row("optimizer", optimizer_s_);
  row("batches, loss, metrics", rest_s);
  row("all", step_s_);
  row("of it waited for other ranks", waited_s_);
  return table_text(rows);
}

std::string Breakdown::tables(const StepReport& last) {
  std::string text;
  if (logging_.wall_clock_breakdown && steps_ > 0) text = times();
  if (logging_.memory_breakdown) text += (text.empty() ? "" : "\n") + memory_table(last);
  *this = Breakdown(logging_);
  return text;
}

std::string memory_table(const StepReport& report) {
  std::vector<Row> rows = {{"memory of rank 0"}};
  for (const Tier tier : kTiers) rows[0].emplace_back(to_string(tier));
  for (const auto& [purpose, bytes] : report.memory.purposes) {
    Row row = {purpose};
    for (const int64_t here : bytes) row.push_back(here == 0 ? "-" : human_bytes(here));
    rows.push_back(std::move(row));
  }
  rows.push_back({"process, now", human_bytes(report.resident_bytes)});
  rows.push_back({"process, at its peak", human_bytes(report.peak_resident_bytes)});
  return table_text(rows);
}

std::string traffic_table(const Mesh& mesh, int64_t steps) {
  std::vector<Row> rows = {
      {"sent by rank " + std::to_string(mesh.rank()), "calls", "elements", "bytes", "bytes a step"}};
  const auto add = [&](const Group& group) {
    if (group.size() == 1) return;
    for (const Operation operation : {Operation::AllGather, Operation::ReduceScatter, Operation::AllReduce,
                                      Operation::Broadcast, Operation::Send, Operation::Receive}) {
      const Traffic traffic = group.traffic(operation);
      if (traffic.calls == 0) continue;
      rows.push_back({group.name() + " " + std::string(to_string(operation)), std::to_string(traffic.calls),
                      human_count(traffic.elements), human_bytes(traffic.bytes),
                      human_bytes(traffic.bytes / std::max<int64_t>(1, steps))});
    }
  };
  for (const Axis& axis : mesh.axes()) add(mesh.group(axis.name));
  if (mesh.axes().size() > 1) add(mesh.world());
  if (rows.size() == 1) return "  nothing was sent: there is one rank";
  return table_text(rows);
}

}  // namespace zero::training
