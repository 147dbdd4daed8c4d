#pragma once
// Blocks that run one after the other, some of them recomputed in backward as a policy says. For any module:
//
//   x = chain_.run(x, 0, layers->size(), [this](const at::Tensor& x, int64_t i) { return
//   layer(i)->forward(x); });
//
// Results have the same bits whatever the policy.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "zero/activation_store.h"
#include "zero/recompute_policy.h"

namespace zero {

class Mesh;

class BlockChain {
 public:
  using Block = std::function<at::Tensor(const at::Tensor& x, int64_t block)>;

  /// Throws Config for an impossible policy, and as ActivationStore where it names a disk.
  explicit BlockChain(const RecomputePolicy& policy = {});
  const RecomputePolicy& policy() const { return policy_; }

  /// Blocks first..last-1 from x; `block` as recompute() wants it (recompute.h): it is called again in
  /// backward. With an automatic policy that has not chosen yet all are recomputed, and measured.
  at::Tensor run(at::Tensor x, int64_t first, int64_t last, const Block& block);

  /// An automatic policy whose blocks have been through a backward, but choose() has not been called.
  bool must_choose() const;
  /// From then on run() does what takes the least time in policy().memory_bytes, by what the slowest and
  /// largest of the ranks along "dp" and "tp" has measured: the same on all of them. Returns one paragraph
  /// that says what was chosen and why. Throws Config where the memory does not suffice for any choice.
  /// Collective over the mesh.
  std::string choose(const Mesh& mesh);

  /// Of what is in that tier: nothing where none may be.
  ActivationStoreStats stored(Tier tier) const;

  struct Measured;
  struct Choice;
  struct Stores;

 private:
  RecomputePolicy policy_;
  std::shared_ptr<const Stores> stores_;  // where something may go
  std::shared_ptr<Measured> measured_;    // automatic policies only
  std::shared_ptr<const Choice> choice_;  // once made
};

}  // namespace zero
