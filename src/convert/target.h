#pragma once
// The configuration that is being put together.

#include <string>
#include <string_view>

#include "convert/convert.h"

namespace zero::convert {

class Target {
 public:
  explicit Target(Converted& out) : out_(out) {}

  /// The value at "section.key", or null.
  Json at(std::string_view path) const;
  bool is_auto(std::string_view path) const { return at(path) == "auto"; }
  /// Writes it where nothing or "auto" stands; where another value stands, that is refused, named by
  /// `source`.
  void set(std::string_view path, const Json& value, const std::string& source);
  /// Writes it where "auto" stands, and nowhere else.
  void fill(std::string_view path, const Json& value);

  /// Writes it whatever stands there.
  void replace(std::string_view path, const Json& value) { slot(path) = value; }

  void note(const std::string& text) { out_.notes.push_back(text); }
  void refuse(const std::string& text) { out_.refused.push_back(text); }

 private:
  Json& slot(std::string_view path);

  Converted& out_;
};

/// Both say in `target` what the program's settings come to.
void take_accelerate(const Json& accelerate, Target& target);
void take_trainer(const Json& trainer, Target& target);

/// Whether a setting is as good as not there: null, false, "no", "none", empty.
bool is_off(const Json& value);

}  // namespace zero::convert
