// SPDX-License-Identifier: Apache-2.0
// Faults by the values of a step, and their texts. By operators that ran: libtorch/test_doctor.cpp.
#include <doctest/doctest.h>

#include <comp/doctor/difference.hpp>
#include <comp/doctor/examination_text.hpp>
#include <limits>

#include "examinations.hpp"

using comp::fault_kind;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("a sound step has no fault") {
  CHECK(comp::faults(made_up::step()).empty());
  CHECK(comp::faults(comp::examination{}).empty());
  CHECK(comp::table(comp::examination{}).starts_with("nothing is wrong\n"));
}

TEST_CASE("only where it begins something is a fault") {
  const auto found = comp::faults(made_up::step({1}, {1, nan_value}, {nan_value}));
  REQUIRE(found.size() == 1);
  CHECK(found[0].name == "fc.linear");
  CHECK(
      found[0].text ==
      "\"fc.linear\" makes 1 NaN of 2 values, of inputs without one (all finite): look at what it reads, with worst() "
      "and the table");
  const auto over = comp::faults(made_up::step({1}, {1e5F}, {1e5F}));
  REQUIRE(over.size() == 1);
  CHECK(over[0].entry == 1);
  CHECK(over[0].kind == fault_kind::overflow);
}

TEST_CASE("a parameter that is not finite, or is nothing in FP16, is named itself") {
  CHECK(comp::faults(made_up::step({infinity}, {infinity}))[0].name == "fc.weight");
  CHECK(comp::faults(made_up::step({nan_value}, {nan_value}))[0].kind == fault_kind::nan);
  CHECK(comp::faults(made_up::step({1e-9F, 2e-9F}))[0].kind == fault_kind::underflow);
  CHECK(comp::faults(made_up::step({1e-9F, 1.0F})).empty());
}

TEST_CASE("gradients are scaled as a scaler would before they are said to vanish") {
  auto step = made_up::step();
  step.entries[2].gradients = comp::counted(std::vector<float>{1e-3F});
  step.entries[1].gradients = comp::counted(std::vector<float>{1e-11F, 1e-10F});
  CHECK(comp::faults(step).empty());
  step.entries[2].gradients = comp::counted(std::vector<float>{6e4F});  // leaves no room for a scale
  const auto found = comp::faults(step);
  REQUIRE(found.size() == 1);
  CHECK(found[0].backward);
  CHECK(found[0].name == "fc.linear");
  step.entries[2].gradients = comp::counted(std::vector<float>{1e-11F});  // it came so
  step.entries[1].gradients = comp::counted(std::vector<float>{1e-14F});
  step.entries[0].gradients = comp::counted(std::vector<float>{6e4F});
  CHECK(comp::faults(step).size() == 1);
  CHECK(comp::faults(step)[0].name == "fc.relu");
}

TEST_CASE("of gradients that are not finite the first in time is named, and only where the forward is sound") {
  auto step = made_up::step();
  step.entries[2].backward = 1;
  step.entries[2].gradients = comp::counted(std::vector<float>{infinity});
  step.entries[1].backward = 2;
  step.entries[1].gradients = comp::counted(std::vector<float>{nan_value});
  REQUIRE(comp::faults(step).size() == 1);
  CHECK(comp::faults(step)[0].name == "fc.relu");
  CHECK(comp::faults(step)[0].kind == fault_kind::infinity);
  step.entries[1].values = comp::counted(std::vector<float>{nan_value});
  REQUIRE(comp::faults(step).size() == 1);
  CHECK_FALSE(comp::faults(step)[0].backward);
}

TEST_CASE("a number that FP16 cannot hold is a fault, a mask's -inf is none") {
  auto step = made_up::step();
  step.entries[1].constants = {1e-8};
  CHECK(comp::faults(step)[0].text ==
        "\"fc.linear\" has the number 1e-08, which is 0 in FP16: use 1e-6 or more, or keep "
        "it in FP32 or BF16");
  step.entries[1].constants = {-1e9};
  CHECK(comp::faults(step)[0].kind == fault_kind::constant);
  step.entries[1].constants = {0.0, 1e-6, -std::numeric_limits<double>::infinity()};
  step.entries[1].values = comp::counted(std::vector<float>{-infinity});
  CHECK(comp::faults(step).empty());
}

TEST_CASE("the worst are those with a fault, then those that the low precision changes most") {
  auto step = made_up::step({1}, {1, 2}, {1e5F});
  step.entries[0].error = 0.5;
  step.entries[1].error = 0.7;
  CHECK(comp::worst(step, comp::faults(step), 5) == std::vector<std::size_t>{2, 1, 0});
  CHECK(comp::worst(step, comp::faults(step), 1) == std::vector<std::size_t>{2});
}

TEST_CASE("the table says range, losses and faults of each operator") {
  auto step = made_up::step({1}, {1, 1e-9F, 500, 2}, {1e5F});
  step.entries[1].error = 0.004;
  const std::string text = comp::table(step);
  INFO(text);
  CHECK(text.find("overflow: \"fc.relu\" makes 1 of 1 values that FP16 cannot hold, up to 1e+05") == 0);
  CHECK(text.find("fc.linear  1e-09 to 500") != std::string::npos);
  CHECK(text.find("25%/25%") != std::string::npos);  // E4M3
  CHECK(text.find("0.004") != std::string::npos);
  CHECK(text.find(" \n") == std::string::npos);
}

TEST_CASE("a page escapes names and says what is wrong") {
  auto step = made_up::step({1}, {nan_value});
  step.entries[1].name = "<script>alert(1)</script>";
  const std::string page = comp::html_text(step);
  CHECK(page.find("<script>alert") == std::string::npos);
  CHECK(page.find("One fault") != std::string::npos);
  CHECK(page.find("makes 1 NaN of 1 values") != std::string::npos);
  CHECK(comp::html_text(made_up::step()).find("Nothing is wrong in 2 operators") != std::string::npos);
}

TEST_CASE("a page has the faults, and what each format loses of each operator") {
  const std::string page = comp::html_text(made_up::step({1}, {1, 1e-9F, 500, 2}, {1e5F}));
  const auto from = page.find("id=\"data\">") + 10;
  const comp::json data = comp::json::parse(page.substr(from, page.find("</script>", from) - from));
  CHECK(data["title"] == "One fault");
  CHECK(data["faults"][0]["entry"] == 2);
  CHECK(data["faults"][0]["kind"] == "overflow");
  CHECK(data["formats"] == comp::json{"bf16", "fp16", "fp8_e4m3", "fp8_e5m2"});
  const comp::json& linear = data["entries"][1];
  CHECK(linear["name"] == "fc.linear");
  CHECK(linear["faults"].empty());
  CHECK(data["entries"][2]["faults"] == comp::json{"overflow"});
  CHECK(linear["lost"][2] == comp::json{{"text", "25% zero, 25% over"}, {"share", 0.5}});
  CHECK(linear["values"]["range"] == "1e-09 to 500");
  CHECK(linear["values"]["bars"].size() == 61);
  CHECK(linear["values"]["bars"][10] == 20);  // 2^-30
  CHECK(linear["values"]["bars"][11] == 0);
  CHECK_FALSE(linear["gradients"].contains("bars"));  // there was no backward
  CHECK(page.find("<td>overflow</td><td>\"fc.relu\" makes 1 of 1 values") != std::string::npos);
}

TEST_CASE("runs part at the first entry that differs, in the forward before the backward") {
  const auto a = made_up::step();
  CHECK(comp::compared(a, a, 0).first() == nullptr);
  CHECK(comp::table(comp::compared(a, a)) == "the runs are the same within 0.001\n");
  auto b = made_up::step({0.5F, -0.25F}, {1, -2, 3.0001F});
  CHECK(comp::compared(a, b).first() == nullptr);
  REQUIRE(comp::compared(a, b, 1e-6).first() != nullptr);
  CHECK(comp::compared(a, b, 1e-6).first()->name == "fc.linear");
  b.entries[0].gradients = comp::counted(std::vector<float>{1});
  CHECK(comp::compared(a, b).first()->name == "fc.weight");
  CHECK(comp::table(comp::compared(a, b)).find("the runs part at \"fc.weight\" (parameter), in its backward") == 0);
  b.entries[2].values = comp::counted(std::vector<float>{1, nan_value, 3});
  CHECK(comp::compared(a, b).first()->name == "fc.relu");
  b.entries[1].shape = {1, 3};
  CHECK(comp::compared(a, b).first()->why == "shape 3 against 1 x 3");
  b.entries[1].name = "other";
  const auto d = comp::compared(a, b);
  CHECK(d.only_first == std::vector<std::string>{"fc.linear"});
  CHECK(d.only_second == std::vector<std::string>{"other"});
  CHECK(comp::table(comp::compared(a, {})).starts_with("the runs have nothing in common\nonly in the first run: 3"));
  auto longer = a;
  longer.entries.push_back({.name = "more", .kind = "aten::relu"});
  CHECK(comp::table(comp::compared(a, longer)).starts_with("what both runs have is the same within 0.001\n"));
  CHECK_THROWS_AS(comp::compared(a, b, -1), comp::settings_error);
}
