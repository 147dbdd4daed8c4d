#pragma once
// Ranks that fail together: what one of them alone can see, all of them must act on.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zero/error.h"
#include "zero/mesh.h"

namespace zero::detail {

/// Runs a phase on every rank; where it throws on any, all throw the same error: that of the first such rank,
/// with its number. The phase itself sends nothing. Collective.
void together(const Mesh& mesh, const Group& all, const std::string& what,
              const std::function<void()>& phase);

/// Every rank's bytes on every rank, one after the other; as many of each rank. Collective.
std::string gather_bytes(const Mesh& mesh, const Group& all, const std::string& mine, std::string_view what);

/// How a phase ended on the first rank where it failed.
struct Failure {
  int rank;
  ErrorKind kind;
  std::string text;  // without the kind; at most 1023 bytes of it
};
/// `own`: how it ended here; null: well. Nothing where it ended well everywhere. Collective.
std::optional<Failure> first_failure(const Mesh& mesh, const Group& all, const std::exception* own,
                                     std::string_view what);

/// Every rank's text on every rank. Collective.
std::vector<std::string> gather_text(const Mesh& mesh, const Group& all, const std::string& text,
                                     const std::string& what);

}  // namespace zero::detail
