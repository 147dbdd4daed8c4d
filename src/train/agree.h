#pragma once
// Ranks that fail together: what one of them alone can see, all of them must act on.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "zero/mesh.h"

namespace zero::training {

/// Runs `phase`; where it throws on any rank, all throw: that rank its own error, the others the first such
/// rank's, marked with its number. Collective over the mesh. `phase` itself sends nothing.
void together(const Mesh& mesh, std::string_view what, const std::function<void()>& phase);

/// Rank `root`'s text on every rank. Collective.
std::string text_of_rank(const Mesh& mesh, int root, const std::string& text, std::string_view what);
/// Rank 0's.
std::string text_of_rank0(const Mesh& mesh, const std::string& text, std::string_view what);

/// Throws Config on every rank, naming one that differs, unless all give the same text. Collective.
void require_same(const Mesh& mesh, const std::string& text, const std::string& what);

}  // namespace zero::training
