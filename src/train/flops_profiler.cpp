#include "train/flops_profiler.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>

#include "base/output_file.h"
#include "compute/operator_flops.h"
#include "seam/stack_tensors.h"
#include "zero/error.h"

namespace zero::training {
namespace {

// Of the operator that this thread is in.
struct Call {
  FlopsRule rule = FlopsRule::None;
  std::vector<at::Tensor> operands;  // where it counts
  size_t module = 0;
  bool is_backward = false;
};
thread_local Call call_of_thread;

std::string parent_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

bool begins_as_profile(std::string_view head) { return head.starts_with("FLOPs of step "); }
constexpr OutputKind kProfile{"a FLOPs profile", begins_as_profile};

}  // namespace

FlopsProfiler::FlopsProfiler(const torch::nn::Module& model) : own_(1), by_name_{{"", 0}} {
  for (const auto& parameter : model.named_parameters()) add_parameter(parameter.key(), parameter.value());
  observe_.emplace(*this);
}

size_t FlopsProfiler::module_named(const std::string& name) {
  if (const auto known = by_name_.find(name); known != by_name_.end()) return known->second;
  const int depth = own_[module_named(parent_of(name))].depth + 1;
  own_.push_back({.name = name, .depth = depth});
  return by_name_[name] = own_.size() - 1;
}

void FlopsProfiler::add_parameter(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.defined() || !parameter.has_storage()) return;  // another stage's
  const size_t module = module_named(parent_of(name));
  own_[module].parameters += parameter.numel();
  const auto item_bytes = static_cast<int64_t>(parameter.itemsize());
  const int64_t begin_byte = parameter.storage_offset() * item_bytes;
  places_[parameter.storage().unsafeGetStorageImpl()][begin_byte] = {
      begin_byte + parameter.numel() * item_bytes, module};
}

std::optional<size_t> FlopsProfiler::module_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
  const auto storage = places_.find(tensor.storage().unsafeGetStorageImpl());
  if (storage == places_.end()) return std::nullopt;
  const int64_t byte = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  auto behind = storage->second.upper_bound(byte);
  if (behind == storage->second.begin()) return std::nullopt;
  const Place& place = std::prev(behind)->second;
  return byte < place.end_byte ? std::optional(place.module) : std::nullopt;
}

// Autograd makes an operator's node before it calls the kernel, with the next sequence number of the thread.
size_t FlopsProfiler::module_of_call(std::optional<size_t> read, bool is_backward) {
  const auto node = torch::autograd::get_current_node();
  const bool computes_gradient = is_backward && !c10::GradMode::is_enabled();
  if (computes_gradient) {
    const auto known = of_node_.find(node->sequence_nr());
    if (known != of_node_.end()) return last_ = known->second;
  }
  if (read) last_ = *read;
  if (!computes_gradient) {
    const auto [place, added] = of_node_.try_emplace(at::sequence_number::peek() - 1, last_);
    if (!added && read) place->second = last_;
  }
  return last_;
}

void FlopsProfiler::before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  Call& call = call_of_thread;
  call.rule = flops_rule(op.schema().name());
  call.operands.clear();
  call.is_backward = torch::autograd::get_current_node() != nullptr;
  std::optional<size_t> read;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i)
    detail::for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (!read) read = module_of(tensor);
      if (call.rule != FlopsRule::None && tensor.defined()) call.operands.push_back(tensor);
    });
  const std::lock_guard lock(mutex_);
  // Between micro-batches nothing of the model is computed.
  if (was_backward_ && !call.is_backward) {
    clock_ = Clock::now();
    last_ = 0;
  }
  was_backward_ = call.is_backward;
  call.module = module_of_call(read, call.is_backward);
}

void FlopsProfiler::after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  Call& call = call_of_thread;
  double flops = 0;
  if (call.rule != FlopsRule::None && !op.schema().returns().empty()) {
    const c10::IValue& first = stack[stack.size() - op.schema().returns().size()];
    const at::Tensor result = first.isTensor() ? first.toTensor() : at::Tensor();
    if (result.defined() || call.rule != FlopsRule::Convolution)
      flops = flops_of(call.rule, call.operands, result);
  }
  call.operands.clear();
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  ModuleFlops& module = own_[call.module];
  (call.is_backward ? module.backward_flops : module.forward_flops) += flops;
  (call.is_backward ? module.backward_s : module.forward_s) +=
      std::chrono::duration<double>(now - clock_).count();
  clock_ = now;
}

std::vector<ModuleFlops> FlopsProfiler::modules() const {
  const std::lock_guard lock(mutex_);
  std::vector<ModuleFlops> sums = own_;
  // A module is made after the one that it is in.
  for (size_t i = sums.size() - 1; i > 0; --i) {
    ModuleFlops& outer = sums[by_name_.at(parent_of(sums[i].name))];
    outer.parameters += sums[i].parameters;
    outer.forward_flops += sums[i].forward_flops;
    outer.backward_flops += sums[i].backward_flops;
    outer.forward_s += sums[i].forward_s;
    outer.backward_s += sums[i].backward_s;
  }
  return sums;
}

ProfiledStep::ProfiledStep(const Config& config, const torch::nn::Module& model, int ranks)
    : config_(config.logging.flops), steps_(config.run.steps), model_(model), ranks_(ranks) {
  if (!config_.enabled || config_.output_file.empty()) return;
  const std::filesystem::path path = config_.output_file;
  std::error_code error;
  require(path.parent_path().empty() || std::filesystem::is_directory(path.parent_path(), error),
          ErrorKind::Config, config.place("flops_profiler.output_file"),
          "flops_profiler.output_file: expected a file in a directory that exists, got " + path.string(),
          "make the directory");
  require_replaceable(path, kProfile);
}

std::string ProfiledStep::never_comes(int64_t first) const {
  if (!config_.enabled || (config_.profile_step > first && config_.profile_step <= steps_)) return {};
  return "flops_profiler: no step is profiled: profile_step is " + std::to_string(config_.profile_step) +
         ", and the steps of this run are " + std::to_string(first + 1) + " to " + std::to_string(steps_);
}

void ProfiledStep::begin(int64_t step) {
  if (config_.enabled && step == config_.profile_step) profiler_ = std::make_unique<FlopsProfiler>(model_);
}

void ProfiledStep::end() {
  if (!profiler_) return;
  modules_ = profiler_->modules();
  profiler_.reset();
}

std::string ProfiledStep::text(const StepReport& report) {
  if (modules_.empty()) return {};
  const std::string text = flops_text(config_, modules_, report, ranks_);
  modules_.clear();
  if (config_.output_file.empty()) return text;
  require_replaceable(config_.output_file, kProfile);
  replace_file(config_.output_file, text + "\n");
  return "wrote the FLOPs of step " + std::to_string(report.step) + " to " + config_.output_file;
}

}  // namespace zero::training
