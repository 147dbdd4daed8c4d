#pragma once
// What a module's forward does, operator by operator, and where that can be cut into stages. Numbers only:
// the same on all ranks.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace zero::detail {

/// A forward as its operators, in the order in which the module calls them.
struct Trace {
  struct Operator {
    std::string name;
    bool is_bound = false;     // a parameter leads to it: one stage computes it; others all ranks do
    bool records = false;      // gradients are on, as where the forward began
    bool is_random = false;    // draws numbers
    std::vector<int> sources;  // parameters and buffers that it reads
    std::vector<int> values;   // that it makes
    double cost = 0;
  };
  /// A tensor that a bound operator makes.
  struct Value {
    int made_by = 0, output = 0;  // operator, and its place among the tensors that this returns
    int last_read = 0;            // operator; their number: it is the forward's result
    int storage = 0;
    int64_t nbytes = 0;
    std::vector<int64_t> sizes;
  };
  /// Memory that values share.
  struct Storage {
    int made_by = -1;  // operator; -1: of a parameter or buffer
    int last_written = -1;
  };
  std::vector<Operator> operators;
  std::vector<Value> values;
  std::vector<Storage> storages;
  uint64_t fingerprint = 0;
};

/// Parts of a module in the order of their use, as sets of sources: of each source the units that it is in,
/// ascending.
using UnitsOfSource = std::vector<std::vector<int>>;

/// Of each operator the unit that it belongs to where it reads a source, else -1. They ascend: a source that
/// is read once more behind a later unit (a tied head) is read by that one.
std::vector<int> units_of_operators(const Trace& trace, const UnitsOfSource& units);

/// Of each unit: operations from its first operator to the next one's.
std::vector<double> costs_of_units(const Trace& trace, const std::vector<int>& unit_of_operator, int units);

/// Where a stage begins.
struct StageCut {
  int at = 0;                 // its first operator
  bool fills_early = true;    // what crosses is there before the operator before `at` returns
  std::vector<int> crossing;  // values, ascending, that earlier stages make and this one or later ones read
};

/// Where stages 0, 1, .. begin: between the operators that belong to their units, where the fewest bytes
/// cross. `stage_of_unit` ascends. Throws Unsupported where a tensor would be written on both sides of every
/// place to cut.
std::vector<StageCut> cut_into_stages(const Trace& trace, const std::vector<int>& unit_of_operator,
                                      const std::vector<int>& stage_of_unit, int stages);

}  // namespace zero::detail
