#pragma once
// A token embedding that is also the head, and the cross-entropy above it, as two autograd functions that
// know of each other. Autograd alone makes a dense gradient of the embedding, adds it to the head's, and
// keeps three copies of the logits; here the embedding's rows are added into the head's gradient, and the
// logits' gradient takes their place.

#include <ATen/core/ivalue.h>
#include <torch/types.h>

namespace zero::detail {

/// The head's weight gradient on its way to the embedding's backward, which autograd always runs after the
/// head's.
struct TiedGradient : torch::CustomClassHolder {
  at::Tensor of_head;
};

/// One use of a tied weight [vocabulary, width] as embedding and head.
class TiedHead {
 public:
  explicit TiedHead(const at::Tensor& weight);

  /// tokens [...] int64 -> [..., width]
  at::Tensor embed(const at::Tensor& tokens) const;

  /// Mean cross-entropy of hidden [rows, width] * weight^T against targets [rows] int64, -100 left out; fp32.
  /// The logits exist for some rows at a time, and gradients are computed with them. Weights fp32 or bf16, on
  /// CPU. Call it on what embed() has led to: its weight gradient reaches autograd through embed()'s.
  /// `rows_at_a_time` 0: as many as make 128 Mi logits.
  at::Tensor loss(const at::Tensor& hidden, const at::Tensor& targets, int64_t rows_at_a_time = 0) const;

  /// True for weights that loss() can take.
  static bool fits(const at::Tensor& weight);

 private:
  at::Tensor weight_;
  c10::intrusive_ptr<TiedGradient> gradient_;
};

}  // namespace zero::detail
