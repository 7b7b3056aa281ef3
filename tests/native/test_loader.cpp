// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp_native/loader.hpp>
#include <stdexcept>

#include "support.hpp"

using namespace comp::native;
using native_models::image_data;
using native_models::token_data;

namespace {

/// Example i is the number i.
struct numbers {
  std::size_t count = 10;
  std::size_t fails_at = ~std::size_t{0};
  std::size_t size() const { return count; }
  example_layout layout() const { return {.input_shape = {2}}; }
  void write(std::size_t i, const example_spans& to) const {
    if (i == fails_at) throw std::runtime_error{"unreadable"};
    to.values[0] = to.values[1] = static_cast<float>(i);
    to.labels[0] = static_cast<std::int32_t>(i);
  }
  std::string signature() const { return "numbers"; }
};

std::vector<std::int32_t> labels_of(loader& from, std::uint64_t batches) {
  std::vector<std::int32_t> all;
  for (std::uint64_t i = 0; i < batches; ++i) {
    const auto& batch = from.next();
    CHECK(batch.values.size() == 2 * batch.labels.size());
    for (std::size_t k = 0; k < batch.labels.size(); ++k) {
      CHECK(batch.values[2 * k] == static_cast<float>(batch.labels[k]));
    }
    all.insert(all.end(), batch.labels.begin(), batch.labels.end());
  }
  return all;
}

}  // namespace

TEST_CASE("an epoch has every example once, in another order than the epoch before") {
  loader all{numbers{12}, {.batch = 4, .seed = 1}};
  auto first = labels_of(all, 3), second = labels_of(all, 3);
  CHECK(all.at() == loader_position{2, 0});
  CHECK(first != second);
  std::ranges::sort(first);
  std::ranges::sort(second);
  CHECK(first == second);
  CHECK(first == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
}

TEST_CASE("the order follows from the seed, with and without prefetch") {
  loader with{numbers{50}, {.batch = 7, .seed = 5}}, without{numbers{50}, {.batch = 7, .seed = 5, .prefetch = false}};
  loader other{numbers{50}, {.batch = 7, .seed = 6}};
  const auto order = labels_of(with, 20);
  CHECK(order == labels_of(without, 20));
  CHECK(order != labels_of(other, 20));
}

TEST_CASE("without shuffling examples come as they are") {
  loader all{numbers{6}, {.batch = 3, .shuffle = false}};
  CHECK(labels_of(all, 4) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
}

TEST_CASE("a last batch that is not full is dropped, or kept where asked for") {
  loader dropped{numbers{10}, {.batch = 4, .shuffle = false}};
  CHECK(dropped.batches_per_epoch() == 2);
  CHECK(labels_of(dropped, 3) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3});
  loader kept{numbers{10}, {.batch = 4, .shuffle = false, .keep_last = true}};
  CHECK(kept.batches_per_epoch() == 3);
  CHECK(labels_of(kept, 4) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3});
}

TEST_CASE("a loader goes back to any position") {
  for (const bool prefetch : {true, false}) {
    CAPTURE(prefetch);
    loader all{numbers{20}, {.batch = 5, .seed = 2, .prefetch = prefetch}};
    const auto order = labels_of(all, 12);
    for (const std::uint64_t batch : {9, 2, 7, 0, 11, 4}) {
      all.seek({batch / 4, batch % 4});
      const auto again = labels_of(all, 1);
      CHECK(std::equal(again.begin(), again.end(), order.begin() + static_cast<std::ptrdiff_t>(batch) * 5));
    }
  }
  loader all{numbers{20}, {.batch = 5}};
  CHECK_THROWS_WITH_AS(all.seek({0, 4}),
                       "batch 4 of an epoch of 4 (it is past the end): restore a state of this trainer", comp::error);
}

TEST_CASE("a data set that throws is heard of by who asks for the batch, and can be asked again") {
  for (const bool prefetch : {true, false}) {
    loader all{numbers{6, 4}, {.batch = 2, .shuffle = false, .prefetch = prefetch}};
    CHECK(labels_of(all, 2) == std::vector<std::int32_t>{0, 1, 2, 3});
    CHECK_THROWS_WITH(all.next(), "unreadable");
    CHECK_THROWS_WITH(all.next(), "unreadable");
    all.seek({1, 0});
    CHECK(labels_of(all, 1) == std::vector<std::int32_t>{0, 1});
  }
}

TEST_CASE("data sets that fill no batch are refused") {
  CHECK_THROWS_WITH_AS((loader{numbers{0}, {.batch = 4}}),
                       "the data set has 0 examples (nothing to train on): check the reader and its path", comp::error);
  CHECK_THROWS_WITH_AS(
      (loader{numbers{3}, {.batch = 4}}),
      "batches of 4 examples of a data set of 3 (none is full): make the batch smaller or the data set larger",
      comp::error);
  CHECK_THROWS_WITH_AS((loader{numbers{3}, {.batch = 0}}),
                       "batches of 0 examples (at least one): change the batch size", comp::error);
}

TEST_CASE("a permutation has every number, whatever the seed") {
  for (const std::uint64_t seed : {0, 1, 99}) {
    auto order = permutation(1000, seed, 3);
    CHECK(order == permutation(1000, seed, 3));
    CHECK(order != permutation(1000, seed, 4));
    std::ranges::sort(order);
    for (std::uint32_t i = 0; i < 1000; ++i) REQUIRE(order[i] == i);
  }
  // Each number is equally likely in each place: 6 orders of 3 numbers, 6000 seeds.
  std::vector<int> seen(6);
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    const auto p = permutation(3, seed, 0);
    ++seen[2 * p[0] + (p[1] > p[2])];
  }
  for (const int count : seen) CHECK(std::abs(count - 1000) < 150);  // five deviations
}

TEST_CASE("images are normalised by channel") {
  const image_data images{{2, 1, 2}, {0, 255, 51, 102}, {3}, {0.5F, 0.2F}, {0.5F, 0.4F}};
  loader all{images, {.batch = 1}};
  const auto& batch = all.next();
  CHECK(batch.values == std::vector<float>{-1, 1, 0, 0.5F});
  CHECK(batch.labels == std::vector<std::int32_t>{3});
  const auto same_with = [](std::uint8_t pixel, float mean) {
    return image_data{{1, 1, 1}, {pixel}, {0}, {mean}}.signature();
  };
  CHECK(same_with(1, 0.5F) == same_with(1, 0.5F));
  CHECK(same_with(1, 0.5F) != same_with(2, 0.5F));
  CHECK(same_with(1, 0.5F) != same_with(1, 0.4F));
  CHECK_THROWS_WITH_AS((image_data{{2, 1, 2}, {0, 1, 2}, {3}}),
                       "3 pixels for 1 images of (2,1,2) (they must agree): check the reader", comp::error);
  CHECK_THROWS_WITH_AS((image_data{{4}, {0}, {3}}),
                       "images of shape (4) (it must be (C,H,W), all positive): give the shape of one image",
                       comp::error);
  CHECK_THROWS_AS((image_data{{1, 1, 1}, {0}, {3}, {}, {0.0F}}), comp::error);
}

TEST_CASE("the label of a token is the next one") {
  loader all{token_data{{1, 2, 3, 4, 5, 6, 7}, 3}, {.batch = 2, .shuffle = false}};
  const auto& batch = all.next();
  CHECK(batch.tokens == std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  CHECK(batch.labels == std::vector<std::int32_t>{2, 3, 4, 5, 6, 7});
  CHECK(token_data{{1, 2, 3, 4, 5, 6}, 3}.size() == 1);
  CHECK(token_data{{1, 2, 3, 4, 5, 6}, 3, 1}.size() == 3);
  CHECK_THROWS_WITH_AS(
      (token_data{{1, 2, 3}, 3}),
      "3 tokens for windows of 3 and the next (at least one window): use more text or a shorter context", comp::error);
  CHECK_THROWS_AS((token_data{{1, -2, 3}, 2}), comp::error);
  CHECK_THROWS_AS((token_data{{1, 2, 3}, 0}), comp::error);
}

namespace {
struct without_size : numbers {
  void size() const = delete;
};
struct writes_elsewhere : numbers {
  void write(std::size_t, float*) const;
};
struct without_signature : numbers {
  int signature() const { return 1; }
};
}  // namespace
static_assert(Dataset<numbers> && Dataset<image_data> && Dataset<token_data>);
static_assert(!Dataset<without_size> && !Dataset<writes_elsewhere> && !Dataset<without_signature>);
