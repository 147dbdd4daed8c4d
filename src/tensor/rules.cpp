#include "tensor/rules.h"

#include <initializer_list>
#include <unordered_map>

namespace zero::detail {
namespace {

using Table = std::unordered_map<std::string, Rule>;

void add_rules(Table& table, Rule rule, std::initializer_list<const char*> names) {
  for (const char* name : names) table["aten::" + std::string(name)] = rule;
}

Table make_rules() {
  Table table;
  add_rules(
      table, rules::pointwise,
      {"add",         "add_",         "sub",       "sub_",        "rsub",        "mul",        "mul_",
       "div",         "div_",         "neg",       "neg_",        "pow",         "square",     "sqrt",
       "rsqrt",       "exp",          "log",       "tanh",        "sigmoid",     "relu",       "relu_",
       "gelu",        "gelu_",        "silu",      "silu_",       "mish",        "elu",        "leaky_relu",
       "softplus",    "hardtanh",     "sin",       "cos",         "abs",         "erf",        "reciprocal",
       "clamp",       "clamp_min",    "clamp_max", "maximum",     "minimum",     "to",         "type_as",
       "float",       "_to_copy",     "detach",    "contiguous",  "clone",       "alias",      "where",
       "masked_fill", "masked_fill_", "eq",        "ne",          "lt",          "le",         "gt",
       "ge",          "isnan",        "isfinite",  "logical_not", "logical_and", "logical_or", "zeros_like",
       "ones_like",   "full_like",    "copy_",     "addcmul",     "lerp"});
  add_rules(table, rules::dropout, {"dropout"});
  add_rules(table, rules::view, {"view", "reshape", "_unsafe_view", "flatten", "unflatten"});
  add_rules(table, rules::rearrange,
            {"t", "numpy_T", "transpose", "permute", "unsqueeze", "squeeze", "select", "expand"});
  add_rules(table, rules::repeat_interleave, {"repeat_interleave"});
  add_rules(table, rules::slice, {"slice", "narrow", "split", "split_with_sizes", "chunk", "unbind"});
  add_rules(table, rules::join, {"cat", "stack"});
  add_rules(table, rules::reduce,
            {"sum", "mean", "softmax", "_softmax", "log_softmax", "_log_softmax", "amax", "logsumexp"});
  add_rules(table, rules::normalise, {"layer_norm", "rms_norm"});
  add_rules(table, rules::matmul, {"matmul", "bmm", "mm"});
  add_rules(table, rules::addmm, {"addmm"});
  add_rules(table, rules::linear, {"linear"});
  add_rules(table, rules::attention, {"scaled_dot_product_attention"});
  add_rules(table, rules::embedding, {"embedding"});
  add_rules(table, rules::cross_entropy, {"cross_entropy_loss"});
  return table;
}

}  // namespace

Rule rule_of(const std::string& name) {
  static const Table table = make_rules();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace zero::detail
