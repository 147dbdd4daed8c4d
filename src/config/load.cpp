// File or text -> checked Config.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

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
void join_shorthands(const config::Rows& rows, const std::string& path, Config& c, Problems& problems) {
  auto& places = c.origin.places;
  for (const config::Row& row : rows) {
    const std::string full = config::join_path(path, row.name);
    join_shorthands(row.keys, full, c, problems);
    const auto given = places.find(full);
    if (row.same_as.empty() || given == places.end()) continue;
    const auto [other, added] = places.try_emplace(row.same_as, given->second);
    if (added) continue;
    problems.add(ErrorKind::Config, given->second,
                 full + ": expected this or " + row.same_as + ", got both (" + other->second + ")",
                 "remove one of the two");
  }
}

Config build_config(const Value& root, std::string_view name) {
  Config c;
  c.origin.file = name;
  Problems problems;
  const config::Rows& rows = config::all_rows();
  config::Reader reader{problems, c.origin};
  config::read_section(reader, root, "", rows, false, c);
  join_shorthands(rows, "", c, problems);
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
