// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/policy/nearest.hpp>

namespace {
using comp::policy::nearest_word;

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
