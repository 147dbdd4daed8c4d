#pragma once
// What a forward depends on beside its inputs, of this thread and of the generators: taken once, put back
// while the forward is repeated.

#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>

#include <memory>
#include <utility>
#include <vector>

#include "seam/dispatch.h"
#include "seam/forward_context.h"

namespace zero::detail {

class ForwardState {
 public:
  /// As it is now: autocast for the CPU and for `devices`, TorchScript's optimiser, our operators, what the
  /// forward runs inside of, and, with `random`, the CPU's default generator and those of `devices`, which
  /// are not the CPU.
  ForwardState(const std::vector<at::Device>& devices, bool random);

  /// While it lives, everything is as the state says; afterwards as before.
  class Scope {
   public:
    explicit Scope(const ForwardState& state);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    struct Before;
    std::unique_ptr<Before> before_;
  };

 private:
  struct Autocast {
    at::DeviceType device;
    bool is_on;
    at::ScalarType dtype;
  };
  using RandomStates = std::vector<std::pair<at::Generator, at::Tensor>>;

  static Autocast autocast_now(at::DeviceType device);
  static void set(const std::vector<Autocast>& autocasts, bool caches);
  static void set(const RandomStates& states);
  static at::Tensor state_of(at::Generator generator);

  std::vector<Autocast> autocasts_;
  bool autocast_caches_;
  bool optimises_graphs_;
  bool is_intercepted_;
  OwnKernels kernels_;
  ForwardContexts contexts_;
  RandomStates random_states_;
};

}  // namespace zero::detail
