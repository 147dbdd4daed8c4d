#include "base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace zero {

int terminal_columns(std::FILE* out) {
  struct winsize size {};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int line_columns(std::FILE* out) {
  if (const char* given = std::getenv("COLUMNS")) {
    const std::string_view text(given);
    int columns = 0;
    const auto [end, error] = std::from_chars(text.begin(), text.end(), columns);
    if (error == std::errc() && end == text.end() && columns > 0) return columns;
  }
  return terminal_columns(out);
}

}  // namespace zero
