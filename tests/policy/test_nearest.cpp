// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/policy/nearest.hpp>

namespace {
using comp::policy::edit_distance;
using comp::policy::nearest_word;

TEST_CASE("the edit distance counts insertions, removals and replacements") {
  CHECK(edit_distance("softmax", "softmax") == 0);
  CHECK(edit_distance("sofmax", "softmax") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
}

TEST_CASE("the nearest word is offered, and none when all are far") {
  nearest_word wanted{"sofmax"};
  CHECK(wanted.word().empty());
  wanted.offer("conv2d");
  CHECK(wanted.word().empty());
  wanted.offer("softmix");
  CHECK(wanted.word() == "softmix");
  wanted.offer("softmax");
  CHECK(wanted.word() == "softmax");
  wanted.offer("softmix");
  CHECK(wanted.word() == "softmax");
}

TEST_CASE("one letter of a short word may be wrong") {
  nearest_word wanted{"mm"};
  wanted.offer("relu");
  CHECK(wanted.word().empty());
  wanted.offer("bmm");
  CHECK(wanted.word() == "bmm");
}

}  // namespace
