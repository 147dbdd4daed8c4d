#pragma once
// Everything that is wrong with a configuration, collected and thrown at once.

#include <string>
#include <string_view>
#include <vector>

#include "config/value.h"
#include "zero/error.h"

namespace zero::config {

class Problems {
 public:
  void add(ErrorKind kind, const Place& place, std::string problem, std::string remedy = {});
  void add(ErrorKind kind, const std::string& place, std::string problem, std::string remedy = {});

  bool empty() const { return problems_.empty(); }

  /// One Error with a line for each problem, in the order of the file's lines. Its kind is Config, or
  /// Unsupported if every problem is.
  void throw_if_any() const;

 private:
  struct Problem {
    ErrorKind kind;
    std::string place;
    int line;
    std::string problem;
    std::string remedy;
  };
  std::vector<Problem> problems_;
};

/// "did you mean \"...\"?", or "" for an empty word.
std::string did_you_mean(std::string_view word);

}  // namespace zero::config
