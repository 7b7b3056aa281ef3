// SPDX-License-Identifier: Apache-2.0
#include <examples/data/images.hpp>

#include "temporary.hpp"

namespace {
using namespace data_sets;
using namespace test_data;

images five() {
  return {.count = 5,
          .channels = 1,
          .height = 1,
          .width = 2,
          .pixels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
          .labels = {0, 1, 2, 1, 0},
          .classes = 3};
}

TEST_CASE("the last images are held out, and none is lost") {
  const auto [train, test] = split(five(), 0.4);
  CHECK(train.count == 3);
  CHECK(train.pixels == std::vector<std::uint8_t>{0, 1, 2, 3, 4, 5});
  CHECK(train.labels == std::vector<std::int32_t>{0, 1, 2});
  CHECK(test.count == 2);
  CHECK(test.pixels == std::vector<std::uint8_t>{6, 7, 8, 9});
  CHECK(test.labels == std::vector<std::int32_t>{1, 0});
  CHECK(test.classes == 3);
}

TEST_CASE("a split that leaves a part empty is refused") {
  CHECK(message_of<comp::error>([] { split(five(), 0.1); }) ==
        "5 images with a share of 0.1 held out (each part needs an image): use more images or another share");
  for (const double share : {0.0, 1.0, -1.0}) {
    CHECK(message_of<comp::error>([&] { split(five(), share); }).ends_with("(it must lie between 0 and 1): change it"));
  }
}

TEST_CASE("images of one size are joined, of two sizes not") {
  images all;
  all.append(five());
  all.append(five());
  CHECK(all.count == 10);
  CHECK(all.labels.size() == 10);
  images other = five();
  other.width = 1;
  CHECK(message_of([&] { all.append(other); }) ==
        "images of 1 pixels in 3 classes behind images of 2 in 3 (one data set has one size): read them apart");
}
}  // namespace
