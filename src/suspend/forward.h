#pragma once
// Stages of a module whose forward is one function: every stage runs it, computes the operators of its own
// units, and of others' the shapes alone. (PiPPy and torch.distributed.pipelining cut a traced graph
// instead.)

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "suspend/pass.h"

namespace zero::detail {

/// Where random numbers stand, on the host and on the device.
class RandomPlace {
 public:
  /// Now.
  explicit RandomPlace(at::Device device);
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

class SuspendedForward {
 public:
  /// The scalar loss of micro-batch `index`.
  using Whole = std::function<at::Tensor(int index)>;
  /// Units of each stage, from their costs: as many counts as stages.
  using Counts = std::function<std::vector<int64_t>(const std::vector<double>& costs)>;

  /// Traces `example(0)`; draws nothing. `by_hand`: the units are in the order in which the forward uses
  /// them, which is checked; others are put in that order. Throws as Sources do, Config for units that come
  /// in another order, Unsupported for what only values could tell.
  SuspendedForward(const torch::nn::Module& module, const Whole& example,
                   std::vector<std::vector<std::string>> units, bool by_hand, const Counts& counts,
                   int stages, at::Device device);

  /// Names of the parameters and buffers that each stage reads, and of its units' others.
  const std::vector<std::vector<std::string>>& names_of_stages() const { return names_; }
  /// What floating parameters and buffers are computed in.
  void set_dtypes(std::optional<at::ScalarType> parameters, std::optional<at::ScalarType> buffers);

  /// What run() calls from here on. Micro-batches draw the numbers that one process would draw that runs them
  /// in order from where the generators stand now, or, where each stage's begins are set (`seeded`), those of
  /// a whole forward from there. Losses are scalars; other results (`any_shape`) may have any shape.
  void begin(Whole whole, bool seeded, bool any_shape = false);
  bool has_begun() const { return whole_ != nullptr; }
  /// The part of `stage`: from what crosses to it to what crosses from it, or the loss. Micro-batches of a
  /// stage come in order.
  std::vector<at::Tensor> run(int stage, const std::vector<at::Tensor>& incoming, int index);
  /// Leaves the generators where one process would.
  void end(int micro_batches);
  void abandon();

 private:
  struct Traced {
    Trace trace;
    std::vector<StageCut> cuts;
    int last_random = -1;  // operator
  };
  const Traced& traced(int index);
  Trace trace(const Whole& whole, int index);
  std::vector<int> first_uses(const Trace& trace) const;
  void name_stages(const Trace& trace);
  void require_held(const Trace& trace, const std::vector<StageCut>& cuts) const;
  std::vector<at::Tensor> checked(const Traced& found, int stage,
                                  const std::vector<at::Tensor>& incoming) const;

  ForwardShapes shared_;
  int stages_;
  std::vector<int> stage_of_unit_;
  std::vector<std::vector<std::string>> names_;
  std::vector<std::vector<bool>> held_;  // by stage and source
  Whole whole_;
  bool seeded_ = false, any_shape_ = false;
  std::map<int, Traced> traced_;       // by micro-batch
  std::map<int, RandomPlace> begins_;  // by micro-batch, as far as they are known
};

}  // namespace zero::detail
