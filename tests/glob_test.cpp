// Globs over names: every kind of token, and against the definition.
#include "base/glob.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace zero {
namespace {

TEST(Glob, MatchesTheWholeName) {
  EXPECT_TRUE(glob_matches("wte.weight", "wte.weight"));
  EXPECT_FALSE(glob_matches("wte", "wte.weight"));
  EXPECT_FALSE(glob_matches("bias", "attn.bias"));
  EXPECT_TRUE(glob_matches("*.bias", "transformer.h.0.attn.bias"));
  EXPECT_FALSE(glob_matches("*.bias", "transformer.h.0.attn.bias_k"));
  EXPECT_TRUE(glob_matches("h.?.ln_*.weight", "h.3.ln_1.weight"));
  EXPECT_FALSE(glob_matches("h.?.ln_*.weight", "h.13.ln_1.weight"));
  EXPECT_TRUE(glob_matches("", ""));
  EXPECT_FALSE(glob_matches("", "a"));
  EXPECT_TRUE(glob_matches("***", ""));
  EXPECT_FALSE(glob_matches("?", ""));
  EXPECT_TRUE(glob_matches("*a*b*c", "xaxbxbxc"));
  EXPECT_FALSE(glob_matches("*a*b*c", "xaxbxbx"));
}

TEST(Glob, KnowsSets) {
  EXPECT_TRUE(glob_matches("h.?.ln_[12].*", "h.3.ln_2.weight"));
  EXPECT_FALSE(glob_matches("h.?.ln_[12].*", "h.13.ln_2.weight"));
  EXPECT_FALSE(glob_matches("h.?.ln_[12].*", "h.3.ln_3.weight"));
  EXPECT_TRUE(glob_matches("h.[0-4].*", "h.3.x"));
  EXPECT_FALSE(glob_matches("h.[!0-4].*", "h.3.x"));
  EXPECT_TRUE(glob_matches("h.[^0-4].*", "h.5.x"));
  EXPECT_TRUE(glob_matches("[]]x", "]x"));
  EXPECT_TRUE(glob_matches("[a-]", "-"));
  EXPECT_TRUE(glob_matches("h[[]0].x", "h[0].x"));
  EXPECT_FALSE(glob_matches("h[0].x", "h[0].x"));
}

TEST(Glob, NeedsEveryBracketClosed) {
  for (const char* good : {"a", "*", "[a]", "[]]", "[!]]", "]", "a[b-]c"}) EXPECT_TRUE(is_glob(good)) << good;
  for (const char* bad : {"", "[", "h.[0-4", "[]", "[!]", "[a][b"}) EXPECT_FALSE(is_glob(bad)) << bad;
  EXPECT_FALSE(glob_matches("h.[0", "h.[0"));
  EXPECT_FALSE(glob_matches("*[", "["));
}

TEST(Glob, TakesNoExponentialTime) {
  std::string glob;
  for (int i = 0; i < 200; ++i) glob += "*a";
  EXPECT_FALSE(glob_matches(glob + "b", std::string(2000, 'a')));
}

// Against the definition by recursion, for every short glob and name.
TEST(Glob, EqualsTheRecursiveDefinition) {
  struct Slow {
    static bool match(std::string_view g, std::string_view n) {
      if (g.empty()) return n.empty();
      if (g[0] == '*') return match(g.substr(1), n) || (!n.empty() && match(g, n.substr(1)));
      return !n.empty() && (g[0] == '?' || g[0] == n[0]) && match(g.substr(1), n.substr(1));
    }
  };
  const auto words = [](std::string_view letters, size_t longest) {
    std::vector<std::string> all{""};
    for (size_t i = 0; i < all.size() && all[i].size() < longest; i++) {
      for (char c : letters) all.push_back(all[i] + c);
    }
    return all;
  };
  for (const std::string& glob : words("ab*?", 5)) {
    for (const std::string& name : words("ab", 5)) {
      ASSERT_EQ(glob_matches(glob, name), Slow::match(glob, name)) << glob << " " << name;
    }
  }
}

}  // namespace
}  // namespace zero
