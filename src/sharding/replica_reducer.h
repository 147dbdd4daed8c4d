#pragma once
// Sums shards over the ranks that hold the same shard (stage 0, hybrid sharding): reduce-scatter, then
// all-gather, so the additions happen once, in rank order, in fp32, and every replica gets the same bits.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "zero/mesh.h"

namespace zero::detail {

class ReplicaReducer {
 public:
  /// At most `bucket_numel` elements travel in one piece.
  ReplicaReducer(Group replicas, at::ScalarType communication_dtype, int64_t bucket_numel)
      : replicas_(std::move(replicas)), dtype_(communication_dtype), bucket_numel_(bucket_numel) {}

  /// Starts summing `tensor` [n] (floating) over the replicas; it holds the sum after finish(). `loan` is
  /// kept until then: what the tensor is borrowed by, or null. Collective.
  void start(const at::Tensor& tensor, const std::string& what, const std::shared_ptr<const void>& loan);
  void finish();
  /// Forgets what is under way.
  void abandon() { in_flight_.clear(); }
  /// Elements sent so far, an all-reduce of n counted 2n, padding included.
  int64_t elements() const { return elements_; }

 private:
  struct Sum {
    std::shared_ptr<const void> loan;  // of the tensor
    at::Tensor tensor, sent, part;
    std::string what;
    Work work;
  };
  void start_piece(const at::Tensor& tensor, const std::string& what,
                   const std::shared_ptr<const void>& loan);
  void finish_oldest();

  Group replicas_;
  at::ScalarType dtype_;
  int64_t bucket_numel_;
  std::deque<Sum> in_flight_;
  int64_t elements_ = 0;
};

}  // namespace zero::detail
