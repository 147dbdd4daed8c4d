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
  /// What stands in brackets: a number of blocks or a size, and the heads in it (0: none are named).
  struct Entry {
    int64_t number = 0, heads = 0;
  };
  bool is_transposed = false;  // of weights [in, out]
  std::vector<Entry> fused;    // one: so many equal blocks; several: their sizes
  int64_t heads = 0;           // of what is not fused; 0: none are named
};

/// Throws Config, naming the rule, for a word that is none.
PlanWord parse_plan_word(const TensorParallelRule& rule);
/// The words, for errors.
extern const char* const kPlanWords;

/// How a parameter of that shape is cut; nothing where ranks hold all of it. Throws Config, naming it, for
/// sizes that the ranks cannot share.
std::optional<Cut> cut_of(const PlanWord& word, const std::string& name, const std::vector<int64_t>& shape,
                          int ranks);

}  // namespace zero::detail
