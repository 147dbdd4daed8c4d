#pragma once
// One failure model for the library: an exception that says what kind of thing went wrong, where, with which
// values, and what to do about it. Callers branch on kind(), never on the text.

#include <stdexcept>
#include <string>
#include <string_view>

namespace zero {

enum class ErrorKind {
  Config,       // the user's configuration or arguments are wrong; nothing was started
  Usage,        // the library was called in a way its contract forbids
  Comm,         // a collective failed, timed out, or ranks disagree
  Io,           // the operating system refused a file operation
  Corrupt,      // a file or message does not hold what its format demands
  Unsupported,  // a thing this version does not do; it says so and does nothing else in its place
  Internal,     // a broken invariant of the library: a bug
};

/// "config", "usage", "communication", "I/O", "corrupt data", "unsupported", "internal".
std::string_view to_string(ErrorKind kind);

class Error : public std::runtime_error {
 public:
  /// what() is "KIND error: PLACE: PROBLEM; REMEDY" on one line (place and remedy left out when empty).
  Error(ErrorKind kind, std::string_view place, std::string_view problem, std::string_view remedy = {});

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// Throws Error. `place` is a file:line, parameter, unit or rank; `remedy` what the reader should do.
[[noreturn]] void fail(ErrorKind kind, std::string_view place, std::string_view problem,
                       std::string_view remedy = {});

/// fail(kind, ...) unless `ok`.
inline void require(bool ok, ErrorKind kind, std::string_view place, std::string_view problem,
                    std::string_view remedy = {}) {
  if (!ok) fail(kind, place, problem, remedy);
}

}  // namespace zero
