#pragma once
// What is cut into shards.

namespace zero {

/// What is padded and cut into equal shards, one a rank (ColossalAI's BucketTensorShardStrategy and
/// TensorShardStrategy).
enum class ShardUnit {
  Bucket,  // the parameters of an element of a list of modules together, or loose parameters
  Tensor,  // each parameter by itself
};

}  // namespace zero
