// SPDX-License-Identifier: Apache-2.0
#include <examples/data/npz.hpp>

#include "archives.hpp"

namespace {
using namespace data_sets;
using namespace test_data;

npy_array parsed(const std::string& text) { return parse_npy(bytes(text), "f"); }
std::string refusal(const std::string& text) {
  return message_of([&] { parsed(text); });
}

TEST_CASE("numbers of each size are read from .npy") {
  CHECK(parsed(npy<std::int8_t>("|i1", {-1, 5})).integers(-1, 5) == std::vector<std::int64_t>{-1, 5});
  CHECK(parsed(npy<std::uint8_t>("|u1", {255})).integers(0, 255) == std::vector<std::int64_t>{255});
  CHECK(parsed(npy<std::int16_t>("<i2", {-300})).integers(-300, 0) == std::vector<std::int64_t>{-300});
  CHECK(parsed(npy<std::uint32_t>("<u4", {4'000'000'000U})).integers(0, 1LL << 40).front() == 4'000'000'000);
  CHECK(parsed(npy<std::int64_t>("<i8", {-7})).integers(-7, 0).front() == -7);
  CHECK(parsed(npy<std::uint64_t>("<u8", {~0ULL})).integers(0, INT64_MAX).front() == INT64_MAX);
  CHECK(parsed(npy<float>("<f4", {0.5F, -2})).floats() == std::vector<float>{0.5F, -2});
  CHECK(parsed(npy<double>("<f8", {0.25})).floats() == std::vector<float>{0.25F});
  CHECK(parsed(npy<std::int32_t>("<i4", {3})).floats() == std::vector<float>{3});
}

TEST_CASE("an array knows its shape") {
  const npy_array two = parsed(npy("|u1", "(2, 3)", "abcdef"));
  CHECK(two.shape == std::vector<std::int64_t>{2, 3});
  CHECK(two.size() == 6);
  CHECK(parsed(npy("|u1", "()", "a")).shape.empty());
  CHECK(parsed(npy("<U2", "(1,)", "a\0\0\0b\0\0\0" + std::string(7, '\0'))).size() == 1);
}

TEST_CASE("what is no array of plain numbers is refused") {
  CHECK(refusal("PK\3\4 no array at all").starts_with("f is no .npy"));
  CHECK(refusal(npy("|O", "(1,)", "abcdefgh")).find("objects never") != std::string::npos);
  CHECK(refusal(npy(">i4", "(1,)", "abcd")).find("little-endian") != std::string::npos);
  CHECK(refusal(npy("|u1", "(1,)", "a", "True")).find("Fortran order") != std::string::npos);
  CHECK(refusal(npy("|u1", "(2,)", "a")) ==
        "f says more elements than its 1 bytes hold (it is cut off): fetch it again");
  CHECK(refusal(npy("|u1", "(1,)", "ab")) == "f holds 2 bytes of elements (1 are needed): fetch it again");
  CHECK(refusal(npy("|u1", "(4294967296, 4294967296, 2)", "a")).find("cut off") != std::string::npos);
  CHECK(refusal(npy("|u1", "(-1,)", "a")).find("shape") != std::string::npos);
  CHECK(message_of([&] { (void)parsed(npy<std::int8_t>("|i1", {9})).integers(0, 8); }) ==
        "f has 9 at 0 (it must lie from 0 to 8): fetch the file again");
  CHECK(message_of([&] { (void)parsed(npy<float>("<f4", {1})).integers(0, 8); }).find("whole numbers") !=
        std::string::npos);
  CHECK(message_of([&] { (void)parsed(npy<double>("<f8", {1e300})).floats(); }).find("finite FP32") !=
        std::string::npos);
}

TEST_CASE("an archive gives its arrays by name, packed or not") {
  for (const bool packed : {true, false}) {
    const npz_arrays arrays{
        bytes(zipped({{"a.npy", npy<std::int8_t>("|i1", {1})}, {"b.npy", npy<float>("<f4", {2})}}, packed)), "f"};
    CHECK(arrays["a"].integers(0, 1).front() == 1);
    CHECK(arrays["b"].floats().front() == 2);
    CHECK(arrays.contains("a"));
    CHECK(message_of([&] { (void)arrays["c"]; }) == "f has no array c (it has a, b): check that it is the right file");
  }
}

TEST_CASE("archives that are damaged, cut off or too large are refused") {
  const std::string good = zipped({{"a.npy", npy("|u1", "(100000,)", std::string(100'000, 'a'))}});
  const auto refused = [](const std::string& text, std::size_t limit = default_limit) {
    return message_of([&] { npz_arrays(bytes(text), "f", limit); });
  };
  CHECK(refused(good).empty());
  CHECK(refused(good, 1000).find("unpacks to 100128 bytes (1000 are left of this reader's limit)") !=
        std::string::npos);
  CHECK(refused(good.substr(0, good.size() / 2)).starts_with("f is no zip archive"));
  CHECK(refused("").starts_with("f is no zip archive"));
  std::string damaged = good;
  damaged[60] = static_cast<char>(damaged[60] ^ 0x55);
  CHECK(refused(damaged).find("fetch the file again") != std::string::npos);
  std::string stored = zipped({{"a.npy", npy("|u1", "(3,)", "abc")}}, false);
  stored[stored.find("abc") + 1] = 'x';  // the checksum no longer fits
  CHECK(refused(stored).find("in f is damaged") != std::string::npos);
}
}  // namespace
