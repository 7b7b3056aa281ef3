// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdlib>
#include <examples/data/digits.hpp>

#include "temporary.hpp"

namespace {
using namespace data_sets;
using namespace test_data;

std::string line(const std::string& first, const std::string& digit) {
  return first + repeated(",8", 63) + "," + digit;
}
std::string parse(const std::string& text) {
  return message_of([&] { parse_digits(bytes(text), "f"); });
}

TEST_CASE("a line is an image whose values 0 to 16 are spread over 0 to 255, and its digit") {
  for (const char* ending : {"", "\n", "\r\n"}) {
    const images read = parse_digits(bytes(line("16", "7") + "\n" + line("0", "0") + ending), "f");
    CHECK(read.count == 2);
    CHECK(read.height == 8);
    CHECK(read.width == 8);
    CHECK(read.classes == 10);
    CHECK(read.pixels.size() == 128);
    CHECK(read.pixels[0] == 255);
    CHECK(read.pixels[1] == 128);
    CHECK(read.pixels[64] == 0);
    CHECK(read.labels == std::vector<std::int32_t>{7, 0});
  }
}

TEST_CASE("malformed lines are refused with line, column and offset") {
  const std::string good = line("0", "1") + "\n";  // 130 letters
  CHECK(parse("") == "f is empty (lines of 64 values and a digit are expected): fetch it again");
  CHECK(parse(good + line("17", "1")) ==
        "f has no whole number from 0 to 16 at 130 (line 2, column 1): check that it is the CSV of the digits");
  CHECK(parse(line("0", "10")).find("from 0 to 9 at 128 (line 1, column 65)") != std::string::npos);
  CHECK(parse(line("-1", "1")).find("column 1") != std::string::npos);
  CHECK(parse(line("x", "1")).find("column 1") != std::string::npos);
  CHECK(parse(line("99999999999999999999", "1")).find("column 1") != std::string::npos);
  CHECK(
      parse("0,1,2\n") ==
      "f has only 3 values in line 1, which breaks off at 5 (a line has 64 values and a digit, between commas): fetch it again");
  CHECK(
      parse(line("0", "1") + ",5\n") ==
      "f has more behind the digit of line 1, at 129 (a line has 64 values and a digit): check that it is the CSV of the digits");
  CHECK(parse(good + "\n").find("at 130 (line 2, column 1)") != std::string::npos);
  CHECK(parse(line("0", "")).find("column 65") != std::string::npos);
}

TEST_CASE("the digits that come with the examples are whole" * doctest::skip(std::getenv("COMP_DIGITS") == nullptr)) {
  const images read = read_digits(std::getenv("COMP_DIGITS"));
  CHECK(read.count == 1797);
  std::array<int, 10> each = {};
  for (const std::int32_t digit : read.labels) ++each[static_cast<std::size_t>(digit)];
  CHECK(each == std::array{178, 182, 177, 183, 181, 182, 181, 179, 174, 180});  // as UCI counts them
}
}  // namespace
