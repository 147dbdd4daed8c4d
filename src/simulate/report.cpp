// What a simulation found, as a table and as JSON.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "simulate/simulate.h"
#include "zero/plan_report.h"

namespace zero::simulate {
namespace {

using ReportJson = nlohmann::ordered_json;

constexpr size_t kNameColumns = 30, kFigureColumns = 14;
constexpr double kNanosecondsOfSecond = 1e9, kNanosecondsOfMillisecond = 1e6;

std::string padded_left(const std::string& text, size_t columns) {
  return std::string(columns - std::min(columns, text.size()), ' ') + text;
}
std::string padded_right(const std::string& text, size_t columns) {
  return text + std::string(columns - std::min(columns, text.size()), ' ');
}

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string digits_of(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string milliseconds(double ns) { return digits_of(ns / kNanosecondsOfMillisecond, "%.3f ms"); }
std::string share(double part, double whole) {
  return whole > 0 ? digits_of(100 * part / whole, "%.1f %%") : "-";
}

std::string line(const std::string& name, const std::string& figure, const std::string& remark = {}) {
  std::string text = padded_right(name, kNameColumns) + padded_left(figure, kFigureColumns);
  if (!remark.empty()) text += "   " + remark;
  return text + "\n";
}

double tokens_per_s(const Simulation& simulation) {
  return static_cast<double>(simulation.tokens) / (simulation.step.step_ns / kNanosecondsOfSecond);
}

std::string head(const Simulation& simulation, const SimulateOptions& options) {
  const Plan& plan = simulation.step.plan;
  const int of_host = options.network.ranks_per_host;
  const int hosts = (options.ranks + of_host - 1) / of_host;
  std::string text = simulation.model + ": " + with_commas(simulation.parameters) + " parameters; " +
                     simulation.types + "\nrank " + std::to_string(options.rank) + " of " +
                     with_commas(options.ranks) + " on " + with_commas(hosts) +
                     (hosts == 1 ? " host" : " hosts") + ", stage " + std::to_string(plan.stage);
  if (plan.replica_ranks > 1 && plan.shard_ranks > 1)
    text += " in shard groups of " + std::to_string(plan.shard_ranks);
  return text + ", " + with_commas(plan.accumulation_steps) +
         (plan.accumulation_steps == 1 ? " micro-batch" : " micro-batches") + " a step, on " +
         options.device.name + "\n\n";
}

std::string times(const Simulation& simulation) {
  const StepFigures& step = simulation.step;
  return line("Step", milliseconds(step.step_ns),
              digits_of(tokens_per_s(simulation), "%.0f tokens/s over all ranks, ") +
                  digits_of(step.flops / step.step_ns / 1000, "%.1f TFLOP/s here")) +
         line("  kernels", milliseconds(step.compute_ns),
              share(step.compute_ns, step.step_ns) + " of the step, " + with_commas(step.kernels) +
                  " launches") +
         line("  communication", milliseconds(step.communication_ns),
              milliseconds(step.exposed_ns) + " of it exposed (no kernel runs)") +
         line("  copies to and from the host", milliseconds(step.copies_ns),
              human_bytes(static_cast<int64_t>(step.copied_in_bytes)) + " to the device, " +
                  human_bytes(static_cast<int64_t>(step.copied_out_bytes)) + " back, " +
                  with_commas(step.host_reads) + " reads by the host") +
         "\n";
}

std::string memory(const Simulation& simulation, const SimulateOptions& options) {
  const virtual_device::DeviceReport& held = simulation.step.memory;
  const int64_t capacity = options.memory_bytes.value_or(options.device.memory_bytes);
  std::string text = line("Memory at the peak", human_bytes(held.peak_bytes),
                          share(static_cast<double>(held.peak_bytes), static_cast<double>(capacity)) +
                              " of " + human_bytes(capacity) + "; " +
                              human_bytes(simulation.step.used_before_bytes) + " before the first step");
  std::vector<std::pair<int64_t, std::string>> purposes;
  for (const auto& [purpose, bytes] : held.peak_by_purpose) purposes.emplace_back(bytes, purpose);
  std::sort(purposes.rbegin(), purposes.rend());
  for (const auto& [bytes, purpose] : purposes) text += line("  " + purpose, human_bytes(bytes));
  return text + "\n";
}

std::string traffic(const Simulation& simulation) {
  std::string text;
  for (const auto& [operation, sum] : simulation.step.traffic)
    if (sum.calls > 0)
      text += line("  " + std::string(to_string(operation)), human_bytes(sum.bytes),
                   with_commas(sum.calls) + (sum.calls == 1 ? " call, " : " calls, ") +
                       human_count(sum.elements) + " elements");
  return text.empty() ? "" : "Collectives of a step, full tensors, an all_reduce twice\n" + text + "\n";
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string touch_line(const Touch& touch) {
  std::string text = "  " + padded_right(touch.unit, kNameColumns - 2);
  if (!touch.fetched.empty()) text += "  fetches " + joined(touch.fetched);
  if (!touch.evicted.empty()) text += std::string("  evicts ") + joined(touch.evicted);
  return text + "\n";
}

// The beginning and the end of what is long.
std::string order(const Simulation& simulation) {
  constexpr size_t kFirst = 8, kLast = 4;
  const std::vector<Touch>& schedule = simulation.schedule;
  std::string text = "Units in the order of their use (" + std::to_string(schedule.size()) + ")\n";
  for (size_t i = 0; i < schedule.size(); ++i) {
    const bool is_left_out =
        schedule.size() > kFirst + kLast + 1 && i >= kFirst && i + kLast < schedule.size();
    if (!is_left_out)
      text += touch_line(schedule[i]);
    else if (i == kFirst)
      text += "  ... (" + std::to_string(schedule.size() - kFirst - kLast) + " more: --json)\n";
  }
  return text;
}

}  // namespace

std::string to_text(const Simulation& simulation, const SimulateOptions& options) {
  return head(simulation, options) + times(simulation) + memory(simulation, options) + traffic(simulation) +
         order(simulation);
}

std::string to_json(const Simulation& simulation, const SimulateOptions& options) {
  const StepFigures& step = simulation.step;
  ReportJson traffic_json = ReportJson::object(), schedule = ReportJson::array();
  for (const auto& [operation, sum] : step.traffic)
    traffic_json[std::string(to_string(operation))] = {
        {"calls", sum.calls}, {"elements", sum.elements}, {"bytes", sum.bytes}};
  for (const Touch& touch : simulation.schedule)
    schedule.push_back({{"unit", touch.unit}, {"evicts", touch.evicted}, {"fetches", touch.fetched}});
  const ReportJson document = {{"model", simulation.model},
                               {"types", simulation.types},
                               {"parameters", simulation.parameters},
                               {"ranks", options.ranks},
                               {"rank", options.rank},
                               {"ranks_per_host", options.network.ranks_per_host},
                               {"stage", step.plan.stage},
                               {"device", options.device.name},
                               {"step_ns", step.step_ns},
                               {"kernels_ns", step.compute_ns},
                               {"communication_ns", step.communication_ns},
                               {"exposed_ns", step.exposed_ns},
                               {"copies_ns", step.copies_ns},
                               {"copied_in_bytes", step.copied_in_bytes},
                               {"copied_out_bytes", step.copied_out_bytes},
                               {"tokens", simulation.tokens},
                               {"tokens_per_s", tokens_per_s(simulation)},
                               {"flops", step.flops},
                               {"kernels", step.kernels},
                               {"host_reads", step.host_reads},
                               {"memory_bytes", options.memory_bytes.value_or(options.device.memory_bytes)},
                               {"peak_bytes", step.memory.peak_bytes},
                               {"peak_bytes_by_purpose", step.memory.peak_by_purpose},
                               {"before_first_step_bytes", step.used_before_bytes},
                               {"all_gather_elements", step.all_gather_elements},
                               {"reduce_scatter_elements", step.reduce_scatter_elements},
                               {"all_reduce_elements", step.all_reduce_elements},
                               {"collectives", traffic_json},
                               {"schedule", schedule}};
  return document.dump(2) + "\n";
}

}  // namespace zero::simulate
