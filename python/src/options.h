#pragma once
// What Python gives an engine, in the library's words.

#include <torch/csrc/utils/pybind.h>

#include "zero/engine.h"
#include "zero/optimizer.h"

namespace zero::python {

/// One of the rules by keyword arguments: the fields of its table ("lr", "betas", ...). Throws TypeError for
/// a name that the rule does not have and Config for values out of range.
OptimizerSpec optimizer_of(const std::string& type, const pybind11::kwargs& numbers);

/// Names of all rules.
std::vector<std::string> optimizer_names();

/// Fields of EngineOptions by their names. Throws TypeError for a name that is none of them.
EngineOptions engine_options_of(const pybind11::kwargs& fields);

}  // namespace zero::python
