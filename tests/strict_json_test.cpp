// JSON from files: what is refused, and how an error names the place.
#include "base/strict_json.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/expect_error.h"

namespace zero {
namespace {

using nlohmann::json;

TEST(StrictJson, RefusesWhatOtherReadersGuess) {
  EXPECT_EQ(parse_json(R"({"a": [1, {"a": 2}]})", "f"), json::parse(R"({"a": [1, {"a": 2}]})"));
  EXPECT_ERROR(parse_json("{\n\"a\": }", "f"), Corrupt, "f: not valid JSON: parse error at line 2");
  EXPECT_ERROR(parse_json(R"({"a": 1, "b": {"a": 1}, "a": 2})", "f"), Corrupt,
               "f: key \"a\" is given twice in one object");
  EXPECT_ERROR(parse_json("{} {}", "f"), Corrupt, "not valid JSON");
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "f"));
  EXPECT_ERROR(parse_json(std::string(66, '[') + std::string(66, ']'), "f"), Corrupt, "nested too deeply");
}

class Places : public ::testing::Test {
 protected:
  const json document_ = json::parse(R"({
    "model": {"vocab": {"a": 7, "b.c\n": -1}, "merges": ["x", 5]},
    "on": true, "id": "00000000000000ff", "most": 18446744073709551615, "real": 1.5})");
  const JsonPlace root_{document_, "f.json"};
};

TEST_F(Places, ErrorsNameThePath) {
  EXPECT_EQ(root_.place(), "f.json");
  EXPECT_ERROR(root_["model"].string(), Corrupt,
               "f.json: model: expected a string, got {\"merges\":[\"x\",5]");
  EXPECT_ERROR(root_["model"]["merges"].at(1).string(), Corrupt,
               "f.json: model.merges[1]: expected a string, got 5");
  EXPECT_ERROR(root_["model"]["none"].array_size(), Corrupt,
               "f.json: model.none: expected an array, got nothing");
  EXPECT_ERROR(root_["on"]["none"], Corrupt, "f.json: on: expected an object, got true");
  EXPECT_ERROR(JsonPlace(document_["on"], "f.json").count(), Corrupt,
               "f.json: expected a whole number from 0 to 2^63 - 1, got true");
}

TEST_F(Places, NamesThatTheFileChoosesAreQuoted) {
  int64_t seen = 0;
  for (const auto& [name, id] : root_["model"]["vocab"].members()) {
    ++seen;
    if (name == "a") {
      EXPECT_EQ(id.integer(8), 7);
      EXPECT_ERROR(id.integer(7), Corrupt,
                   "f.json: model.vocab[\"a\"]: expected a whole number from 0 to 6, got 7");
    } else {
      EXPECT_EQ(name, "b.c\n");
      EXPECT_ERROR(id.count(), Corrupt, "f.json: model.vocab[\"b.c\\n\"]: expected");
    }
  }
  EXPECT_EQ(seen, 2);
  EXPECT_ERROR(root_["model"]["merges"].members(), Corrupt, "model.merges: expected an object");
  std::vector<std::string> places;
  for (const JsonPlace& merge : root_["model"]["merges"].elements()) places.push_back(merge.place());
  EXPECT_EQ(places, (std::vector<std::string>{"f.json: model.merges[0]", "f.json: model.merges[1]"}));
}

TEST_F(Places, ValuesKeepTheirTypes) {
  EXPECT_TRUE(root_["on"].boolean());
  EXPECT_TRUE(root_["none"].boolean_or(true));
  EXPECT_ERROR(root_["id"].boolean_or(true), Corrupt, "id: expected true or false");
  EXPECT_EQ(root_["id"].hex64(), 255u);
  for (const char* wrong : {"ff", "00000000000000FF", "0x000000000000ff", "00000000000000fff"})
    EXPECT_ERROR(JsonPlace(json(wrong), "f").hex64(), Corrupt, "f: expected 16 hexadecimal digits");
  EXPECT_EQ(root_["most"].uint64(), std::numeric_limits<uint64_t>::max());
  EXPECT_ERROR(root_["most"].count(), Corrupt, "most: expected a whole number from 0 to 2^63 - 1");
  EXPECT_ERROR(root_["real"].count(), Corrupt, "got 1.5");
  EXPECT_ERROR(root_["real"].uint64(), Corrupt, "got 1.5");
}

}  // namespace
}  // namespace zero
