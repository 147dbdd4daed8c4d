#pragma once
// The words of a tensor-parallel plan.

#include <optional>
#include <string>
#include <vector>

#include "tensor/cut.h"
#include "zero/tensor_parallel.h"

namespace zero::detail {

struct PlanWord {
  enum class Kind { Whole, Columns, Rows, Vocabulary, Heads, Gathered };
  Kind kind = Kind::Whole;
  bool is_transposed = false;    // of weights [in, out]
  std::vector<int64_t> numbers;  // in brackets
  bool is_fused = false;
};

/// Throws Config, naming the rule, for a word that is none.
PlanWord parse_plan_word(const TensorParallelRule& rule);

/// How a parameter of that shape is cut; nothing where ranks hold all of it. Throws Config, naming it, for
/// sizes that the ranks cannot share.
std::optional<Cut> cut_of(const PlanWord& word, const std::string& name, const std::vector<int64_t>& shape,
                          int ranks);

}  // namespace zero::detail
