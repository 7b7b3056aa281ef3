// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/policy/glob.hpp>
#include <string>

namespace {
using comp::policy::matches_glob;

TEST_CASE("a pattern covers the whole name") {
  CHECK(matches_glob("conv", "conv"));
  CHECK_FALSE(matches_glob("conv1", "conv"));
  CHECK_FALSE(matches_glob("conv", "conv1"));
  CHECK_FALSE(matches_glob("my.conv", "conv"));
}

TEST_CASE("a star is any run of characters, the empty one and dots too; a question mark is exactly one") {
  CHECK(matches_glob("block1.attention.query", "block?.attention.*"));
  CHECK(matches_glob("block1.attention.", "block?.attention.*"));
  CHECK_FALSE(matches_glob("block12.attention.query", "block?.attention.*"));
  CHECK(matches_glob("block12.attention.query", "block*query"));
  CHECK(matches_glob("a.b.c", "*"));
  CHECK(matches_glob("", "*"));
  CHECK_FALSE(matches_glob("", "?"));
  CHECK(matches_glob("abab", "*ab"));
  CHECK(matches_glob("aXbXc", "a*b*c"));
  CHECK_FALSE(matches_glob("aXbX", "a*b*c"));
}

TEST_CASE("brackets and backslashes are letters: names such as layers[0] have them") {
  CHECK(matches_glob("layers[0].conv", "layers[0].*"));
  CHECK_FALSE(matches_glob("layers0.conv", "layers[0].*"));
  CHECK(matches_glob("a\\b", "a\\?"));
}

TEST_CASE("many stars over a name that almost matches end in time") {
  const std::string name(2000, 'a');
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "a*";
  CHECK(matches_glob(name, pattern));
  CHECK_FALSE(matches_glob(name, pattern + "b"));
}
}  // namespace
