// Boxes and ranges of them: against the definition, element by element.
#include "zero/box.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace zero {
namespace {

// The elements of a range, by their place in the flattened tensor, in the range's order.
std::vector<int64_t> elements_of(const BoxRange& range, const std::vector<int64_t>& shape) {
  std::vector<int64_t> elements;
  for (int64_t i = range.begin; i < range.end(); ++i) {
    int64_t rest = i, element = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      element += (range.box.begin[d] + rest % range.box.size[d]) * stride;
      rest /= range.box.size[d];
      stride *= shape[d];
    }
    elements.push_back(element);
  }
  return elements;
}

TEST(Box, KnowsItsElements) {
  const std::vector<int64_t> shape{3, 4};
  EXPECT_EQ(Box::whole(shape), (Box{{0, 0}, {3, 4}}));
  EXPECT_EQ(Box::whole(shape).numel(), 12);
  EXPECT_EQ(Box{}.numel(), 1);  // a scalar
  EXPECT_EQ((Box{{1, 2}, {2, 0}}).numel(), 0);
  EXPECT_EQ((Box{{0, 0, 0}, {int64_t{1} << 40, int64_t{1} << 40, 0}}).numel(), 0);
  EXPECT_EQ(to_string(Box{{0, 2}, {3, 2}}), "[0:3,2:4]");
  EXPECT_EQ(to_string(Box{}), "[]");
}

TEST(Box, IsInsideATensorOrNot) {
  const int64_t most = INT64_MAX;
  EXPECT_TRUE((Box{{0, 2}, {3, 2}}).is_inside({{3, 4}}));
  EXPECT_TRUE((Box{{3, 4}, {0, 0}}).is_inside({{3, 4}}));
  EXPECT_TRUE(Box{}.is_inside({}));
  EXPECT_FALSE((Box{{0}, {3}}).is_inside({{3, 4}}));
  EXPECT_FALSE((Box{{0, 0}, {3}}).is_inside({{3, 4}}));
  EXPECT_FALSE((Box{{0, 3}, {3, 2}}).is_inside({{3, 4}}));
  EXPECT_FALSE((Box{{-1, 0}, {1, 1}}).is_inside({{3, 4}}));
  EXPECT_FALSE((Box{{1, 0}, {-1, 1}}).is_inside({{3, 4}}));
  EXPECT_FALSE((Box{{most, 0}, {most, 1}}).is_inside({{3, 4}}));
  EXPECT_FALSE((Box{{1, 0}, {most, 1}}).is_inside({{3, 4}}));

  const Box half{{0, 2}, {3, 2}};
  EXPECT_TRUE((BoxRange{half, 5, 1}).is_inside({{3, 4}}));
  EXPECT_TRUE((BoxRange{half, 6, 0}).is_inside({{3, 4}}));
  EXPECT_FALSE((BoxRange{half, 5, 2}).is_inside({{3, 4}}));
  EXPECT_FALSE((BoxRange{half, -1, 1}).is_inside({{3, 4}}));
  EXPECT_FALSE((BoxRange{half, 1, most}).is_inside({{3, 4}}));
  EXPECT_FALSE((BoxRange{half, 1, -1}).is_inside({{3, 4}}));
}

TEST(Box, ContainsAndIntersects) {
  const Box left{{0, 0}, {3, 2}}, middle{{1, 1}, {1, 2}}, right{{0, 2}, {3, 2}};
  EXPECT_TRUE(Box::whole({{3, 4}}).contains(middle));
  EXPECT_FALSE(left.contains(middle));
  EXPECT_TRUE(left.contains(Box{{9, 9}, {0, 1}}));
  EXPECT_EQ(intersect(left, middle), (Box{{1, 1}, {1, 1}}));
  EXPECT_EQ(intersect(left, right), std::nullopt);
  EXPECT_EQ(intersect(Box{}, Box{}), Box{});
  EXPECT_EQ(intersect(left, Box{{1, 1}, {0, 1}}), std::nullopt);
}

// The whole of a column slice is a run a row; the whole of a row slice is one run.
TEST(Box, RunsAreAsLongAsBothAreContiguous) {
  const std::vector<int64_t> shape{5, 6};
  const auto runs_of = [](CommonRuns runs) {
    int64_t count = 0;
    while (runs.next()) ++count;
    return count;
  };
  const BoxRange whole = BoxRange::whole(shape);
  EXPECT_EQ(runs_of({whole, whole}), 1);
  EXPECT_EQ(runs_of({whole, BoxRange::all_of({{1, 0}, {3, 6}})}), 1);
  EXPECT_EQ(runs_of({whole, BoxRange::all_of({{0, 2}, {5, 3}})}), 5);
  EXPECT_EQ(runs_of({BoxRange::all_of({{0, 2}, {5, 3}}), BoxRange::all_of({{1, 2}, {3, 3}})}), 1);
  EXPECT_EQ(runs_of({whole, {Box{{0, 2}, {5, 3}}, 4, 4}}), 2);
  EXPECT_EQ(CommonRuns(whole, {Box{{0, 2}, {5, 3}}, 4, 4}).numel(), 4);
  EXPECT_EQ(runs_of({BoxRange::flat(shape, 0, 7), BoxRange::flat(shape, 7, 3)}), 0);
}

// A gigantic tensor costs no more than a small one: what is not shared is never looked at.
TEST(Box, CostsWhatIsShared) {
  const std::vector<int64_t> shape{int64_t{1} << 31, int64_t{1} << 31};
  const BoxRange column = BoxRange::all_of({{0, 7}, {shape[0], 1}});
  CommonRuns runs(BoxRange::flat(shape, (shape[0] / 2) * shape[1], 3 * shape[1]), column);
  EXPECT_EQ(runs.numel(), 3);
  const auto first = runs.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->from_a, 7);
  EXPECT_EQ(first->from_b, shape[0] / 2);
}

TEST(Box, CommonRunsEqualTheDefinition) {
  std::mt19937 random(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  int64_t shared = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<int64_t> shape;
    for (int64_t d = below(5); d > 0; --d) shape.push_back(1 + below(4));
    const auto some = [&] {
      BoxRange range;
      for (const int64_t size : shape) {
        range.box.begin.push_back(below(3) ? 0 : below(size));
        range.box.size.push_back(below(3) ? size - range.box.begin.back()
                                          : below(size - range.box.begin.back() + 1));
      }
      range.begin = below(range.box.numel() + 1);
      range.numel = below(range.box.numel() - range.begin + 1);
      return range;
    };
    const BoxRange a = some(), b = some();
    ASSERT_TRUE(a.is_inside(shape));
    const std::vector<int64_t> in_a = elements_of(a, shape), in_b = elements_of(b, shape);
    std::map<int64_t, int64_t> expected;  // offset in a -> offset in b
    for (size_t i = 0; i < in_a.size(); ++i)
      for (size_t j = 0; j < in_b.size(); ++j)
        if (in_a[i] == in_b[j]) expected[static_cast<int64_t>(i)] = static_cast<int64_t>(j);
    std::map<int64_t, int64_t> found;
    CommonRuns runs(a, b);
    EXPECT_EQ(runs.numel(), std::ssize(expected));
    EXPECT_EQ(runs.end_a(), expected.empty() ? 0 : expected.rbegin()->first + 1);
    int64_t last_a = -1, last_b = -1;
    while (const auto run = runs.next()) {
      ASSERT_TRUE(run->numel > 0 && run->from_a > last_a && run->from_b > last_b);
      for (int64_t i = 0; i < run->numel; ++i) found[run->from_a + i] = run->from_b + i;
      last_a = run->from_a + run->numel - 1;
      last_b = run->from_b + run->numel - 1;
    }
    ASSERT_EQ(found, expected) << to_string(a.box) << " " << to_string(b.box);
    shared += !expected.empty();
  }
  EXPECT_GT(shared, 200);
}

}  // namespace
}  // namespace zero
