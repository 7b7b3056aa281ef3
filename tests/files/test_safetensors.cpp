// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/files/safetensors.hpp>
#include <cstring>
#include <limits>
#include <vector>

#include "scratch.hpp"

namespace {

std::string file_of(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(text.data(), &length, 8);
  return text + header + data;
}
std::string refused(const std::string& text) {
  return message_of<comp::file_error>([&] { (void)comp::parse_safetensors(text, "f"); });
}
std::string refused(const std::string& header, std::size_t bytes) {
  return refused(file_of(header, std::string(bytes, '\0')));
}

}  // namespace

TEST_CASE("a safetensors file is what the format's description says, byte for byte") {
  const std::vector<comp::named_tensor> two{{"b", {2}, {1, -2}}, {"a", {}, {0.5F}}};
  const std::string text = comp::safetensors_text(two, {{"key", "text"}});
  const std::string header = R"({"__metadata__":{"key":"text"},"a":{"data_offsets":[8,12],"dtype":"F32","shape":[]},)"
                             R"("b":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  CHECK(text == file_of(padded, std::string{"\0\0\x80\x3f\0\0\0\xc0\0\0\0\x3f", 12}));
}

TEST_CASE_FIXTURE(with_folder, "tensors come back bit for bit") {
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(), -0.0F, std::numeric_limits<float>::denorm_min(),
                       std::numeric_limits<float>::infinity()};
  const std::vector<comp::named_tensor> all{
      {"odd", {2, 2}, {std::begin(odd), std::end(odd)}}, {"none", {0, 3}, {}}, {"ünï \"quoted\"", {1}, {3}}};
  comp::write_safetensors(folder / "t", all, {{"about", "a\nb"}});
  CHECK(folder.files() == 1);
  const auto back = comp::read_safetensors(folder / "t");
  CHECK(back.metadata.at("about") == "a\nb");
  REQUIRE(back.tensors.size() == 3);
  CHECK(back.tensors[0] == all[1]);
  CHECK(back.tensors[1].shape == all[0].shape);
  CHECK(std::memcmp(back.tensors[1].values.data(), odd, sizeof odd) == 0);
  CHECK(back.tensors[2] == all[2]);
  const std::vector<comp::named_tensor> twice{{"t", {0}, {}}, {"t", {0}, {}}};
  CHECK(has(message_of<comp::file_error>([&] { comp::write_safetensors(folder / "u", twice); }), "\"t\""));
  CHECK(folder.files() == 1);
}

TEST_CASE("a safetensors file that is not whole and right is refused with what is wrong") {
  CHECK(has(refused(""), "is no whole safetensors file (0 bytes"));
  CHECK(has(refused(std::string(8, '\xff')), "is no whole safetensors file (8 bytes"));
  CHECK(has(refused("[1]", 0), "an object is needed"));
  CHECK(has(refused("{", 0), "no JSON"));
  CHECK(has(refused(R"({"__metadata__":{"k":1}})", 0), "a text is needed"));
  CHECK(has(refused(R"({"__metadata__":[]})", 0), "(an object is needed)"));
  const auto tensor = [](const std::string& fields) { return R"({"t":{)" + fields + "}}"; };
  CHECK(has(refused(tensor(R"("dtype":"F64","shape":[1],"data_offsets":[0,8])"), 8),
            "\"F32\", \"F16\" or \"BF16\" is needed"));
  CHECK(has(refused(tensor(R"("dtype":"F32","shape":[1])"), 4), "data_offsets"));
  CHECK(has(refused(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1)"), 4), "no such field"));
  CHECK(has(refused(tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4), "a whole number from 0"));
  CHECK(has(refused(tensor(R"("dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,4])"), 4),
            "a shape that fits"));
  for (const char* offsets : {"[0,8]", "[4,8]", "[4,0]", "[0,4,4]", "[0]", "[0,3]", "[-4,0]", "[0,1e300]", "{}"}) {
    CAPTURE(offsets);
    CHECK(has(refused(tensor(R"("dtype":"F32","shape":[1],"data_offsets":)" + std::string{offsets}), 4), "is needed"));
  }
  CHECK(has(refused(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"), 8), "8 bytes of data, 4 bytes apart"));
  const auto two = [](int a, int b) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[)" + std::to_string(a) + "," + std::to_string(a + 4) +
           R"(]},"b":{"dtype":"F32","shape":[1],"data_offsets":[)" + std::to_string(b) + "," + std::to_string(b + 4) +
           "]}}";
  };
  CHECK(refused(two(4, 0), 8).empty());
  CHECK(has(refused(two(0, 0), 8), "they overlap"));
  CHECK(has(refused(two(0, 8), 12), "nothing is between"));
  CHECK(has(refused(two(0, 4), 12), "has 4 bytes after its last tensor"));
}

TEST_CASE("FP16 and BF16 are read as the FP32 of the same value, and other dtypes are refused or left out") {
  const std::uint16_t fp16[] = {0x3c00, 0xc001, 0x0001, 0x8000, 0x7bff, 0x7c00}, bf16[] = {0x3f80, 0xc049};
  std::string data(24, '\0');
  std::memcpy(data.data(), fp16, 12);
  std::memcpy(data.data() + 12, bf16, 4);
  const std::string text = file_of(R"({"h":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},)"
                                   R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[12,16]},)"
                                   R"("i":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}})",
                                   data);
  CHECK(has(refused(text), "field i.dtype is \"I64\" (\"F32\", \"F16\" or \"BF16\" is needed)"));
  const auto read = comp::parse_safetensors(text, "f", comp::other_dtypes::left_out).tensors;
  REQUIRE(read.size() == 2);
  CHECK(read[0] == comp::named_tensor{"b", {2}, {1, -3.140625F}});
  CHECK(read[1] == comp::named_tensor{"h", {2, 3}, {1, -(2 + 0x1p-9F), 0x1p-24F, -0.0F, 65504, INFINITY}});
}

TEST_CASE("no cut of a safetensors file is read, and none crashes") {
  const std::vector<comp::named_tensor> one{{"weight", {2, 3}, {1, 2, 3, 4, 5, 6}}};
  const std::string text = comp::safetensors_text(one, {});
  for (std::size_t size = 0; size < text.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(refused(text.substr(0, size)).empty());
  }
}
