#pragma once
// The module trees that the plan works on, read from the modules themselves: built lazily, so that shapes
// cost no memory whatever their size.

#include "zero/config.h"
#include "zero/model_shape.h"
#include "zero/plan.h"

namespace torch::nn {
class Module;
}

namespace zero {

/// The tree of a module, built eagerly or under lazily(). Throws Unsupported, naming the parameter, for what
/// cannot be sharded exactly.
ModuleSpec module_spec(const torch::nn::Module& module);

/// The tree of the model of that shape. Draws no random numbers. Throws Config for an impossible shape.
ModuleSpec model_spec(const ModelShape& shape);

/// The tree that is trained: the configured model with the adapters of `lora`, and trainable where `frozen`,
/// `trainable` and `lora` say so. Throws Config for a pattern of these that matches nothing, and where
/// nothing is left to train.
ModuleSpec trained_spec(const Config& config);

/// Of that tree, what a rank of the axis "tp" holds, where parallel.tensor ranks share each layer: each
/// parameter in its part's shape. The last rank's parts are the largest. Throws Config, naming the key, for
/// sizes that the ranks cannot share, with those that would do.
ModuleSpec tensor_part(const Config& config, const ModuleSpec& whole, int rank);

/// Elements of all parameters, tied ones once.
int64_t numel_of(const ModuleSpec& module);

}  // namespace zero
