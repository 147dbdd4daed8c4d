#include <ATen/ops/scaled_dot_product_attention.h>

#include <string>

#include "tensor/parallel_tensor.h"
#include "zero/error.h"
#include "zero/parallel_layers.h"

namespace zero {
namespace {

using torch::Tensor;

void check(ParallelAttentionOptions& o) {
  constexpr const char* kPlace = "ParallelAttention";
  require(o.width > 0 && o.heads > 0, ErrorKind::Config, kPlace,
          "expected a width and heads of at least 1, got " + std::to_string(o.width) + " and " +
              std::to_string(o.heads));
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  require(o.kv_heads > 0 && o.heads % o.kv_heads == 0, ErrorKind::Config, kPlace,
          "kv_heads: expected a divisor of " + std::to_string(o.heads) + " heads, got " +
              std::to_string(o.kv_heads));
  require(o.head_width > 0 || o.width % o.heads == 0, ErrorKind::Config, kPlace,
          std::to_string(o.heads) + " heads do not fit a width of " + std::to_string(o.width),
          "set head_width, or take a divisor of the width");
  if (o.head_width <= 0) o.head_width = o.width / o.heads;
  require(o.dropout >= 0 && o.dropout < 1, ErrorKind::Config, kPlace,
          "dropout: expected at least 0 and less than 1, got " + std::to_string(o.dropout));
}

std::string entry(int64_t size, int64_t heads) { return std::to_string(size) + ":" + std::to_string(heads); }

// This rank's heads of what a product, cut evenly and not by heads, made of queries, keys and values: keys
// and values once for each head of queries.
std::vector<Tensor> own_heads(const detail::Value& product, const ParallelAttentionOptions& o) {
  const detail::LocalTensors local_tensors;
  const Tensor whole = product.axis->gather(product.tensor, product.cut, /*for_parts=*/true);
  const detail::Block heads(o.heads);
  const detail::Place place = product.axis->place();
  const int64_t begin = detail::part_begin(heads, place), count = detail::part_size(heads, place);
  const std::vector<Tensor> parts = whole.split_with_sizes(
      {o.heads * o.head_width, o.kv_heads * o.head_width, o.kv_heads * o.head_width}, -1);
  std::vector<Tensor> own;
  for (const Tensor& part : parts) {
    const int64_t there = part.size(-1) / o.head_width;
    Tensor all = part.view({part.size(0), part.size(1), there, o.head_width}).transpose(1, 2);
    if (there < o.heads) all = all.repeat_interleave(o.heads / there, 1);
    own.push_back(wrapped(all.narrow(1, begin, count), {1, {heads}, product.cut.origin}, product.axis));
  }
  return own;
}

}  // namespace

ParallelAttentionImpl::ParallelAttentionImpl(ParallelAttentionOptions given) : options(given) {
  check(options);
  reset();
}

void ParallelAttentionImpl::reset() {
  const int64_t queries = options.heads * options.head_width, keys = options.kv_heads * options.head_width;
  const auto columns = [&](const char* name, int64_t outputs, int64_t heads) {
    return register_module(name, ColumnParallelLinear(ColumnParallelLinearOptions{
                                     .in = options.width,
                                     .out = outputs,
                                     .bias = options.bias,
                                     .blocks = {{.size = outputs, .heads = heads}}}));
  };
  if (options.fused) {
    qkv = register_module("qkv", ColumnParallelLinear(ColumnParallelLinearOptions{
                                     .in = options.width,
                                     .out = queries + 2 * keys,
                                     .bias = options.bias,
                                     .blocks = {{.size = queries, .heads = options.heads},
                                                {.size = keys, .heads = options.kv_heads},
                                                {.size = keys, .heads = options.kv_heads}}}));
  } else {
    query = columns("query", queries, options.heads);
    key = columns("key", keys, options.kv_heads);
    value = columns("value", keys, options.kv_heads);
  }
  out = register_module("out", RowParallelLinear(RowParallelLinearOptions{.in = queries,
                                                                          .out = options.width,
                                                                          .bias = options.bias,
                                                                          .input_is_parallel = true,
                                                                          .heads = options.heads}));
}

TensorParallelPlan ParallelAttentionImpl::tensor_parallel_rules(int ranks) const {
  const int64_t queries = options.heads * options.head_width, keys = options.kv_heads * options.head_width;
  const bool few = options.kv_heads < ranks;
  const int64_t groups = few ? options.heads : options.kv_heads;
  TensorParallelPlan rules;
  const auto add = [&](const std::string& layer, const std::string& word) {
    rules.push_back({layer + ".weight", word});
    if (options.bias) rules.push_back({layer + ".bias", word});
  };
  if (options.fused) {
    add("qkv", few ? "colwise"
                   : "fused[" + entry(queries, groups) + "," + entry(keys, groups) + "," +
                         entry(keys, groups) + "]");
  } else {
    add("query", "colwise[" + std::to_string(groups) + "]");
    add("key", "kv[" + std::to_string(options.kv_heads) + "]");
    add("value", "kv[" + std::to_string(options.kv_heads) + "]");
  }
  rules.push_back({"out.weight", "rowwise[" + std::to_string(groups) + "]"});
  return rules;
}

Tensor ParallelAttentionImpl::by_heads(const Tensor& x, int64_t heads) const {
  return x.view({x.size(0), x.size(1), heads, options.head_width}).transpose(1, 2);
}

std::vector<Tensor> ParallelAttentionImpl::parts_of(const Tensor& x) {
  const int64_t queries = options.heads * options.head_width, keys = options.kv_heads * options.head_width;
  std::vector<Tensor> parts;
  if (options.fused) {
    const Tensor made = qkv->forward(x);
    const detail::Value product = detail::value_of(made);
    if (product.cut && options.kv_heads < product.axis->place().ranks) return own_heads(product, options);
    parts = made.split_with_sizes({queries, keys, keys}, -1);
  } else {
    parts = {query->forward(x), key->forward(x), value->forward(x)};
  }
  return {by_heads(parts[0], options.heads), by_heads(parts[1], options.kv_heads),
          by_heads(parts[2], options.kv_heads)};
}

Tensor ParallelAttentionImpl::forward(const Tensor& x, const std::optional<Tensor>& mask) {
  constexpr const char* kPlace = "ParallelAttention";
  require(x.defined() && x.dim() == 3 && x.size(2) == options.width, ErrorKind::Usage, kPlace,
          "expected [batch, length, " + std::to_string(options.width) + "], got a tensor of " +
              std::to_string(x.defined() ? x.dim() : 0) + " dims");
  require(!mask || !options.is_causal, ErrorKind::Usage, kPlace, "a mask with is_causal",
          "set is_causal to false, and let the mask say what is seen");
  const std::vector<Tensor> parts = parts_of(x);
  const Tensor y = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], mask, is_training() ? options.dropout : 0, options.is_causal,
      /*scale=*/std::nullopt, /*enable_gqa=*/parts[1].size(1) != parts[0].size(1));
  return out->forward(y.transpose(1, 2).reshape({x.size(0), x.size(1), options.heads * options.head_width}));
}

}  // namespace zero
