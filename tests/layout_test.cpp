// The layout of units: hard-coded examples, every rule, and a property test over random module trees.

#include "plan/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "support/expect_error.h"
#include "support/random_modules.h"

namespace zero {
namespace {

ParameterSpec parameter(std::string name, std::vector<int64_t> shape) {
  return {.name = std::move(name), .shape = std::move(shape)};
}

ModuleSpec module(std::string name, std::vector<ParameterSpec> parameters,
                  std::vector<ModuleSpec> children = {}) {
  return {.name = std::move(name), .parameters = std::move(parameters), .children = std::move(children)};
}

ModuleSpec list(std::string name, std::vector<ModuleSpec> children) {
  return {.name = std::move(name), .is_list = true, .parameters = {}, .children = std::move(children)};
}

std::vector<std::string> names(const std::vector<UnitLayout>& units) {
  std::vector<std::string> result;
  for (const UnitLayout& unit : units) result.push_back(unit.name);
  return result;
}

using Names = std::vector<std::string>;

TEST(Layout, WorkedExampleOfTheHeader) {
  auto units = make_layout(module("", {parameter("a", {2, 3}), parameter("b", {3})}),
                           {.shard_ranks = 2, .alignment_numel = 4});
  ASSERT_EQ(units.size(), 1u);
  const UnitLayout& unit = units[0];
  EXPECT_EQ(unit.name, "root");
  EXPECT_EQ(unit.parameters[0].offset, 0);
  EXPECT_EQ(unit.parameters[0].end(), 6);
  EXPECT_EQ(unit.parameters[1].offset, 8);
  EXPECT_EQ(unit.parameters[1].end(), 11);
  EXPECT_EQ(unit.numel, 9);
  EXPECT_EQ(unit.padded_numel, 16);
  EXPECT_EQ(unit.shard_numel, 8);
  EXPECT_EQ(unit.slab_bytes(), 64);
}

TEST(Layout, ElementsOfTheOutermostListsAreUnits) {
  ModuleSpec nested = module("h.1", {parameter("h.1.w", {2})},
                             {list("h.1.inner", {module("h.1.inner.0", {parameter("h.1.inner.0.w", {2})}),
                                                 module("h.1.inner.1", {parameter("h.1.inner.1.w", {2})})})});
  ModuleSpec tree =
      module("", {},
             {module("wte", {parameter("wte.weight", {8})}), module("wpe", {parameter("wpe.weight", {4})}),
              list("h", {module("h.0", {parameter("h.0.w", {2})}), nested, module("h.2", {})}),
              module("ln_f", {parameter("ln_f.weight", {4}), parameter("ln_f.bias", {4})})});
  auto units = make_layout(tree, {.alignment_numel = 1});
  EXPECT_EQ(names(units), (Names{"root", "h.0", "h.1", "ln_f"}));
  EXPECT_EQ(units[2].numel, 6);
  EXPECT_EQ(units[2].parameters[2].name, "h.1.inner.1.w");
}

TEST(Layout, LooseParametersGroupUpToASizeAndNeverAcrossAList) {
  ModuleSpec tree = module(
      "", {},
      {module("a", {}, {module("a.x", {parameter("a.x.w", {6})}), module("a.y", {parameter("a.y.w", {4})})}),
       module("big", {parameter("big.w", {11})}), module("c", {parameter("c.w", {1})}), list("l", {}),
       module("d", {parameter("d.w", {1})})});
  auto units = make_layout(tree, {.alignment_numel = 1, .group_numel = 10});
  EXPECT_EQ(names(units), (Names{"a", "big", "c", "d"}));
  EXPECT_EQ(units[0].numel, 10);
}

TEST(Layout, NamesOfGroupsAreWholeModulePathsAndUnique) {
  ModuleSpec tree = module("", {parameter("p", {4}), parameter("q", {4})},
                           {module("enc", {},
                                   {module("enc.ab", {parameter("enc.ab.w", {2})}),
                                    module("enc.abc", {parameter("enc.abc.w", {2})})})});
  auto units = make_layout(tree, {.alignment_numel = 1, .group_numel = 4});
  EXPECT_EQ(names(units), (Names{"root", "root#2", "enc"}));
}

TEST(Layout, AModuleOfSeveralKindsBecomesSeveralUnits) {
  ModuleSpec tree =
      list("", {module("0", {{.name = "0.a", .shape = {3}},
                             {.name = "0.b", .shape = {3}, .dtype = Dtype::bf16},
                             {.name = "0.c", .shape = {3}, .trainable = false},
                             {.name = "0.d", .shape = {3}},
                             {.name = "0.e", .shape = {3}, .dtype = Dtype::i64, .trainable = false}})});
  auto units = make_layout(tree, {.alignment_numel = 1});
  EXPECT_EQ(names(units), (Names{"0#fp32", "0#bf16", "0#fp32#frozen", "0#int64#frozen"}));
  EXPECT_EQ(units[0].parameters.size(), 2u);
  EXPECT_FALSE(units[2].trainable);

  Dtype half = Dtype::bf16;
  units = make_layout(tree, {.alignment_numel = 1}, &half);
  EXPECT_EQ(names(units), (Names{"0#bf16", "0#bf16#frozen", "0#int64#frozen"}));
  EXPECT_EQ(units[2].dtype, Dtype::i64);
}

TEST(Layout, TiedParametersStandWhereTheirFirstNameStands) {
  ModuleSpec tree = module(
      "", {},
      {module("wte", {{.name = "wte.weight", .shape = {4, 2}, .trainable = false, .identity = 7}}),
       list("h", {module("h.0", {parameter("h.0.w", {2})}),
                  module("h.1", {{.name = "h.1.t", .shape = {4, 2}, .identity = 7}})}),
       module("lm_head", {{.name = "lm_head.weight", .shape = {4, 2}, .trainable = false, .identity = 7}})});
  auto units = make_layout(tree, {.alignment_numel = 1});
  EXPECT_EQ(names(units), (Names{"wte", "h.0"}));
  EXPECT_EQ(units[0].parameters[0].aliases, (Names{"h.1.t", "lm_head.weight"}));
  EXPECT_TRUE(units[0].trainable) << "one trainable name makes the tensor trainable";
}

TEST(Layout, ZeroSizedParametersKeepTheirPlace) {
  ModuleSpec tree =
      list("", {module("0", {parameter("0.empty", {0, 5}), parameter("0.w", {3}), parameter("0.last", {0})}),
                module("1", {parameter("1.empty", {0, int64_t{1} << 62, 1 << 30})})});
  auto units = make_layout(tree, {.shard_ranks = 3, .alignment_numel = 4});
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[0].parameters[1].offset, 0);
  EXPECT_EQ(units[0].parameters[2].offset, 4);
  EXPECT_EQ(units[0].padded_numel, 12);
  EXPECT_EQ(units[1].padded_numel, 0);
  EXPECT_EQ(units[1].shard_numel, 0);
}

TEST(Layout, AnEmptyTreeHasNoUnits) { EXPECT_TRUE(make_layout({}, {}).empty()); }

TEST(Layout, ShapesBeyondThisMachineAreExact) {
  ModuleSpec tree = list("", {});
  for (int i = 0; i < 128; ++i) {
    std::string name = std::to_string(i);
    tree.children.push_back(module(name, {parameter(name + ".w", {25600, 12 * 25600})}));
  }
  auto units = make_layout(tree, {.shard_ranks = 1024});
  int64_t numel = 0, shard = 0;
  for (const UnitLayout& unit : units) numel += unit.numel, shard += unit.shard_numel;
  EXPECT_EQ(numel, int64_t{12} * 128 * 25600 * 25600);
  EXPECT_EQ(shard * 1024, numel);
}

TEST(Layout, BadInputIsNamed) {
  ModuleSpec good = module("", {parameter("a", {2})});
  EXPECT_ERROR(make_layout(good, {.shard_ranks = 0}), Config, "shard_ranks");
  EXPECT_ERROR(make_layout(good, {.alignment_numel = 0}), Config, "alignment_numel");
  EXPECT_ERROR(make_layout(good, {.alignment_numel = int64_t{1} << 62}), Config, "alignment_numel");
  EXPECT_ERROR(make_layout(good, {.group_numel = 0}), Config, "group_numel");
  Dtype integer = Dtype::i64;
  EXPECT_ERROR(make_layout(good, {}, &integer), Config, "int64");

  EXPECT_ERROR(make_layout(module("", {parameter("a", {2}), parameter("a", {2})}), {}), Config,
               "a: two parameters");
  EXPECT_ERROR(make_layout(module("", {parameter("w", {2, -1})}), {}), Config,
               "w: negative size in shape [2, -1]");
  EXPECT_ERROR(make_layout(module("", {parameter("w", {0, -1})}), {}), Config, "negative");
  EXPECT_ERROR(make_layout(module("", {parameter("w", {int64_t{1} << 40, int64_t{1} << 40})}), {}), Config,
               "too large");
  std::vector<ParameterSpec> huge;
  for (int i = 0; i < 300; ++i) huge.push_back(parameter("p" + std::to_string(i), {int64_t{1} << 56}));
  EXPECT_ERROR(make_layout(module("", huge), {.group_numel = std::numeric_limits<int64_t>::max()}), Config,
               "elements");
  EXPECT_ERROR(make_layout(module("", {{.name = "i", .shape = {1}, .dtype = Dtype::i64}}), {}), Config,
               "floating");

  auto tied = [](std::vector<int64_t> shape, Dtype dtype) {
    return module("", {{.name = "first", .shape = {2, 3}, .identity = 1},
                       {.name = "second", .shape = std::move(shape), .dtype = dtype, .identity = 1}});
  };
  EXPECT_ERROR(make_layout(tied({3, 2}, Dtype::f32), {}), Config, "first and second");
  EXPECT_ERROR(make_layout(tied({2, 3}, Dtype::bf16), {}), Config, "first and second");
  EXPECT_EQ(make_layout(tied({2, 3}, Dtype::f32), {}).size(), 1u);
}

void expect_sound_unit(const UnitLayout& unit, const LayoutOptions& options) {
  SCOPED_TRACE(unit.name);
  ASSERT_FALSE(unit.parameters.empty());
  int64_t end = 0, numel = 0;
  for (const UnitParameter& parameter : unit.parameters) {
    EXPECT_EQ(parameter.offset % options.alignment_numel, 0) << parameter.name;
    EXPECT_GE(parameter.offset, end) << parameter.name;
    end = parameter.end();
    numel += parameter.numel;
    EXPECT_LE(end, unit.padded_numel) << parameter.name;
  }
  EXPECT_EQ(unit.numel, numel);
  EXPECT_EQ(unit.shard_numel % options.alignment_numel, 0);
  EXPECT_EQ(unit.shard_numel * options.shard_ranks, unit.padded_numel);
  int64_t most =
      (options.shard_ranks + static_cast<int64_t>(unit.parameters.size())) * options.alignment_numel;
  EXPECT_LT(unit.padded_numel - unit.numel, most);
  if (numel == 0) {
    EXPECT_EQ(unit.padded_numel, 0);
  }
}

void expect_all_placed_once(const testing::FlatTree& tree, const std::vector<UnitLayout>& units) {
  std::map<std::string, int> times;
  std::set<std::string> unit_names;
  for (const UnitLayout& unit : units) {
    EXPECT_TRUE(unit_names.insert(unit.name).second) << unit.name;
    for (const UnitParameter& parameter : unit.parameters) {
      ++times[parameter.name];
      const ParameterSpec& spec = tree.parameters.at(parameter.name);
      EXPECT_EQ(parameter.shape, spec.shape);
      EXPECT_EQ(parameter.numel, spec.numel());
      EXPECT_EQ(unit.dtype, spec.dtype);
      bool trainable = spec.trainable;
      for (const std::string& alias : parameter.aliases) {
        ++times[alias];
        EXPECT_EQ(tree.parameters.at(alias).identity, spec.identity);
        EXPECT_LT(tree.position(parameter.name), tree.position(alias));
        trainable |= tree.parameters.at(alias).trainable;
      }
      EXPECT_EQ(unit.trainable, trainable) << parameter.name;
    }
  }
  EXPECT_EQ(times.size(), tree.parameters.size());
  for (const auto& [name, count] : times) EXPECT_EQ(count, 1) << name;
}

// Order inside a unit is module order, and units stand in the order of their first parameters within a chunk.
void expect_module_order(const testing::FlatTree& tree, const std::vector<UnitLayout>& units) {
  for (const UnitLayout& unit : units)
    for (size_t i = 1; i < unit.parameters.size(); ++i)
      EXPECT_LT(tree.position(unit.parameters[i - 1].name), tree.position(unit.parameters[i].name));
}

TEST(Layout, HoldsItsPromisesForRandomTrees) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    ModuleSpec root = testing::random_module_tree(seed);
    testing::FlatTree tree(root);
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (int64_t alignment : {1, 3, 4, 32}) {
        SCOPED_TRACE("seed " + std::to_string(seed) + " ranks " + std::to_string(ranks) + " alignment " +
                     std::to_string(alignment));
        LayoutOptions options{.shard_ranks = ranks, .alignment_numel = alignment, .group_numel = 64};
        auto units = make_layout(root, options);
        for (const UnitLayout& unit : units) expect_sound_unit(unit, options);
        expect_all_placed_once(tree, units);
        expect_module_order(tree, units);
        if (HasFailure()) return;
      }
  }
}

TEST(Layout, OffsetsDoNotDependOnTheRanks) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    ModuleSpec root = testing::random_module_tree(seed);
    auto alone = make_layout(root, {.shard_ranks = 1});
    auto many = make_layout(root, {.shard_ranks = 7});
    ASSERT_EQ(names(alone), names(many));
    for (size_t i = 0; i < alone.size(); ++i)
      for (size_t j = 0; j < alone[i].parameters.size(); ++j)
        EXPECT_EQ(alone[i].parameters[j].offset, many[i].parameters[j].offset);
  }
}

TEST(Layout, TensorsAreShardedOneByOneWhereAsked) {
  ModuleSpec list{.name = "h", .is_list = true, .parameters = {}, .children = {}};
  for (const char* name : {"h.0", "h.1"})
    list.children.push_back({.name = name,
                             .parameters = {{.name = std::string(name) + ".w", .shape = {5, 2}},
                                            {.name = std::string(name) + ".b", .shape = {3}}},
                             .children = {}});
  const std::vector<UnitLayout> units =
      make_layout(list, {.shard_ranks = 2, .alignment_numel = 1, .shard_unit = ShardUnit::Tensor});
  ASSERT_EQ(units.size(), 4u);
  EXPECT_EQ(units[0].name, "h.0.w");
  EXPECT_EQ(units[0].shard_numel, 5);
  EXPECT_EQ(units[1].shard_numel, 2) << "three elements and one of padding";
  EXPECT_EQ(units[3].name, "h.1.b");
}

}  // namespace
}  // namespace zero
