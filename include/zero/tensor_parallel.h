#pragma once
// Tensor and sequence parallelism of modules that do not know of it: each rank of the mesh's "tp" axis holds
// its part of the parameters, computes its part of the activations, and sees the sizes of the whole.
//
//   zero::TensorParallelPlan plan{
//       {"*.up.*", "colwise"}, {"*.down.weight", "rowwise"}, {"embed.weight", "vocab"}};
//   auto parallel = zero::parallelize(*model, plan, mesh);
//   zero::EngineOptions options{.stage = 3};
//   parallel.add_to(options);
//   zero::Engine engine(*model, zero::AdamW{}, options, mesh);
//   auto loss = engine.forward([&] { return parallel.forward([&] { return model->loss(batch); }); });
//
// All ranks of the axis run the same operators in the same order, with the same random state: dropout draws
// what one process draws. Results agree with one process to rounding. Operators for which there is no rule
// are computed by all ranks of gathered tensors, which is right and costs what it costs; report() tells.
// (Shoeybi et al. 2019, arXiv 1909.08053; Korthikanti et al. 2022, arXiv 2205.05198.)

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zero/engine_options.h"
#include "zero/mesh.h"

namespace torch::nn {
class Module;
}

namespace zero {

namespace detail {
class TensorAxis;
struct MarkedParameters;
}  // namespace detail

/// How parameters are held whose name matches a glob (ParameterGroup's):
///
/// - "colwise": outputs are cut: dim 0 of a Linear's weight and bias; "colwise[HEADS]": between so many
///   heads, of which ranks hold unequal numbers where they do not divide them;
/// - "colwise_t": the same of a weight [in, out], as GPT-2's Conv1D has it: dim 1, of a bias dim 0;
/// - "rowwise", "rowwise_t", and with [HEADS]: inputs are cut: dim 1, of a weight [in, out] dim 0. A bias is
///   not named: it is added to the sum, once;
/// - "vocab": rows of an embedding or head are cut, as evenly as they can be;
/// - "kv[HEADS]": colwise by so many heads of keys and values; replicated where the ranks outnumber them:
///   each uses those of its queries. Where they do not, queries are cut between as many groups ("colwise" of
///   the same HEADS), so that they stay with their keys;
/// - "fused[N]", "fused_t[N]": colwise of N equal blocks side by side (3: queries, keys, values), each cut by
///   itself; "fused[SIZE,SIZE,...]" of such sizes; "fused[N:HEADS]", "fused[SIZE:HEADS,...]" between heads.
///   "fused_t": of a weight [in, out];
/// - "gathered": cut along dim 0 in memory and gathered where it is used;
/// - "replicated", "sequence": whole on all ranks, as what no pattern matches; under sequence parallelism
///   gradients are added up wherever parts of the sequence read it;
/// - Hugging Face's: "colwise_rep" and "colwise_gather_output" are colwise, "rowwise_rep" and
///   "rowwise_split_input" rowwise (what needs a whole tensor gathers it, what needs a part takes it);
///   "packed_colwise" is fused[2], "packed_rowwise" the same of inputs; "embedding_rowwise" is vocab,
///   "embedding_colwise" cuts an embedding's features; "replicate", "sequence_parallel" and
///   "replicated_with_grad_allreduce" are replicated. hf_tensor_parallel_plan.h reads whole plans.
struct TensorParallelRule {
  std::string pattern, how;
};
/// The first pattern that matches a name counts.
using TensorParallelPlan = std::vector<TensorParallelRule>;

struct TensorParallelOptions {
  // Activations [batch, sequence, width] between the parts that are cut are cut along the sequence: norms,
  // dropout and residuals take 1/t of time and memory, for the same bytes on the wire.
  bool sequence = false;
  // Compute of gathered tensors what has no rule. Off: Unsupported, naming the operator.
  bool gather_unknown = true;
};

/// What happened to a module.
struct TensorParallelReport {
  std::vector<std::string> cut;  // parameters of which this rank holds a part
  // Named by the plan, and whole all the same: kv heads fewer than ranks.
  std::vector<std::string> replicated;
  std::map<std::string, std::string> gathered;  // operators computed of gathered tensors so far, and why
};

class TensorParallel {
 public:
  /// What EngineOptions::parts needs to know of the parameters that are cut, by name.
  const std::map<std::string, ParameterPart>& parts() const { return parts_; }
  void add_to(EngineOptions& options) const;

  /// Runs fn, in which parameters count as parts of whole ones, and returns its result: a forward. Outside
  /// the module's parameters are what the rank holds. May nest. One thread at a time.
  template <class F>
  auto forward(F&& fn) const {
    const Scope scope(*this);
    return std::forward<F>(fn)();
  }

  /// The part of a whole parameter that this rank holds; the tensor itself where all hold all of it.
  at::Tensor part_of(const std::string& name, const at::Tensor& whole) const;
  /// The whole of a tensor shaped as this rank's parameter. Collective over the axis.
  at::Tensor whole_of(const std::string& name, const at::Tensor& part) const;

  TensorParallelReport report() const;

 private:
  friend TensorParallel parallelize(torch::nn::Module& module, const TensorParallelPlan& plan,
                                    const Mesh& mesh, const TensorParallelOptions& options);
  class Scope {
   public:
    explicit Scope(const TensorParallel& parallel);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<detail::TensorAxis> axis_;
    std::shared_ptr<void> context_;
  };

  std::shared_ptr<detail::TensorAxis> axis_;
  std::shared_ptr<const detail::MarkedParameters> parameters_;
  std::map<std::string, ParameterPart> parts_;
  std::vector<std::string> replicated_;
};

/// Cuts the parameters in place over the mesh's "tp" axis (a mesh without it is one of a single rank there),
/// before an engine is built; the module's values must be the same on all ranks, as the same seed gives them.
/// Lazy modules stay lazy, and draw as one process. Tied names are cut once, by the first that the plan
/// matches. What the plan does not name, parallel layers (parallel_layers.h) say themselves. Sends nothing.
/// Throws Config for a plan that does not fit (a pattern that matches nothing, a word that is none, sizes
/// that the ranks cannot share, with those that would do), Usage for a module that is parallel already,
/// before anything is changed.
TensorParallel parallelize(torch::nn::Module& module, const TensorParallelPlan& plan, const Mesh& mesh,
                           const TensorParallelOptions& options = {});

/// Whether a tensor is a parameter or an activation of which ranks hold parts.
bool is_tensor_parallel(const at::Tensor& tensor);

/// The whole of an activation of which ranks hold parts, for code that reads its values; others as they are.
/// Collective over the axis.
at::Tensor gathered(const at::Tensor& activation);

}  // namespace zero
