#pragma once
// A small net that tensor-parallel ranks share: what they cut and what they hold alike.

#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <string>

#include "support/ranks.h"
#include "zero/engine_options.h"

namespace zero::testing {

/// A linear layer of which `tp` ranks hold a slice of the columns each, and all the bias; then a whole one.
/// `gain` is cut too, and only the first rank's half of it is used.
struct CutNetImpl : torch::nn::Module {
  static constexpr int64_t kIn = 8, kOut = 6;

  CutNetImpl(int tp, int ranks)
      : from(kIn / ranks * tp),
        count(kIn / ranks),
        weight(register_parameter("weight", whole({kOut, kIn}, 1).narrow(1, from, count).clone())),
        bias(register_parameter("bias", whole({kOut}, 2))),
        gain(register_parameter("gain", whole({kIn}, 3).narrow(0, from, count).clone())),
        last(register_module("last", torch::nn::Linear(kOut, 3))) {
    torch::NoGradGuard no_grad;
    last->weight.copy_(whole({3, kOut}, 4));
    last->bias.copy_(whole({3}, 5));
  }

  static torch::Tensor whole(torch::IntArrayRef shape, uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    return torch::randn(shape, generator);
  }

  /// [4, kIn]
  static torch::Tensor batch(int64_t step) { return whole({4, kIn}, 100 + static_cast<uint64_t>(step)); }

  /// x [n, kIn]. `sum` adds up a tensor over the ranks.
  torch::Tensor loss(torch::Tensor x, const std::function<void(at::Tensor)>& sum) {
    x = x.narrow(1, from, count);
    if (from == 0)
      x = torch::cat(
          {x.narrow(1, 0, kIn / 2) * gain.narrow(0, 0, kIn / 2), x.narrow(1, kIn / 2, count - kIn / 2)}, 1);
    const torch::Tensor part = torch::nn::functional::linear(x, weight);
    torch::Tensor total = part.detach().clone();
    sum(total);
    // The sum's value, and the gradient of this rank's part.
    const torch::Tensor y = part + (total - part.detach());
    return last(torch::tanh(y + bias)).square().mean();
  }

  int64_t from, count;
  torch::Tensor weight, bias, gain;
  torch::nn::Linear last;
};
TORCH_MODULE(CutNet);

inline std::map<std::string, ParameterPart> parts_of(const CutNet& net) {
  const int64_t in = CutNetImpl::kIn, out = CutNetImpl::kOut;
  return {{"weight", {{out, in}, Box{{0, net->from}, {out, net->count}}, {}}},
          {"gain", {{in}, Box{{net->from}, {net->count}}, {}}}};
}

/// Ranks of a mesh with axes "dp" and "tp".
inline RankOptions two_by_two() {
  RankOptions options;
  options.mesh.axes = {{"dp", 2}, {"tp", 2}};
  return options;
}

}  // namespace zero::testing
