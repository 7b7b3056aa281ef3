// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <bit>
#include <comp/files/json.hpp>
#include <limits>

#include "observe/made_up.hpp"
#include "scratch.hpp"

using comp::json;

namespace {
const comp::json_place place{"f.jsonl", 7, "delete it"};
comp::trial read_trial(const json& document) {
  return comp::read_json<comp::trial>(comp::json_reader{document, place});
}
std::string refusal(const json& document) {
  return message_of<comp::file_error>([&] { read_trial(document); });
}
bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<long>(a) == std::bit_cast<long>(b);
}
bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) { return same(x, y); });
}
bool same(const comp::trial& a, const comp::trial& b) {
  const comp::sample &s = a.sample, &t = b.sample;
  return a.number == b.number && is_same_run(a, b) && a.accepted == b.accepted && same(a.seconds, b.seconds) &&
         same(a.bounds.low, b.bounds.low) && same(a.bounds.high, b.bounds.high) && a.label == b.label &&
         same(s.loss, t.loss) && same(s.losses, t.losses) && same(s.seconds, t.seconds) && s.batches == t.batches &&
         s.peak_bytes == t.peak_bytes && comp::json_of(s)["held"] == comp::json_of(t)["held"] &&
         same(s.batch_seconds, t.batch_seconds) && same(s.curve, t.curve) &&
         std::ranges::equal(s.curves, t.curves, [](const auto& x, const auto& y) { return same(x, y); }) &&
         s.score.has_value() == t.score.has_value() && same(s.score.value_or(0), t.score.value_or(0)) &&
         s.status == t.status && s.message == t.message;
}
}  // namespace

TEST_CASE("every trial of a search comes back from its text bit for bit") {
  for (const comp::trial& t : made_up::outcome(12).trials) {
    CAPTURE(t.number);
    CHECK(same(t, read_trial(json::parse(comp::json_text(comp::json_of(t))))));
  }
}

TEST_CASE("the losses of a trainer that has several come back, each with its curve") {
  comp::trial t = made_up::outcome(3).trials[1];
  t.sample.losses = {1.5, std::nan("")};
  t.sample.held = comp::held_bytes{.weights = 4, .copies = 2, .moments = 8, .gradients = 4};
  t.sample.curves = {{1.25, 1.75}, {0.5, std::nan("")}};
  CHECK(same(t, read_trial(json::parse(comp::json_text(comp::json_of(t))))));
  json text = comp::json_of(t);
  text["sample"]["curves"][1] = 3;
  CHECK(has(refusal(text), "field sample.curves[1] is 3 (a list is needed)"));
}

TEST_CASE("what a file may lack is written only if there is any") {
  comp::later_plan next{.batch = 7, .plan = comp::plan{2}};
  CHECK(comp::json_of(next) == json{{"batch", 7}, {"plan", "11"}});
  next.reason = "the end";
  CHECK(comp::json_of(next)["reason"] == "the end");
  CHECK(comp::read_json<comp::later_plan>(comp::json_reader{comp::json_of(next), place}) == next);
}

TEST_CASE("any double comes back bit for bit, NaN and infinity as words") {
  CHECK(rc::check([](std::uint64_t bits) {
    const auto value = std::bit_cast<double>(bits);
    const json back = json::parse(comp::json_text(comp::json_of(value)));
    RC_ASSERT(same(value, comp::json_reader(back, place).number()));
  }));
  CHECK(comp::json_of(std::nan("")) == "nan");
  CHECK(comp::json_of(-std::numeric_limits<double>::infinity()) == "-inf");
  const double negative_zero = comp::json_reader(json::parse(comp::json_text(comp::json_of(-0.0))), place).number();
  CHECK(std::signbit(negative_zero));
}

TEST_CASE("a trial that comp 0.2 recorded is read: its names of stages, and the purpose that `repeat` told") {
  json old = comp::json_of(made_up::outcome(3).trials[1]);
  const auto reads = [&](const char* stage, std::size_t repeat) {
    old["stage"] = stage;
    old["repeat"] = repeat;
    return comp::read_json<comp::trial>(comp::json_reader(old, place));
  };
  CHECK(reads("epochs", 7).stage == comp::stage::losses);
  CHECK(reads("epochs", 7).purpose == comp::purpose::judge);
  CHECK(reads("batches", 0).stage == comp::stage::times);
  const comp::trial perturbed = reads("baseline", 1'000'003), sensitivity = reads("baseline", 3'000'003);
  CHECK((perturbed.purpose == comp::purpose::perturbed && perturbed.repeat == 3));
  CHECK((sensitivity.purpose == comp::purpose::sensitivity && sensitivity.repeat == 2));
  CHECK(reads("baseline", 3'000'000).purpose == comp::purpose::profile);
  CHECK(reads("contest", 2'500'001).purpose == comp::purpose::check);
}

TEST_CASE("a trial with other content is refused, and the message names file, line, field, value, need and remedy") {
  json good = comp::json_of(made_up::outcome(3).trials[1]);
  REQUIRE(refusal(good).empty());
  SUBCASE("an unknown stage") {
    good["stage"] = "warmup";
    CHECK(refusal(good) ==
          "\"f.jsonl\" line 7: field stage is \"warmup\" (one of baseline, losses, times, contest, "
          "training is needed): delete it");
  }
  SUBCASE("an unknown status") {
    good["sample"]["status"] = "great";
    CHECK(has(refusal(good), "field sample.status is \"great\" (one of ok, diverged, not_finite,"));
  }
  SUBCASE("a number as a text") {
    good["sample"]["curve"][2] = "1.0";
    CHECK(has(refusal(good), "field sample.curve[2] is \"1.0\" (a number, "));
  }
  SUBCASE("a count below zero, broken, or too large") {
    for (const json& count : {json(-1), json(1.5), json(1e30), json(std::uint64_t{1} << 63), json(nullptr)}) {
      good["sample"]["batches"] = count;
      CHECK(has(refusal(good), "field sample.batches is "));
    }
  }
  SUBCASE("seconds below zero or no number") {
    for (const json& seconds : {json(-0.5), json("nan"), json("-inf"), json(true)}) {
      good["sample"]["seconds"] = seconds;
      CHECK(has(refusal(good), "field sample.seconds is "));
    }
  }
  SUBCASE("bounds the wrong way round, one of them, or three") {
    for (const json& bounds : {json{2, 1}, json{1}, json{1, 2, 3}, json{"nan", 1}}) {
      good["bounds"] = bounds;
      CHECK(has(refusal(good), "field bounds is "));
    }
  }
  SUBCASE("a letter that is no precision") {
    good["plan"] = "1x1";
    CHECK(has(refusal(good), "field plan is \"1x1\" (one letter of 1tb0eEk84ndB for each operator is needed)"));
  }
  SUBCASE("a field that is missing") {
    good["sample"].erase("loss");
    CHECK(has(refusal(good), "(an object with field \"loss\" is needed)"));
  }
  SUBCASE("a misspelt field") {
    good["lable"] = "fp32";
    CHECK(has(refusal(good), "field lable is \"fp32\" (no such field, only number, stage"));
  }
  SUBCASE("another kind of value in all") {
    for (const json& other : {json(), json(3), json("x"), json::array()}) CHECK(has(refusal(other), "the text is "));
  }
  SUBCASE("a long value is cut in the message") {
    good["stage"] = std::string(10'000, 'x');
    CHECK(refusal(good).size() < 300);
  }
}

TEST_CASE("a text that is no JSON is refused") {
  const auto refused = [](const std::string& text) {
    return message_of<comp::file_error>([&] { comp::parse_json(text, place); });
  };
  CHECK(has(refused("{\"a\": 1"), "\"f.jsonl\" line 7: no JSON ("));
  CHECK(has(refused(""), "no JSON"));
  CHECK(has(refused("{\"a\": 1e999}"), "no JSON"));
  CHECK(has(refused("nul"), "no JSON"));
  CHECK(has(refused("\"\xff\xfe\""), "no JSON"));
  CHECK(has(refused(std::string(1'000'000, '[')), "nested more than 16 deep"));
  CHECK(has(refused(std::string(100'000, '[') + std::string(100'000, ']')), "nested more than 16 deep"));
  CHECK(refused("\"" + std::string(1'000'000, 'x')).size() < 400);
  CHECK(refused("[[[[1]]]]").empty());
  CHECK(has(refused("{\"a\": {\"b\": 1, \"c\": [{\"b\": 2}], \"b\": 3}}"), "field \"b\" is there twice"));
  CHECK(refused("{\"a\": [{\"a\": 1}, {\"a\": {\"a\": 2}}], \"b\": {\"a\": 3}}").empty());
}

TEST_CASE("bytes that are no UTF-8 are replaced, never thrown at a search") {
  comp::trial t = made_up::outcome(3).trials[0];
  t.sample.message = "disk \xff full";
  CHECK(has(read_trial(json::parse(comp::json_text(comp::json_of(t)))).sample.message, " full"));
}

TEST_CASE("hardware comes back whole, and its fields are checked") {
  const comp::hardware machine = made_up::machine();
  json text = comp::json_of(machine);
  CHECK(comp::read_json<comp::hardware>(comp::json_reader{text, place}) == machine);
  text["kind"] = "tpu";
  CHECK_THROWS_AS((void)comp::read_json<comp::hardware>(comp::json_reader{text, place}), comp::file_error);
  text["kind"] = "cuda";
  text["isa"] = {1, 2};
  CHECK_THROWS_AS((void)comp::read_json<comp::hardware>(comp::json_reader{text, place}), comp::file_error);
}
