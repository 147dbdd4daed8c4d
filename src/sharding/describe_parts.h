#pragma once
// What a job's options say of axes beside "dp", in the model's specification.

#include <map>
#include <string>

#include "zero/mesh.h"
#include "zero/plan.h"

namespace zero::detail {

/// Gives every parameter of `spec` its part: that of `parts`, by name, or all of the parameter, replicated
/// over all other axes than "dp". Throws Config for a name that the model lacks and for parts that do not fit
/// the mesh.
void describe_parts(ModuleSpec& spec, const Mesh& mesh, const std::map<std::string, ParameterPart>& parts);

}  // namespace zero::detail
