#pragma once
// The models that `zero bench step` trains: ours, and GPT-2 as anybody would write it from torch::nn modules,
// with the operators that PyTorch's users call.

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>

#include "zero/block_chain.h"
#include "zero/gpt2_shape.h"

namespace torch::nn {
class Module;
}

namespace zero::tool {

struct BenchModel {
  std::shared_ptr<torch::nn::Module> module;
  /// Mean cross-entropy; tokens and targets [batch, sequence] int64.
  std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& targets)> loss;
  BlockChain* chain = nullptr;  // of the module's blocks
  Gpt2Shape shape;
  int64_t parameters = 0;  // elements, tied ones once
};

/// `name` as in the configuration's model.size, or "tiny" (2 layers of 128). Built lazily: nothing has memory
/// yet. Throws Config for an unknown name.
BenchModel make_bench_model(const std::string& name, bool plain, int64_t context,
                            const RecomputePolicy& recompute = {});

}  // namespace zero::tool
