// File or text -> checked Config.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "config/overrides.h"
#include "config/parse.h"
#include "config/rows.h"
#include "config/validate.h"

namespace zero {

namespace {

using config::Place;
using config::Problems;
using config::Value;

std::string read_text(const std::string& path) {
  std::error_code error;
  const bool directory = std::filesystem::is_directory(path, error);
  require(!directory, ErrorKind::Io, path, "expected a configuration file, got a directory");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  require(file.good(), ErrorKind::Io, path,
          std::string("cannot open the configuration: ") + std::strerror(errno),
          "give the path of a JSON file");
  // One byte more than allowed is enough to know that it is too long.
  std::string text(config::kMaxTextBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  require(!file.bad(), ErrorKind::Io, path,
          std::string("cannot read the configuration: ") + std::strerror(errno));
  text.resize(file.gcount());
  return text;
}

// Two keys for one field: an error if both are given; otherwise the field's own key has the place of its
// shorthand.
class Shorthands {
 public:
  Shorthands(Config& c, Problems& problems) : places_(c.origin.places), problems_(problems) {}

  void join(const config::Rows& rows, const std::string& path) {
    for (const config::Row& row : rows) {
      const std::string full = config::join_path(path, row.name);
      join(row.keys, full);
      const auto given = places_.find(full);
      if (row.same_as.empty() || given == places_.end()) continue;
      const std::string place = given->second;
      join(full, place, row.same_as, row.may_agree);
      for (const std::string& key : row.also_sets) join(full, place, key, false);
    }
  }

 private:
  void join(const std::string& full, const std::string& place, const std::string& key, bool may_agree) {
    const auto [other, added] = places_.try_emplace(key, place);
    if (added && may_agree) agreed_.insert(key);
    if (added || (may_agree && agreed_.contains(key))) return;
    problems_.add(ErrorKind::Config, place,
                  full + ": expected this or " + key + ", got both (" + other->second + ")",
                  "remove one of the two");
  }

  std::map<std::string, std::string, std::less<>>& places_;
  Problems& problems_;
  std::set<std::string> agreed_;  // keys whose place is that of a shorthand with equals
};

Config build_config(const Value& root, std::string_view name) {
  Config c;
  c.origin.file = name;
  Problems problems;
  const config::Rows& rows = config::all_rows();
  config::Reader reader{problems, c.origin};
  config::read_section(reader, root, "", rows, false, c);
  Shorthands(c, problems).join(rows, "");
  problems.throw_if_any();
  config::validate(c, problems);
  problems.throw_if_any();
  return c;
}

}  // namespace

Config parse_config(std::string_view text, std::string_view name, std::span<const std::string> overrides) {
  const Place start{std::make_shared<const std::string>(name), 1};
  Value root = config::parse_json(text, start);
  config::apply_overrides(root, overrides);
  return build_config(root, name);
}

Config load_config(const std::string& path, std::span<const std::string> overrides) {
  return parse_config(read_text(path), path, overrides);
}

std::string Config::place(std::string_view key) const {
  std::string file = origin.file.empty() ? "configuration" : origin.file;
  for (std::string_view rest = key; !rest.empty();) {
    if (auto it = origin.places.find(rest); it != origin.places.end()) return it->second;
    const size_t cut = rest.find_last_of(".[");
    rest = cut == std::string_view::npos ? std::string_view() : rest.substr(0, cut);
  }
  return file;
}

}  // namespace zero
