#pragma once
// Ranks that fail together: what one of them alone can see, all of them must act on.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero/error.h"
#include "zero/mesh.h"

namespace zero::detail {

/// Runs a phase on every rank of `all`; where it throws on any, all throw the same: what all ranks say, or
/// the first such rank's error, marked with its mesh number. An exception that is no Error stays what it is
/// on its own rank. The phase itself sends nothing. Collective.
void together(const Mesh& mesh, const Group& all, std::string_view what, const std::function<void()>& phase);
/// The same over all ranks of the mesh.
inline void together(const Mesh& mesh, std::string_view what, const std::function<void()>& phase) {
  together(mesh, mesh.world(), what, phase);
}

/// Every rank's bytes on every rank, one after the other; as many of each rank. Collective.
std::string gather_bytes(const Mesh& mesh, const Group& all, const std::string& mine, std::string_view what);

/// How a phase ended on the first rank where it failed.
struct Failure {
  int rank;  // of the mesh
  ErrorKind kind;
  std::string text;            // without the kind; at most 1023 bytes of it
  bool is_everywhere = false;  // all ranks failed alike
};
/// `own`: how it ended here; null: well. Nothing where it ended well everywhere. Collective.
std::optional<Failure> first_failure(const Mesh& mesh, const Group& all, const std::exception* own,
                                     std::string_view what);

/// Every rank's text on every rank. Collective.
std::vector<std::string> gather_text(const Mesh& mesh, const Group& all, const std::string& text,
                                     const std::string& what);

/// The text of one rank of the mesh on every rank. Collective over the mesh.
std::string text_of_rank(const Mesh& mesh, int root, const std::string& text, std::string_view what);

/// Throws Config on every rank, naming one that differs, unless all give the same text. Collective over the
/// mesh.
void require_same(const Mesh& mesh, const std::string& text, const std::string& what);

}  // namespace zero::detail
