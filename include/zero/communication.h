#pragma once
// How ranks add up what they reduce together.

#include <string_view>

namespace zero {

/// exact: in rank order in fp32, whatever travels, on every transport: the same bits for every timing, bucket
/// and budget, and wherever the ranks are.
/// fast, on CUDA: gradients are summed by NCCL's own reduce-scatter, in the type that travels and in an order
/// of NCCL's, as PyTorch's FSDP and DeepSpeed do: half the bytes to receive where that type is 16 bits, no
/// kernel to add them afterwards, and no promise of equal bits between two runs.
/// fast, on CPU: each host's gradients are summed first, in rank order in fp32, then the hosts' sums in the
/// order of the hosts' first ranks: at most half the bytes between two hosts, and the same bits for every
/// timing, bucket, budget and stage, but others on other hosts. On one host it is exact.
/// All other sums (norms, losses, statistics) stay exact. Transports named shm and gloo have no fast.
enum class Communication { exact, fast };

inline std::string_view to_string(Communication communication) {
  return communication == Communication::fast ? "fast" : "exact";
}

}  // namespace zero
