// The shapes of GPT-2 by name, their counts, and the module tree the plan gets.
#include "zero/gpt2_shape.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "zero/model_spec.h"

namespace zero {
namespace {

void collect(const ModuleSpec& module, std::vector<ParameterSpec>& into) {
  into.insert(into.end(), module.parameters.begin(), module.parameters.end());
  for (const auto& child : module.children) collect(child, into);
}

TEST(Gpt2Shape, PublishedCounts) {
  const std::map<std::string_view, int64_t> expected{{"gpt2", 124439808},
                                                     {"gpt2-medium", 354823168},
                                                     {"gpt2-large", 774030080},
                                                     {"gpt2-xl", 1557611200},
                                                     {"gpt2-10b", 10279047168}};
  ASSERT_EQ(gpt2_names().size(), expected.size());
  for (std::string_view name : gpt2_names()) {
    const Gpt2Shape shape = gpt2_shape(name);
    EXPECT_EQ(numel_of(model_spec(shape)), expected.at(name)) << name;
  }
}

TEST(Gpt2Shape, TenBillionIsTheTutorials) {
  const Gpt2Shape shape = gpt2_shape("gpt2-10b");
  EXPECT_EQ(shape.layers, 50);
  EXPECT_EQ(shape.width, 4096);
  EXPECT_EQ(shape.heads, 32);
  EXPECT_EQ(shape.head_width(), 128);
}

TEST(Gpt2Shape, SpecIsHuggingFacesParameterList) {
  std::ifstream file(ZERO_TEST_DATA "/golden/gpt2_parameters.json");
  const auto published = nlohmann::ordered_json::parse(file);
  std::vector<ParameterSpec> ours;
  collect(model_spec(gpt2_shape("gpt2")), ours);
  ASSERT_EQ(ours.size(), published.size());
  size_t i = 0;
  for (const auto& [name, shape] : published.items()) {
    EXPECT_EQ(ours[i].name, name);
    EXPECT_EQ(ours[i].shape, shape.get<std::vector<int64_t>>()) << name;
    i++;
  }
}

TEST(Gpt2Shape, BlocksAreTheOnlyList) {
  const ModuleSpec root = model_spec(gpt2_shape("gpt2"));
  ASSERT_EQ(root.children.size(), 4u);
  for (const auto& child : root.children) EXPECT_EQ(child.is_list, child.name == "h") << child.name;
  EXPECT_EQ(root.children[2].children.size(), 12u);
  EXPECT_EQ(root.children[2].children[11].name, "h.11");
}

TEST(Gpt2Shape, RefusesImpossibleShapes) {
  EXPECT_ERROR(gpt2_shape("gpt-2"), Config,
               "expected one of gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt2-10b");
  EXPECT_ERROR((Gpt2Shape{.vocab_size = 0}.check()), Config, "gpt2 vocab_size: expected 1 to");
  EXPECT_ERROR((Gpt2Shape{.context_length = -4}.check()), Config, "got -4");
  EXPECT_ERROR((Gpt2Shape{.layers = 0}.check()), Config, "gpt2 layers");
  EXPECT_ERROR((Gpt2Shape{.width = int64_t{1} << 40}.check()), Config, "gpt2 width");
  EXPECT_ERROR((Gpt2Shape{.width = 770, .heads = 12}.check()), Config,
               "width 770 is not a multiple of 12 heads");
  EXPECT_ERROR((Gpt2Shape{.heads = 0}.check()), Config, "gpt2 heads: expected 1 to 768, got 0");
  EXPECT_ERROR((Gpt2Shape{.dropout = 1}.check()), Config, "gpt2 dropout");
  EXPECT_ERROR((Gpt2Shape{.dropout = std::numeric_limits<double>::quiet_NaN()}.check()), Config,
               "gpt2 dropout");
  EXPECT_ERROR((Gpt2Shape{.layer_norm_epsilon = 0}.check()), Config, "gpt2 layer_norm_epsilon");
  EXPECT_ERROR(model_spec(Gpt2Shape{.layers = int64_t{1} << 60}), Config, "gpt2 layers");
}

}  // namespace
}  // namespace zero
