// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/concepts.hpp>
#include <comp/systems/amp_configs.hpp>
#include <comp/systems/paddle.hpp>
#include <map>
#include <string>
#include <tuple>

namespace paddle_tests {
using comp::category;
using comp::precision;
using comp::settings_error;
using comp::policy::paddle;
using comp::policy::paddle_level;
using comp::policy::paddle_version;
using comp::policy::parse_amp_configs;
static_assert(comp::OperatorPolicy<paddle>);

category at(const paddle& amp, const std::string& kind) { return amp.classify({.name = kind, .kind = kind}).category; }

TEST_CASE("the guide's own examples of the lists: conv2d and matmul white, softmax and cross_entropy black") {
  for (const auto version : {paddle_version::v3, paddle_version::guide}) {
    const paddle amp{.version = version};
    CHECK(at(amp, "conv2d") == category::allow);
    CHECK(at(amp, "matmul") == category::allow);
    CHECK(at(amp, "softmax") == category::deny);
    CHECK(at(amp, "cross_entropy_loss") == category::deny);
    CHECK(at(amp, "relu") == category::follow);
  }
}

TEST_CASE("what a level makes of white, black and the rest") {
  const std::map<paddle_level, std::array<category, 4>> expected{
      // conv2d, softmax, relu, embedding
      {paddle_level::o0, {category::deny, category::deny, category::deny, category::deny}},
      {paddle_level::od, {category::allow, category::deny, category::deny, category::deny}},
      {paddle_level::o1, {category::allow, category::deny, category::follow, category::deny}},
      {paddle_level::o2, {category::allow, category::follow, category::follow, category::deny}}};
  for (const auto& [level, wanted] : expected) {
    CAPTURE(static_cast<int>(level));
    const paddle amp{.level = level};
    CHECK(at(amp, "conv2d") == wanted[0]);
    CHECK(at(amp, "softmax") == wanted[1]);
    CHECK(at(amp, "relu") == wanted[2]);
    CHECK(at(amp, "embedding") == wanted[3]);
  }
}

TEST_CASE("versions, options and custom lists, in Paddle's names or ATen's, decide over the built-in lists") {
  const paddle lists{.custom_white_list = {"softmax", "elementwise_add"}, .custom_black_list = {"conv2d"}};
  constexpr auto o2 = paddle_level::o2;
  const std::tuple<paddle, const char*, category> expected[] = {
      {{.level = o2, .use_promote = false}, "relu", category::allow},  // the rest runs low whatever it reads
      {{.level = o2, .version = paddle_version::guide}, "softmax", category::allow},
      {{.level = o2, .unsupported = {"argsort"}}, "argsort", category::deny},  // no kernel in the low precision
      {{.unsupported = {"conv2d"}}, "conv2d", category::deny},
      {lists, "aten::softmax.int", category::allow},
      {lists, "add.Tensor", category::allow},
      {lists, "conv2d", category::deny},
      {{}, "mul", category::allow},  // Paddle's product of matrices; ATen's is spelled as ATen's
      {{}, "aten::mul", category::follow},
      {{}, "mul.Tensor", category::follow},
      {{.custom_black_list = {"mul"}}, "mul", category::deny},
      {{.custom_black_list = {"mul"}}, "aten::mul.Tensor", category::follow},
      {{.custom_black_list = {"elementwise_mul"}}, "aten::mul.Tensor", category::deny}};
  for (const auto& [amp, kind, wanted] : expected) {
    CAPTURE(kind);
    CHECK(at(amp, kind) == wanted);
  }
}

TEST_CASE("an operator on both custom lists is an error, also under two names") {
  const paddle amp{.custom_white_list = {"add"}, .custom_black_list = {"elementwise_add"}};
  CHECK_THROWS_WITH_AS(
      amp.check(),
      "\"add\" is on custom_white_list and on custom_black_list (one operator, two decisions): take it "
      "off one of them",
      settings_error);
}

TEST_CASE("a precision that Paddle's AMP lacks is an error") {
  CHECK_THROWS_WITH_AS(paddle{.low = precision::fp8_e4m3}.check(),
                       "dtype is fp8_e4m3 (Paddle's AMP has float16 and bfloat16): choose one of them", settings_error);
}

TEST_CASE("a custom list's unknown operator is warned of, with the nearest") {
  const auto warnings = paddle{.custom_black_list = {"softmx", "conv2d"}}.warnings();
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] ==
        "custom_black_list names \"softmx\" (no operator that is known has this name): did you mean \"softmax\"?");
}

TEST_CASE("in O2 with the guard only operators inside of it run low; other levels know no guard") {
  paddle amp{.level = paddle_level::o2, .use_fp16_guard = true};
  const comp::op_info inside{.name = "a", .kind = "conv2d", .scopes = {"fp16_guard"}},
      outside{.name = "b", .kind = "conv2d"};
  CHECK(amp.classify(inside).category == category::allow);
  CHECK(amp.classify(outside).category == category::deny);
  amp.level = paddle_level::o1;
  CHECK(amp.classify(outside).category == category::allow);
}

TEST_CASE("a convolution's bias is added by an operator of its own, so its output is that operator's") {
  const comp::tensor_info any{.shape = {1}};
  const comp::op_info with{.kind = "conv2d", .inputs = {any, any, any}},
      without{.kind = "conv2d", .inputs = {any, any}};
  const comp::op_info linear{.kind = "linear", .inputs = {any, any, any}};
  CHECK(paddle{}.classify(with).output == precision::fp32);
  CHECK(paddle{}.classify(without).output == precision::fp16);
  CHECK(paddle{}.classify(linear).output == precision::fp16);
  CHECK(paddle{.version = paddle_version::guide}.classify(linear).output == precision::fp32);
  CHECK(paddle{.custom_white_list = {"elementwise_add"}}.classify(with).output == precision::fp16);
  CHECK(paddle{.level = paddle_level::od}.classify(with).output == precision::fp32);
  CHECK(paddle{.level = paddle_level::o2}.classify(with).output == precision::fp16);
}

TEST_CASE("amp_configs: a level alone") {
  CHECK(parse_amp_configs("O2").amp.level == paddle_level::o2);
  CHECK(parse_amp_configs("O1").scaling == comp::scaling::paddle());
  CHECK_THROWS_WITH_AS(parse_amp_configs("O3"), "level is \"O3\" (Paddle has O0, OD, O1 and O2): choose one of them",
                       settings_error);
}

TEST_CASE("amp_configs: nothing, {} and an empty level are O0, a dictionary without a level is O1") {
  for (const char* nothing : {"null", "{}", "\"\""}) {
    CAPTURE(nothing);
    CHECK(parse_amp_configs(nlohmann::json::parse(nothing)).amp.level == paddle_level::o0);
  }
  CHECK(parse_amp_configs({{"incr_ratio", 3.0}}).amp.level == paddle_level::o1);
}

TEST_CASE("amp_configs: the guide's dictionary") {
  const auto read = parse_amp_configs(
      {{"level", "O1"}, {"custom_white_list", {"conv2d"}}, {"use_dynamic_loss_scaling", true}}, paddle_version::guide);
  CHECK(read.amp.level == paddle_level::o1);
  CHECK(read.amp.custom_white_list == std::vector<std::string>{"conv2d"});
  CHECK(read.scaling == comp::scaling::paddle_guide());
}

TEST_CASE("amp_configs: every key of the scaler and the guard") {
  const auto read = parse_amp_configs(nlohmann::json::parse(R"({"level": "O2", "use_fp16_guard": true,
    "init_loss_scaling": 128, "incr_ratio": 4.0, "decr_ratio": 0.25, "incr_every_n_steps": 10,
    "decr_every_n_nan_or_inf": 3, "use_dynamic_loss_scaling": false, "custom_black_list": ["relu"]})"));
  CHECK(read.amp.use_fp16_guard);
  CHECK(read.amp.custom_black_list.size() == 1);
  CHECK(read.scaling == comp::scaling::settings{.initial = 128,
                                                .growth = 4,
                                                .backoff = 0.25,
                                                .growth_interval = 10,
                                                .backoff_interval = 3,
                                                .dynamic = false});
}

TEST_CASE("amp_configs: unknown keys, wrong types, values out of range and overlaps are refused") {
  const std::map<std::string, std::string> faults{
      {R"({"levels": "O1"})", "amp_configs has \"levels\" (Paddle knows no such key): did you mean \"level\"?"},
      {R"({"lists": 1})", "amp_configs has \"lists\" (Paddle knows no such key): drop it"},
      {R"({"use_pure_fp16": true})",
       "amp_configs has \"use_pure_fp16\" (only the level decides, O1 or O2): set level to O2"},
      {R"({"level": 1})", "level is \"1\" (Paddle has O0, OD, O1 and O2): choose one of them"},
      {R"({"custom_white_list": "conv2d"})",
       "custom_white_list is \"conv2d\" (it must be a list of operators): correct it"},
      {R"({"use_fp16_guard": 1})", "use_fp16_guard is 1 (it must be true or false): correct it"},
      {R"({"init_loss_scaling": 0})", "init_loss_scaling is 0 (it must be a positive number up to 1e9): correct it"},
      {R"({"incr_every_n_steps": 1.5})",
       "incr_every_n_steps is 1.5 (it must be a positive whole number up to 1e9): correct it"},
      {R"({"incr_ratio": 1})", "incr_ratio is 1 (the scale grows by it): make it larger than 1"},
      {R"({"decr_ratio": 2})", "decr_ratio is 2 (the scale shrinks by it): make it smaller than 1"},
      {R"({"custom_white_list": ["exp"], "custom_black_list": ["exp"]})",
       "\"exp\" is on custom_white_list and on custom_black_list (one operator, two decisions): take it "
       "off one of them"},
      {R"([1])", "amp_configs is [1] (it must be a level or an object): write \"O1\""}};
  for (const auto& [text, message] : faults) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_amp_configs(nlohmann::json::parse(text)), message.c_str(), settings_error);
  }
}
}  // namespace paddle_tests
