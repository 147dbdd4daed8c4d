// The FLOPs profiler's tables.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "train/flops_profiler.h"
#include "train/text_table.h"
#include "zero/plan_report.h"

namespace zero::training {
namespace {

std::string count(double value) { return human_count(std::llround(value)); }
std::string rate(double flops, double seconds) { return seconds > 0 ? count(flops / seconds) : "-"; }
std::string ms(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f ms", seconds * 1e3);
  return text.data();
}
std::string percent(double part, double whole) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", whole > 0 ? 100 * part / whole : 0.0);
  return text.data();
}

std::string shown_name(const ModuleFlops& module) { return module.name.empty() ? "model" : module.name; }

// In the order of the tree: modules were made as their parameters came.
std::vector<const ModuleFlops*> in_order(const std::vector<ModuleFlops>& modules) {
  std::vector<const ModuleFlops*> order;
  const auto visit = [&](const auto& self, const ModuleFlops& module) -> void {
    order.push_back(&module);
    const std::string prefix = module.name.empty() ? "" : module.name + ".";
    for (const ModuleFlops& inner : modules)
      if (inner.depth == module.depth + 1 && inner.name.starts_with(prefix)) self(self, inner);
  };
  visit(visit, modules.front());
  return order;
}

std::vector<TextRow> totals(const ModuleFlops& model, const StepReport& report) {
  const double flops = model.forward_flops + model.backward_flops;
  const double seconds = model.forward_s + model.backward_s;
  return {{"pass", "FLOPs", "MACs", "time", "FLOP/s"},
          {"forward", count(model.forward_flops), count(model.forward_flops / 2), ms(model.forward_s),
           rate(model.forward_flops, model.forward_s)},
          {"backward", count(model.backward_flops), count(model.backward_flops / 2), ms(model.backward_s),
           rate(model.backward_flops, model.backward_s)},
          {"both", count(flops), count(flops / 2), ms(seconds), rate(flops, seconds)},
          {"step", count(flops), count(flops / 2), ms(report.step_s), rate(flops, report.step_s)}};
}

// Of each depth, the modules that have the most.
std::vector<TextRow> top_modules(const FlopsProfilerConfig& config, const std::vector<ModuleFlops>& modules,
                                 int deepest) {
  std::vector<TextRow> rows = {{"most at depth", "parameters", "forward FLOPs", "forward time"}};
  for (int depth = 0; depth <= deepest; ++depth) {
    std::vector<const ModuleFlops*> here;
    for (const ModuleFlops& module : modules)
      if (module.depth == depth) here.push_back(&module);
    const auto most = [&](auto value) {
      std::stable_sort(here.begin(), here.end(),
                       [&](const auto* a, const auto* b) { return value(*a) > value(*b); });
      return std::vector<const ModuleFlops*>(
          here.begin(), here.begin() + std::min<int64_t>(config.top_modules, std::ssize(here)));
    };
    const auto parameters = most([](const ModuleFlops& m) { return static_cast<double>(m.parameters); });
    const auto flops = most([](const ModuleFlops& m) { return m.forward_flops; });
    const auto seconds = most([](const ModuleFlops& m) { return m.forward_s; });
    for (size_t i = 0; i < parameters.size(); ++i)
      rows.push_back({i == 0 ? std::to_string(depth) : "",
                      shown_name(*parameters[i]) + " " + human_count(parameters[i]->parameters),
                      shown_name(*flops[i]) + " " + count(flops[i]->forward_flops),
                      shown_name(*seconds[i]) + " " + ms(seconds[i]->forward_s)});
  }
  return rows;
}

std::vector<TextRow> all_modules(const std::vector<ModuleFlops>& modules, int deepest) {
  const ModuleFlops& model = modules.front();
  std::vector<TextRow> rows = {{"module", "parameters", "forward FLOPs", "of all", "time", "of all", "FLOP/s",
                                "backward FLOPs", "time"}};
  for (const ModuleFlops* module : in_order(modules)) {
    if (module->depth > deepest) continue;
    rows.push_back({std::string(static_cast<size_t>(module->depth), ' ') + shown_name(*module),
                    human_count(module->parameters), count(module->forward_flops),
                    percent(module->forward_flops, model.forward_flops), ms(module->forward_s),
                    percent(module->forward_s, model.forward_s),
                    rate(module->forward_flops, module->forward_s), count(module->backward_flops),
                    ms(module->backward_s)});
  }
  return rows;
}

}  // namespace

std::string flops_text(const FlopsProfilerConfig& config, const std::vector<ModuleFlops>& modules,
                       const StepReport& report, int ranks) {
  int deepest = 0;
  for (const ModuleFlops& module : modules) deepest = std::max(deepest, module.depth);
  if (config.module_depth >= 0) deepest = static_cast<int>(std::min<int64_t>(deepest, config.module_depth));
  std::string text = "FLOPs of step " + std::to_string(report.step) + " on rank 0 of " +
                     std::to_string(ranks) + ", " + human_count(modules.front().parameters) +
                     " parameters\n" + table_text(totals(modules.front(), report)) + "\n" +
                     table_text(top_modules(config, modules, deepest));
  if (config.detailed) text += "\n" + table_text(all_modules(modules, deepest));
  return text;
}

}  // namespace zero::training
