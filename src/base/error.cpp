#include "zero/error.h"

namespace zero {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Config:
      return "config";
    case ErrorKind::Usage:
      return "usage";
    case ErrorKind::Comm:
      return "communication";
    case ErrorKind::Io:
      return "I/O";
    case ErrorKind::Corrupt:
      return "corrupt data";
    case ErrorKind::Unsupported:
      return "unsupported";
    case ErrorKind::Internal:
      return "internal";
  }
  return "unknown";
}

namespace {
std::string message(ErrorKind kind, std::string_view place, std::string_view problem,
                    std::string_view remedy) {
  std::string text(to_string(kind));
  text += " error: ";
  if (!place.empty()) text.append(place).append(": ");
  text += problem;
  if (!remedy.empty()) text.append("; ").append(remedy);
  return text;
}
}  // namespace

Error::Error(ErrorKind kind, std::string_view place, std::string_view problem, std::string_view remedy)
    : std::runtime_error(message(kind, place, problem, remedy)), kind_(kind) {}

void fail(ErrorKind kind, std::string_view place, std::string_view problem, std::string_view remedy) {
  throw Error(kind, place, problem, remedy);
}

}  // namespace zero
