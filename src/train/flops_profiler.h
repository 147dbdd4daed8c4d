#pragma once
// Floating-point operations, parameters and time of one step, by module: DeepSpeed's flops_profiler, counted
// where the engine sees operators, below autograd, so forward and backward are what was computed.

#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "seam/operator_observer.h"
#include "zero/config.h"
#include "zero/train.h"

namespace zero::training {

/// A module with what is in it, of all micro-batches of a step.
struct ModuleFlops {
  std::string name;                              // "h.0.attn"; "" for the model
  int depth = 0;                                 // the model has 0
  int64_t parameters = 0;                        // whole ones, however they are sharded
  double forward_flops = 0, backward_flops = 0;  // as operator_flops.h counts; a multiply-add is two
  double forward_s = 0, backward_s = 0;          // waiting for parameters included; of a device, the host's
};

/// Watches operators while it lives. An operator belongs to the module whose parameter it reads; one that
/// reads none to the module whose parameter was read last, and in backward to the module of the forward
/// operator whose gradient it computes. What is computed again counts in backward.
class FlopsProfiler : public detail::OperatorObserver {
 public:
  explicit FlopsProfiler(const torch::nn::Module& model);

  /// The model, and every module that has parameters or modules with parameters, each before its own.
  std::vector<ModuleFlops> modules() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Place {
    int64_t end_byte;
    size_t module;
  };

  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;
  void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;
  void add_parameter(const std::string& name, const at::Tensor& parameter);
  size_t module_named(const std::string& name);
  std::optional<size_t> module_of(const at::Tensor& tensor) const;
  size_t module_of_call(std::optional<size_t> read, bool is_backward);

  std::vector<ModuleFlops> own_;  // without what is in them; 0 is the model
  std::unordered_map<std::string, size_t> by_name_;
  // Of each storage, by the first byte of a parameter.
  std::unordered_map<const c10::StorageImpl*, std::map<int64_t, Place>> places_;

  mutable std::mutex mutex_;                      // of what follows, and of times and FLOPs above
  std::unordered_map<uint64_t, size_t> of_node_;  // by a backward node's sequence number
  size_t last_ = 0;
  bool was_backward_ = true;
  Clock::time_point clock_;
  std::optional<detail::ObserveOperators> observe_;  // the last to begin
};

/// The tables that the configuration asks for, each line without its end.
std::string flops_text(const FlopsProfilerConfig& config, const std::vector<ModuleFlops>& modules,
                       const StepReport& report, int ranks);

/// The step that a configuration wants profiled, on the rank that has it.
class ProfiledStep {
 public:
  /// Throws Config where the file that it is to write cannot be one. `first_step`: the last one before the
  /// run begins.
  ProfiledStep(const Config& config, const torch::nn::Module& model, int ranks);

  /// "" or why no step of a run after step `first`, which is over, is profiled.
  std::string never_comes(int64_t first) const;
  /// Around a step's forwards and backwards.
  void begin(int64_t step);
  void end();
  /// What there is to say after the step; writes the file. Throws Io.
  std::string text(const StepReport& report);

 private:
  const FlopsProfilerConfig& config_;
  int64_t steps_;
  const torch::nn::Module& model_;
  int ranks_;
  std::unique_ptr<FlopsProfiler> profiler_;
  std::vector<ModuleFlops> modules_;
};

}  // namespace zero::training
