#pragma once
// Ranks that fail together: what one of them alone can see, all of them must act on.

#include <functional>
#include <string>
#include <vector>

#include "zero/mesh.h"

namespace zero::detail {

/// Runs a phase on every rank; where it throws on any, all throw the same error: that of the first such rank,
/// with its number. The phase itself sends nothing. Collective.
void together(const Mesh& mesh, const Group& all, const std::string& what,
              const std::function<void()>& phase);

/// Every rank's text on every rank. Collective.
std::vector<std::string> gather_text(const Mesh& mesh, const Group& all, const std::string& text,
                                     const std::string& what);

}  // namespace zero::detail
