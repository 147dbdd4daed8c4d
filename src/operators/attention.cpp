#include "operators/attention.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "compute/parallel.h"
#include "operators/attention/kernels.h"

namespace zero::detail {
namespace {

constexpr int64_t kWidest = 512;
constexpr int64_t kFewestQueries = 16;  // of fewer, preparing the keys would be most of the work

bool fits(const at::Tensor& x, at::ScalarType dtype) {
  return x.layout() == at::kStrided && x.is_cpu() && x.dim() == 4 && x.scalar_type() == dtype &&
         x.numel() > 0 && x.stride(3) == 1;
}

/// The matrix of a head, numbered over the batch.
char* head_of(const at::Tensor& x, int64_t head) {
  const int64_t offset = head / x.size(1) * x.stride(0) + head % x.size(1) * x.stride(1);
  return static_cast<char*>(x.data_ptr()) + offset * x.element_size();
}
attention::Rows rows_of(const at::Tensor& x, int64_t head) { return {head_of(x, head), x.stride(2)}; }
attention::WritableRows rows_to(const at::Tensor& x, int64_t head) { return {head_of(x, head), x.stride(2)}; }

attention::Shape shape_of(const at::Tensor& queries, const at::Tensor& keys, bool causal, double scale) {
  return {.queries = queries.size(2),
          .keys = keys.size(2),
          .width = queries.size(3),
          .causal = causal,
          .half = queries.scalar_type() == at::kBFloat16,
          .scale = static_cast<float>(scale)};
}

/// [batch, heads, length, width] as models come to it: the heads of a token side by side.
at::Tensor empty_heads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

/// Calls work(head, scratch) for every head of the batch.
template <class Work>
void for_heads(const at::Tensor& x, int64_t scratch_numel, const Work& work) {
  const at::TensorOptions floats = x.options().dtype(at::kFloat);
  const at::Tensor heads = at::empty({x.size(0) * x.size(1)}, floats);
  parallel_over(heads, /*grain=*/1, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = at::empty({scratch_numel}, floats);
    for (int64_t head = begin; head < end; ++head) work(head, scratch.data_ptr<float>());
  });
}

at::Tensor with_whole_rows(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

}  // namespace

bool has_fast_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
  const at::ScalarType dtype = queries.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16) return false;
  if (!fits(queries, dtype) || !fits(keys, dtype) || !fits(values, dtype)) return false;
  const int64_t longest = std::max(queries.size(2), keys.size(2));
  if (dtype == at::kBFloat16 && longest > attention::best_kernels().longest_half) return false;
  return queries.size(3) <= kWidest && queries.size(2) >= kFewestQueries && keys.sizes() == values.sizes() &&
         queries.size(0) == keys.size(0) && queries.size(1) == keys.size(1) &&
         queries.size(3) == keys.size(3);
}

std::tuple<at::Tensor, at::Tensor> fast_attention(const at::Tensor& queries, const at::Tensor& keys,
                                                  const at::Tensor& values, bool causal, double scale) {
  const attention::Shape shape = shape_of(queries, keys, causal, scale);
  at::Tensor out = empty_heads(queries);
  at::Tensor log_sums =
      at::empty({queries.size(0), queries.size(1), queries.size(2)}, queries.options().dtype(at::kFloat));
  for_heads(queries, attention::forward_scratch_numel(shape), [&](int64_t head, float* scratch) {
    attention::best_kernels().forward(shape, rows_of(queries, head), rows_of(keys, head),
                                      rows_of(values, head), rows_to(out, head),
                                      log_sums.data_ptr<float>() + head * shape.queries, scratch);
  });
  return {out, log_sums};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fast_attention_backward(
    const at::Tensor& upstream, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
    const at::Tensor& out, const at::Tensor& saved_sums, bool causal, double scale) {
  const attention::Shape shape = shape_of(queries, keys, causal, scale);
  const at::Tensor gradient = with_whole_rows(upstream), result = with_whole_rows(out),
                   log_sums = saved_sums.contiguous();
  const at::Tensor of_queries = empty_heads(queries), of_keys = empty_heads(keys),
                   of_values = empty_heads(values);
  for_heads(queries, attention::backward_scratch_numel(shape), [&](int64_t head, float* scratch) {
    attention::best_kernels().backward(
        shape, rows_of(queries, head), rows_of(keys, head), rows_of(values, head), rows_of(result, head),
        rows_of(gradient, head), log_sums.const_data_ptr<float>() + head * shape.queries,
        {rows_to(of_queries, head), rows_to(of_keys, head), rows_to(of_values, head)}, scratch);
  });
  return {of_queries, of_keys, of_values};
}

}  // namespace zero::detail
