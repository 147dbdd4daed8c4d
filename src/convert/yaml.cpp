#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>

#include "convert/convert.h"
#include "zero/error.h"

namespace zero::convert {
namespace {

constexpr int kMostLevels = 64;

// A scalar without quotes.
Json plain(const std::string& text) {
  for (const char* word : {"", "~", "null", "Null", "NULL"})
    if (text == word) return nullptr;
  for (const char* word : {"true", "True", "TRUE", "yes", "Yes", "on", "On"})
    if (text == word) return true;
  for (const char* word : {"false", "False", "FALSE", "off", "Off"})
    if (text == word) return false;
  const char* end = text.data() + text.size();
  int64_t whole = 0;
  if (const auto read = std::from_chars(text.data(), end, whole); read.ec == std::errc() && read.ptr == end)
    return whole;
  double number = 0;
  if (const auto read = std::from_chars(text.data(), end, number);
      read.ec == std::errc() && read.ptr == end && std::isfinite(number))
    return number;
  return text;
}

Json json_of(const YAML::Node& node, const std::string& place, int level) {
  const std::string here = place + ":" + std::to_string(node.Mark().line + 1);
  require(level <= kMostLevels, ErrorKind::Corrupt, here,
          "maps and lists inside each other, more than 64 deep");
  switch (node.Type()) {
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      return nullptr;
    case YAML::NodeType::Scalar:
      // "!" is the tag of a scalar in quotes. accelerate's no is a word, not a boolean.
      return node.Tag() == "!" ? Json(node.Scalar()) : plain(node.Scalar());
    case YAML::NodeType::Sequence: {
      Json list = Json::array();
      for (const auto& item : node) list.push_back(json_of(item, place, level + 1));
      return list;
    }
    case YAML::NodeType::Map: {
      Json map = Json::object();
      for (const auto& item : node) {
        require(item.first.IsScalar(), ErrorKind::Corrupt, here, "a key is no text");
        require(!map.contains(item.first.Scalar()), ErrorKind::Corrupt, here,
                "\"" + item.first.Scalar() + "\" is given twice");
        map[item.first.Scalar()] = json_of(item.second, place, level + 1);
      }
      return map;
    }
  }
  return nullptr;
}

}  // namespace

Json json_of_yaml(const std::string& text, const std::string& place) {
  // An alias could make a small file a huge tree, and no program writes one here.
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const bool begins =
        i == 0 || text[i - 1] == ' ' || text[i - 1] == '\n' || text[i - 1] == '[' || text[i - 1] == ',';
    const bool is_name = std::isalnum(static_cast<unsigned char>(text[i + 1])) != 0;
    require(!(begins && is_name && (text[i] == '*' || text[i] == '&')), ErrorKind::Corrupt, place,
            "anchors and aliases are not read", "write the values out");
  }
  try {
    return json_of(YAML::Load(text), place, 0);
  } catch (const YAML::Exception& error) {
    fail(ErrorKind::Corrupt, place + ":" + std::to_string(error.mark.line + 1), "no YAML: " + error.msg);
  }
}

}  // namespace zero::convert
