// SPDX-License-Identifier: Apache-2.0
#include <examples/data/jpeg_folder.hpp>

#include "archives.hpp"

namespace {
using namespace data_sets;
using namespace test_data;
using channels = std::vector<std::uint8_t>;

/// The first pixel, each channel within 3 of what is expected: JPEG rounds.
bool begins_with(const picture& p, const channels& colour) {
  for (std::size_t c = 0; c < 3; ++c) {
    if (std::abs(int{p.pixels[c]} - int{colour[c]}) > 3) return false;
  }
  return true;
}

TEST_CASE("colour, grey and CMYK pictures become red, green and blue") {
  const picture colour = decode_jpeg(bytes(jpeg(20, 10, {200, 100, 50})), "f");
  CHECK(colour.width == 20);
  CHECK(colour.height == 10);
  CHECK(colour.pixels.size() == 600);
  CHECK(begins_with(colour, {200, 100, 50}));
  CHECK(begins_with(decode_jpeg(bytes(jpeg(8, 8, {90})), "f"), {90, 90, 90}));
  CHECK(begins_with(decode_jpeg(bytes(jpeg(8, 8, {0, 255, 255, 0})), "f"), {255, 0, 0}));  // inks
  CHECK(begins_with(decode_jpeg(bytes(jpeg(8, 8, {255, 0, 0, 255}, true)), "f"),
                    {255, 0, 0}));  // as Adobe's programs write them
}

TEST_CASE("pictures that are damaged, cut off, too large or no JPEG are refused") {
  const std::string good = jpeg(64, 64, {10, 20, 30});
  const auto refused = [](const std::string& text, std::int64_t most = 1 << 20) {
    return message_of([&] { decode_jpeg(bytes(text), "f", most); });
  };
  CHECK(refused(good).empty());
  CHECK(refused(good.substr(0, good.size() - 30)).find("f cannot be read as JPEG (") == 0);
  CHECK(refused(good.substr(0, 100)).find("f cannot be read as JPEG (") == 0);
  CHECK(refused("\x89PNG\r\n").find("Not a JPEG file") != std::string::npos);
  CHECK(refused("").find("f cannot be read as JPEG (") == 0);
  CHECK(refused(good, 4095) ==
        "f has 64 x 64 pixels (4095 at most are read): check that it is the right file, or scale it down");
}

picture ramp(std::int64_t width, std::int64_t height) {
  picture image{height, width, {}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x)
      image.pixels.insert(image.pixels.end(), 3, static_cast<std::uint8_t>(10 * x));
  }
  return image;
}

TEST_CASE("scaling down averages, scaling up goes between, one colour stays") {
  const picture half = resized(ramp(8, 2), 1, 4);
  CHECK(half.pixels.size() == 12);
  CHECK(half.pixels[3] == 25);  // of 0, 10, 20, ... 70: triangles around 1, 3, 5, 7
  CHECK(half.pixels[6] == 45);
  const picture twice = resized(ramp(2, 1), 1, 4);
  CHECK(twice.pixels[0] == 0);
  CHECK(twice.pixels[3] == 3);
  CHECK(twice.pixels[6] == 8);
  CHECK(twice.pixels[9] == 10);
  picture grey{5, 7, channels(105, 77)};
  for (const std::uint8_t value : resized(grey, 3, 11).pixels) CHECK(value == 77);
  CHECK(resized(grey, 5, 7).pixels == grey.pixels);
  CHECK(message_of<comp::settings_error>([&] { resized(grey, 0, 3); }).find("both must be positive") !=
        std::string::npos);
}

TEST_CASE("the middle is cut out of what is longer, in planes") {
  picture wide{2, 6, {}};
  for (int y = 0; y < 2; ++y) {
    for (std::uint8_t x = 0; x < 6; ++x)
      wide.pixels.insert(wide.pixels.end(), {x, static_cast<std::uint8_t>(x + 100), 7});
  }
  CHECK(middle(wide, 2) == channels{2, 3, 2, 3, 102, 103, 102, 103, 7, 7, 7, 7});
  CHECK(middle(ramp(40, 30), 16, 20).size() == 3 * 16 * 16);
  CHECK(middle(ramp(3, 200), 16).size() == 3 * 16 * 16);
}

TEST_CASE_FIXTURE(in_folder, "ImageNet's layout is listed by class") {
  const std::string red = jpeg(9, 9, {250, 0, 0});
  for (const char* name : {"train/n02/b.JPEG", "train/n02/a.JPEG", "train/n01/c.jpg", "val/n02/d.JPEG"})
    in.write(name, red);
  in.write("train/n01/notes.txt", "no picture");
  const picture_files train = list_pictures(in.path(), part::train), test = list_pictures(in.path(), part::test);
  CHECK(train.class_names == std::vector<std::string>{"n01", "n02"});
  CHECK(train.labels == std::vector<std::int32_t>{0, 1, 1});
  CHECK(train.files[1].filename() == "a.JPEG");
  CHECK(test.labels == std::vector<std::int32_t>{1});
  CHECK(is_picture_folder(in.path()));
  CHECK(read_picture(test.files[0], 4)[0] > 240);
  in.write("val/n03/e.JPEG", red);
  CHECK(message_of([&] { list_pictures(in.path(), part::test); }).find("is a class that train/ lacks") !=
        std::string::npos);
}

TEST_CASE_FIXTURE(in_folder, "Tiny ImageNet's layout is listed, in the folder or in the one above") {
  in.write("tiny-imagenet-200/train/n01/images/n01_0.JPEG", jpeg(64, 64, {1, 2, 3}));
  in.write("tiny-imagenet-200/train/n02/images/n02_0.JPEG", jpeg(64, 64, {9}));
  in.write("tiny-imagenet-200/val/images/val_0.JPEG", jpeg(64, 64, {9}));
  in.write("tiny-imagenet-200/val/val_annotations.txt", "val_0.JPEG\tn02\t0\t0\t62\t62\n");
  const picture_files test = list_pictures(in.path(), part::test);
  CHECK(test.labels == std::vector<std::int32_t>{1});
  CHECK(read_picture(test.files[0], 64).size() == 3 * 64 * 64);
  CHECK(list_pictures(in.path() / "tiny-imagenet-200", part::train).labels == std::vector<std::int32_t>{0, 1});
  const auto refused = [&](const std::string& line) {
    in.write("tiny-imagenet-200/val/val_annotations.txt", line);
    return message_of([&] { list_pictures(in.path(), part::test); });
  };
  CHECK(refused("val_0.JPEG\tn09\t0\n").find("line 1 has \"val_0.JPEG\\tn09\\t0\"") != std::string::npos);
  CHECK(refused("../../x.JPEG\tn01\t0\n").find("one in images/ is needed") != std::string::npos);
  CHECK(refused("/etc/passwd\tn01\t0\n").find("one in images/ is needed") != std::string::npos);
}

TEST_CASE_FIXTURE(in_folder, "folders that are in neither layout are refused") {
  CHECK(message_of([&] { list_pictures(in.path(), part::train); }).find("has no folder train") != std::string::npos);
  in.write("train/a.JPEG", "x");
  CHECK(message_of([&] { list_pictures(in.path(), part::train); }).find("has no folders (one for each class") !=
        std::string::npos);
  in.write("train/n01/a.JPEG", "x");
  CHECK(message_of([&] { list_pictures(in.path(), part::test); }).find("has no pictures by class") !=
        std::string::npos);
  CHECK(message_of([&] { read_picture(in.path() / "train/n01/a.JPEG", 8); }).find("a.JPEG\" cannot be read as JPEG") !=
        std::string::npos);
}
}  // namespace
