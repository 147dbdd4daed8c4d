#include "optim/fused_operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <vector>

#include "base/cuda_plugin.h"
#include "base/plugin.h"
#include "optim/kernel_passes.h"

namespace zero::fused_operators {
namespace {

using Parameter = std::optional<at::Tensor>;

ShardSegment whole(const at::Tensor& flat) {
  ShardSegment segment;
  segment.end = flat.numel();
  return segment;
}

void update_on_cpu(int64_t rule, at::Tensor master, const at::Tensor& gradient, Parameter parameter,
                   at::TensorList states, const at::Tensor& scalars) {
  const RuleMemory memory = memory_of(master, gradient, parameter, states);
  with_rule(rule, [&](const auto& known) {
    using Rule = std::decay_t<decltype(known)>;
    const auto row = read_row<Rule>(scalars);
    if (row.is_active) kernel_passes::update<Rule>(memory, whole(master), row.scalars);
  });
}

at::Tensor direction_on_cpu(int64_t rule, const at::Tensor& master, const at::Tensor& gradient,
                            const Parameter& parameter, at::TensorList states, const at::Tensor& scalars) {
  const RuleMemory memory = memory_of(master, gradient, parameter, states);
  at::Tensor partials;
  with_rule(rule, [&](const auto& known) {
    using Rule = std::decay_t<decltype(known)>;
    constexpr int kSums = kernels::Arithmetic<Rule>::kSums;
    if constexpr (kSums > 0) {
      const auto row = read_row<Rule>(scalars);
      partials = row.is_active
                     ? kernel_passes::direction_partials<Rule>(memory, 0, master.numel(), row.scalars)
                     : at::zeros({rule_blocks_of(master.numel()), kSums}, at::kDouble);
    }
  });
  TORCH_CHECK(partials.defined(), "zero::rule_direction: rule number ", rule, " has no sums");
  return partials;
}

at::Tensor ordered_totals_on_cpu(const at::Tensor& partials, const at::Tensor& ends) {
  const int64_t sums = partials.size(1);
  const at::Tensor totals = at::empty({ends.numel(), sums}, at::kDouble);
  const auto* const values = partials.const_data_ptr<double>();
  const auto* const stops = ends.const_data_ptr<int64_t>();
  auto* const found = totals.mutable_data_ptr<double>();
  for (int64_t piece = 0; piece < ends.numel(); ++piece)
    for (int64_t sum = 0; sum < sums; ++sum)
      found[piece * sums + sum] =
          kernels::ordered_total(values + sum, piece == 0 ? 0 : stops[piece - 1], stops[piece], sums);
  return totals;
}

at::Tensor exact_totals_on_cpu(const at::Tensor& partials, const at::Tensor& ends) {
  const int64_t sums = partials.size(1);
  const at::Tensor totals = at::empty({ends.numel(), sums * kernels::kDigits}, at::kDouble);
  const auto* const values = partials.const_data_ptr<double>();
  const auto* const stops = ends.const_data_ptr<int64_t>();
  auto* const found = totals.mutable_data_ptr<double>();
  for (int64_t piece = 0; piece < ends.numel(); ++piece)
    for (int64_t sum = 0; sum < sums; ++sum)
      kernels::exact_total(values + sum, piece == 0 ? 0 : stops[piece - 1], stops[piece], sums,
                           found + (piece * sums + sum) * kernels::kDigits);
  return totals;
}

/// use(row, parameter) for each row of the table, which is written back.
template <class Rule, class Use>
void change_rows(const at::Tensor& table, const at::Tensor& parameters, Use use) {
  for (int64_t r = 0; r < table.size(0); ++r) {
    const at::Tensor bytes = table.select(0, r);
    auto row = read_row<Rule>(bytes);
    use(row, parameters.const_data_ptr<int64_t>()[r]);
    write_row<Rule>(row, bytes);
  }
}

void decide_on_cpu(int64_t rule, at::Tensor table, const at::Tensor& parameters,
                   const at::Tensor& squared_norm, const at::Tensor& used, double gradient_scale,
                   double max_norm) {
  const kernels::StepDecision step{*squared_norm.const_data_ptr<double>(), gradient_scale, max_norm};
  with_rule(rule, [&](const auto& known) {
    using Rule = std::decay_t<decltype(known)>;
    change_rows<Rule>(table, parameters, [&](auto& row, int64_t parameter) {
      kernels::decide(row, step, used.const_data_ptr<double>()[parameter]);
    });
  });
}

void apply_sums_on_cpu(int64_t rule, at::Tensor table, const at::Tensor& parameters, const at::Tensor& sums) {
  with_rule(rule, [&](const auto& known) {
    using Rule = std::decay_t<decltype(known)>;
    using Arithmetic = kernels::Arithmetic<Rule>;
    if constexpr (Arithmetic::kSums > 0)
      change_rows<Rule>(table, parameters, [&](auto& row, int64_t parameter) {
        kernels::apply_digits(
            row, sums.const_data_ptr<double>() + parameter * Arithmetic::kSums * kernels::kDigits);
      });
  });
}

at::Tensor sums_of_squares_on_cpu(const at::Tensor& values) { return kernel_passes::sums_of_squares(values); }

// Shapes only, for simulations.
at::Tensor direction_on_meta(int64_t rule, const at::Tensor& master, const at::Tensor&, const Parameter&,
                             at::TensorList, const at::Tensor&) {
  int64_t sums = 0;
  with_rule(rule,
            [&](const auto& known) { sums = kernels::Arithmetic<std::decay_t<decltype(known)>>::kSums; });
  return at::empty({rule_blocks_of(master.numel()), sums}, master.options().dtype(at::kDouble));
}

at::Tensor sums_of_squares_on_meta(const at::Tensor& values) {
  return at::empty({sum_blocks_of(values.numel())}, values.options().dtype(at::kDouble));
}

at::Tensor ordered_totals_on_meta(const at::Tensor& partials, const at::Tensor& ends) {
  return at::empty({ends.numel(), partials.size(1)}, partials.options());
}

at::Tensor exact_totals_on_meta(const at::Tensor& partials, const at::Tensor& ends) {
  return at::empty({ends.numel(), partials.size(1) * kernels::kDigits}, partials.options());
}

// Defined when they are first needed, for as long as the process lives: the dispatcher has no other scope.
struct Operators {
  Operators() : library(torch::Library::DEF, "zero", std::nullopt, __FILE__, __LINE__) {
    library.def(
        "rule_update(int rule, Tensor(a!) master, Tensor gradient, Tensor(b!)? parameter, "
        "Tensor(c!)[] states, Tensor scalars) -> ()");
    library.def(
        "rule_direction(int rule, Tensor master, Tensor gradient, Tensor? parameter, "
        "Tensor(a!)[] states, Tensor scalars) -> Tensor");
    library.def("sums_of_squares(Tensor values) -> Tensor");
    library.def("ordered_totals(Tensor partials, Tensor ends) -> Tensor");
    library.def("exact_totals(Tensor partials, Tensor ends) -> Tensor");
    library.def(
        "rule_decide(int rule, Tensor(a!) rows, Tensor parameters, Tensor squared_norm, Tensor used, "
        "float gradient_scale, float max_norm) -> ()");
    library.def("rule_apply_sums(int rule, Tensor(a!) rows, Tensor parameters, Tensor sums) -> ()");
    library.impl("rule_update", c10::DispatchKey::CPU, TORCH_FN(update_on_cpu));
    library.impl("rule_direction", c10::DispatchKey::CPU, TORCH_FN(direction_on_cpu));
    library.impl("sums_of_squares", c10::DispatchKey::CPU, TORCH_FN(sums_of_squares_on_cpu));
    library.impl("rule_direction", c10::DispatchKey::Meta, TORCH_FN(direction_on_meta));
    library.impl("sums_of_squares", c10::DispatchKey::Meta, TORCH_FN(sums_of_squares_on_meta));
    library.impl("ordered_totals", c10::DispatchKey::Meta, TORCH_FN(ordered_totals_on_meta));
    library.impl("ordered_totals", c10::DispatchKey::CPU, TORCH_FN(ordered_totals_on_cpu));
    library.impl("exact_totals", c10::DispatchKey::Meta, TORCH_FN(exact_totals_on_meta));
    library.impl("exact_totals", c10::DispatchKey::CPU, TORCH_FN(exact_totals_on_cpu));
    library.impl("rule_decide", c10::DispatchKey::CPU, TORCH_FN(decide_on_cpu));
    library.impl("rule_apply_sums", c10::DispatchKey::CPU, TORCH_FN(apply_sums_on_cpu));
    const auto find = [](const char* name) {
      return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    };
    update = find("zero::rule_update").typed<decltype(update_on_cpu)>();
    direction = find("zero::rule_direction").typed<decltype(direction_on_cpu)>();
    squares = find("zero::sums_of_squares").typed<decltype(sums_of_squares_on_cpu)>();
    totals = find("zero::ordered_totals").typed<decltype(ordered_totals_on_cpu)>();
    exact_totals = find("zero::exact_totals").typed<decltype(exact_totals_on_cpu)>();
    decide = find("zero::rule_decide").typed<decltype(decide_on_cpu)>();
    apply_sums = find("zero::rule_apply_sums").typed<decltype(apply_sums_on_cpu)>();
  }

  torch::Library library;
  std::optional<c10::TypedOperatorHandle<decltype(update_on_cpu)>> update;
  std::optional<c10::TypedOperatorHandle<decltype(direction_on_cpu)>> direction;
  std::optional<c10::TypedOperatorHandle<decltype(sums_of_squares_on_cpu)>> squares;
  std::optional<c10::TypedOperatorHandle<decltype(ordered_totals_on_cpu)>> totals;
  std::optional<c10::TypedOperatorHandle<decltype(exact_totals_on_cpu)>> exact_totals;
  std::optional<c10::TypedOperatorHandle<decltype(decide_on_cpu)>> decide;
  std::optional<c10::TypedOperatorHandle<decltype(apply_sums_on_cpu)>> apply_sums;
};

const Operators& operators() {
  static const Operators all;
  return all;
}

bool load_cuda() {
  static const detail::PluginFunction loaded =
      detail::load_plugin(kCudaPlugin, kCudaOptimizerKernels, detail::PluginScope::Shared);
  if (!loaded.function) return false;
  static const bool registered = (reinterpret_cast<CudaRegister*>(loaded.function)(), true);
  return registered;
}

// A part of a segment's tensors, as views.
struct Views {
  Views(const RuleMemory& memory, int64_t begin, int64_t end)
      : master(memory.master.slice(0, begin, end)), gradient(memory.gradient.slice(0, begin, end)) {
    if (memory.parameter.defined()) parameter = memory.parameter.slice(0, begin, end);
    for (const at::Tensor& state : memory.states) states.push_back(state.slice(0, begin, end));
  }
  at::Tensor master, gradient;
  Parameter parameter;
  std::vector<at::Tensor> states;
};

}  // namespace

RuleMemory memory_of(const at::Tensor& master, const at::Tensor& gradient,
                     const std::optional<at::Tensor>& parameter, at::TensorList states) {
  RuleMemory memory;
  memory.master = master;
  memory.gradient = gradient;
  memory.parameter = parameter.value_or(at::Tensor());
  memory.states = states.vec();
  return memory;
}

bool exist_for(c10::Device device) {
  operators();
  if (device.is_cuda()) return load_cuda();
  const c10::DispatchKey key = c10::computeDispatchKey(std::nullopt, std::nullopt, device);
  return device.is_cpu() || c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key);
}

void update(int64_t rule, const RuleMemory& memory, const ShardSegment& segment, const at::Tensor& row) {
  const Views of(memory, segment.begin, segment.end);
  operators().update->call(rule, of.master, of.gradient, of.parameter, of.states, row);
}

at::Tensor direction(int64_t rule, const RuleMemory& memory, int64_t begin, int64_t end,
                     const at::Tensor& row) {
  const Views of(memory, begin, end);
  return operators().direction->call(rule, of.master, of.gradient, of.parameter, of.states, row);
}

at::Tensor sums_of_squares(const at::Tensor& values) { return operators().squares->call(values); }

at::Tensor ordered_totals(const at::Tensor& partials, const at::Tensor& ends) {
  return operators().totals->call(partials, ends);
}

at::Tensor exact_totals(const at::Tensor& partials, const at::Tensor& ends) {
  return operators().exact_totals->call(partials, ends);
}

void decide(int64_t rule, const Rows& rows, const at::Tensor& squared_norm, const at::Tensor& used,
            double gradient_scale, double max_norm) {
  operators().decide->call(rule, rows.table, rows.parameters, squared_norm, used, gradient_scale, max_norm);
}

void apply_sums(int64_t rule, const Rows& rows, const at::Tensor& sums) {
  operators().apply_sums->call(rule, rows.table, rows.parameters, sums);
}

}  // namespace zero::fused_operators
