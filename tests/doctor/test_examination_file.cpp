// SPDX-License-Identifier: Apache-2.0
// Before the doctor's header: what this one declares must hide nothing from it.
#include <doctest/doctest.h>

#include <comp/doctor/difference.hpp>
#include <comp/doctor/examination_file.hpp>
#include <comp/files/training_file.hpp>
#include <limits>

#include "examinations.hpp"
#include "scratch.hpp"

namespace {

comp::examination everything() {
  auto step = made_up::step({0.1F, -1e-30F}, {std::numeric_limits<float>::quiet_NaN(), 1e5F, 0});
  step.low = comp::precision::fp16;
  step.entries[1].gradients = comp::counted(std::vector<float>{3e-8F, 0.3F});
  step.entries[1].gradient_sample = {3e-8F, 0.3F};
  step.entries[1].backward = 2;
  step.entries[1].constants = {1e-12, -std::numeric_limits<double>::infinity()};
  step.entries[1].error = std::numeric_limits<double>::infinity();
  return step;
}

}  // namespace

TEST_CASE_FIXTURE(with_folder, "an examination comes back from its file bit for bit") {
  const auto saved = everything();
  comp::save(saved, folder / "a.json");
  const auto got = comp::load_examination(folder / "a.json");
  CHECK(got.low == saved.low);
  REQUIRE(got.entries.size() == saved.entries.size());
  for (std::size_t i = 0; i < got.entries.size(); ++i) {
    const auto &a = saved.entries[i], &b = got.entries[i];
    CHECK(a.name == b.name);
    CHECK(a.kind == b.kind);
    CHECK(a.shape == b.shape);
    CHECK(a.inputs == b.inputs);
    CHECK((a.values == b.values));
    CHECK((a.gradients == b.gradients));
    CHECK(a.gradient_sample == b.gradient_sample);
    CHECK(a.backward == b.backward);
    CHECK(a.constants == b.constants);
  }
  CHECK(got.entries[1].error == saved.entries[1].error);
  CHECK(std::isnan(got.entries[1].sample[0]));
  CHECK(comp::compared(saved, got, 0).first() == nullptr);
}

TEST_CASE_FIXTURE(with_folder, "a file from elsewhere is refused with what is wrong in it") {
  const std::string path = folder / "a.json";
  const auto refused = [&](auto change) {
    comp::json text = comp::json_of(everything());
    change(text);
    write_text(path, text.dump());
    return message_of<comp::file_error>([&] { (void)comp::load_examination(path); });
  };
  CHECK(refused([](auto& t) { t["comp_doctor"] = 2; }).find("comp_doctor is 2") != std::string::npos);
  CHECK(refused([](auto& t) { t["low"] = "fp7"; }).find("low is \"fp7\"") != std::string::npos);
  CHECK(refused([](auto& t) { t["entries"][0]["inputs"] = comp::json::array({0}); }).find("inputs[0]") !=
        std::string::npos);
  CHECK(refused([](auto& t) { t["entries"][1]["values"]["values"] = 7; }).find("add up") != std::string::npos);
  CHECK(refused([](auto& t) { t["entries"][1]["values"]["exponents"] = std::vector<int>(300, 1); }).find("exponent") !=
        std::string::npos);
  CHECK(refused([](auto& t) {
          t["entries"][1]["values"]["overflows"] = {{"fp7", 1}};
        }).find("precision") != std::string::npos);
  CHECK(refused([](auto& t) { t["entries"][1]["more"] = 1; }).find("no such field") != std::string::npos);
  CHECK(refused([](auto& t) { t["entries"][1].erase("name"); }).find("\"name\"") != std::string::npos);
  write_text(path, "[");
  CHECK_THROWS_AS((void)comp::load_examination(path), comp::file_error);
}
