#pragma once
// The models that `zero bench step` trains: ours, and GPT-2 as anybody would write it from torch::nn modules,
// with the operators that PyTorch's users call.

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero/block_chain.h"
#include "zero/gpt2_shape.h"
#include "zero/pipeline.h"
#include "zero/tensor_parallel.h"

namespace torch::nn {
class Module;
}

namespace zero::tool {

struct BenchModel {
  std::shared_ptr<torch::nn::Module> module;
  /// Mean cross-entropy; tokens and targets [batch, sequence] int64.
  std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& targets)> loss;
  /// Of a pipeline whose stage s has blocks[s] of the blocks; the last gives what `last_loss` takes.
  std::function<std::vector<PipelineStage>(const std::vector<int64_t>& blocks)> stages;
  std::function<at::Tensor(const at::Tensor& last, const at::Tensor& targets)> last_loss;
  /// For so many ranks that share layers.
  std::function<TensorParallelPlan(int ranks)> tensor_plan;
  BlockChain* chain = nullptr;  // of the module's blocks
  Gpt2Shape shape;
  int64_t parameters = 0;  // elements, tied ones once
};

/// `name` as of make_bench_model(); throws as that.
Gpt2Shape bench_shape(const std::string& name);

/// `name` as in the configuration's model.size, or "tiny" (2 layers of 128). Built lazily: nothing has memory
/// yet. Throws Config for an unknown name.
BenchModel make_bench_model(const std::string& name, bool plain, int64_t context,
                            const RecomputePolicy& recompute = {});

}  // namespace zero::tool
