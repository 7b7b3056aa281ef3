// SPDX-License-Identifier: Apache-2.0
#include <examples/data/idx.hpp>

#include "temporary.hpp"

namespace {
using namespace data_sets;
using namespace test_data;

std::string big_endian(std::uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
  return text;
}
std::string idx(std::initializer_list<std::uint32_t> shape, std::string_view values) {
  std::string text = big_endian(0x800 + static_cast<std::uint32_t>(shape.size()));
  for (const std::uint32_t extent : shape) text += big_endian(extent);
  return text + std::string{values};
}
std::string parse(const std::string& text) {
  return message_of([&] { parse_idx(bytes(text), "f"); });
}

TEST_CASE("an idx array has the shape and values that were written") {
  const auto contents = bytes(idx({2, 1, 3}, "abcdef"));
  const idx_array parsed = parse_idx(contents, "f");
  CHECK(parsed.shape == std::vector<std::int64_t>{2, 1, 3});
  CHECK(std::vector<std::byte>(parsed.values.begin(), parsed.values.end()) == bytes("abcdef"));
}

TEST_CASE_FIXTURE(in_folder, "images and labels are read from files, plain or gzip") {
  const auto images_file = in.write("i", idx({2, 2, 3}, "abcdefghijkl"));
  const auto labels_file = in.write("l.gz", gzip(idx({2}, std::string_view{"\x07\x02", 2})));
  const images read = read_idx(images_file, labels_file);
  CHECK(read.count == 2);
  CHECK(read.channels == 1);
  CHECK(read.height == 2);
  CHECK(read.width == 3);
  CHECK(read.pixels[3] == 'd');
  CHECK(read.labels == std::vector<std::int32_t>{7, 2});
  CHECK(read.classes == 8);
}

TEST_CASE("four axes are images with channels") {
  const images read = parse_idx_images(bytes(idx({1, 3, 1, 2}, "abcdef")), "i", bytes(idx({1}, "\x01")), "l");
  CHECK(read.channels == 3);
  CHECK(read.height == 1);
  CHECK(read.width == 2);
}

TEST_CASE_FIXTURE(in_folder, "a folder in MNIST's layout is read by part") {
  CHECK_FALSE(is_mnist(in.path()));
  in.write("train-images-idx3-ubyte.gz", gzip(idx({1, 1, 1}, "a")));
  in.write("train-labels-idx1-ubyte", idx({1}, "\x01"));
  in.write("t10k-images-idx3-ubyte", idx({2, 1, 1}, "ab"));
  CHECK(is_mnist(in.path()));
  CHECK(read_mnist(in.path(), part::train).count == 1);
  CHECK(message_of([&] { read_mnist(in.path(), part::test); }).find("neither t10k-labels-idx1-ubyte nor") !=
        std::string::npos);
}

TEST_CASE("malformed idx bytes are refused, with the offset and what was expected") {
  CHECK(parse("ab") == "f has 2 bytes (an idx file begins with a magic number of 4): fetch it again");
  CHECK(
      parse("hello") ==
      "f begins with 0x68656c6c at 0 (idx of unsigned bytes begins with 0x00000801 to 0x00000804): check that it is an idx file");
  CHECK(parse(big_endian(0x0d03) + "xxxxxxxx").find("0x00000d03") != std::string::npos);  // floats
  CHECK(parse(big_endian(0x0800)).find("0x00000800") != std::string::npos);
  CHECK(parse(big_endian(0x0805) + std::string(40, '\1')).find("0x00000805") != std::string::npos);
  CHECK(parse(big_endian(0x0803) + big_endian(1)) ==
        "f ends at 8 inside its header of 16 bytes (it is truncated): fetch it again");
  CHECK(parse(idx({1, 0, 3}, "abc")) == "f has size 0 for axis 1, at 8 (there are no values): use a file with data");
  CHECK(parse(idx({2, 2}, "abc")) ==
        "f is truncated: 3 bytes of values follow the header at 12 (its first 2 sizes ask for more): fetch it again");
  CHECK(parse(idx({2, 2}, "abcde")) == "f has 1 bytes behind its 4 values, at 16 (nothing may follow): fetch it again");
}

TEST_CASE("sizes whose product overflows are refused, and nothing is allocated by them") {
  CHECK(parse(idx({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, "a")).find("is truncated") != std::string::npos);
  CHECK(parse(idx({0x10000, 0x10000, 0x10000, 0x10000}, "")).find("is truncated") != std::string::npos);  // 2^64
  CHECK(parse(idx({0x80000000, 2, 0x80000000, 4}, "a")).find("is truncated") != std::string::npos);
}

TEST_CASE("images and labels that do not belong together are refused") {
  const auto two_images = bytes(idx({2, 1, 1}, "ab"));
  const auto labels = [](std::string_view values) {
    return bytes(idx({static_cast<std::uint32_t>(values.size())}, values));
  };
  CHECK(message_of([&] { parse_idx_images(two_images, "i", labels("\x01\x02\x03"), "l"); }) ==
        "i has 2 images, l has 3 labels (each image has one): give files of the same part");
  CHECK(message_of([&] { parse_idx_images(labels("\x01"), "i", labels("\x01"), "l"); }) ==
        "i has 1 axes (images have 3 or 4): give the file of images");
  CHECK(message_of([&] { parse_idx_images(two_images, "i", two_images, "l"); }) ==
        "l has 3 axes (labels have one): give the file of labels");
}
}  // namespace
