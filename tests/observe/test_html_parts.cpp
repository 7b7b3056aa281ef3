// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <charconv>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/html_report.hpp>
#include <comp/observe/html_template.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

namespace {
std::string section_of(const std::string& html, const std::string& title) {
  const auto from = html.find("<h2>" + title);
  return from == std::string::npos ? "" : html.substr(from, html.find("</section>", from) - from);
}

/// FP32's profile, one with all in BF16 that is `part` of it, and sensitivities: what guided searches ask for.
comp::outcome profiled(std::size_t operators, double part = 0.5) {
  comp::outcome o = made_up::outcome(operators);
  const auto numbers = [&](comp::plan p, comp::purpose what, std::size_t each, double value) {
    comp::sample s{.loss = 0, .batches = 1};
    for (std::size_t i = 0; i < operators * each; ++i) s.curve.push_back(value * static_cast<double>(1 + i % each));
    made_up::run(o, comp::stage::baseline, std::move(p), s, "profile");
    o.trials.back().purpose = what;
    if (what == comp::purpose::sensitivity) o.trials.back().repeat = static_cast<std::size_t>(comp::precision::bf16);
  };
  numbers(comp::plan{operators}, comp::purpose::profile, 2, 1e-3);  // 1 ms forward, 2 ms backward
  numbers(comp::plan(operators, comp::precision::bf16), comp::purpose::profile, 2, 1e-3 * part);
  numbers(comp::plan{operators}, comp::purpose::sensitivity, 1, 0.004);
  return o;
}

const comp::report_info of_mlp{.model = "mlp <8>",
                               .data = "digits.csv.gz",
                               .command = "train --model 'a & b'",
                               .date = "2026-11-22 13:20:05",
                               .use_command = "train --plan out/plan.json",
                               .plan_file = "out/plan.json"};

/// Contrast of two colours "#rrggbb" or "#rgb". Source: WCAG 2.2, relative luminance.
double contrast(std::string a, std::string b) {
  const auto light = [](std::string c) {
    if (c.size() == 4) c = {'#', c[1], c[1], c[2], c[2], c[3], c[3]};
    double sum = 0;
    constexpr std::array weights{0.2126, 0.7152, 0.0722};
    for (std::size_t i = 0; i < 3; ++i) {
      int value = 0;
      std::from_chars(c.data() + 1 + 2 * i, c.data() + 3 + 2 * i, value, 16);
      const double part = value / 255.0;
      sum += weights[i] * (part <= 0.04045 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4));
    }
    return sum + 0.05;
  };
  const double one = light(std::move(a)), other = light(std::move(b));
  return std::max(one, other) / std::min(one, other);
}

/// The value of a variable of the style; the dark one if there is one and it is asked for.
std::string colour(const std::string& variable, bool dark) {
  const std::string style{comp::detail::html_style};
  auto at = dark ? style.find("--" + variable + ":", style.find("prefers-color-scheme:dark")) : std::string::npos;
  if (at == std::string::npos) at = style.find("--" + variable + ":");
  const auto begin = at + variable.size() + 3;
  return style.substr(begin, style.find_first_of(";}", begin) - begin);
}
}  // namespace

TEST_CASE("the report says of what it is") {
  const std::string html = comp::html_text(made_up::outcome(12), of_mlp);
  CHECK(has(
      html,
      "<p class=\"about soft\"><span>mlp &lt;8&gt;</span> <span>digits.csv.gz</span> <span>Made-up CPU &lt;9&gt;</span> "
      "<span>2026-11-22 13:20:05</span> <span>comp 0.2.0</span> </p>"));
  CHECK(has(html, "<dt>Command</dt><dd><code>train --model &#39;a &amp; b&#39;</code></dd>"));
  CHECK_FALSE(has(comp::html_text(made_up::outcome(12)), "<dt>Model</dt>"));
}

TEST_CASE("the report says how to use the plan") {
  const std::string next = section_of(comp::html_text(made_up::outcome(12), of_mlp), "What next");
  CHECK(has(next, "trainer.set_precision(comp::load_plan(&quot;out/plan.json&quot;, trainer.graph()).plan);"));
  CHECK(has(next, "<code>train --plan out/plan.json</code>"));
  const std::string without = section_of(comp::html_text(made_up::outcome(12)), "What next");
  CHECK(has(without, "load_plan(&quot;plan.json&quot;"));
  CHECK_FALSE(has(without, "Train with it"));
  const std::string fp32 = section_of(comp::html_text(made_up::fp32_wins(12), of_mlp), "What next");
  CHECK(has(fp32, "Train on in FP32"));
  CHECK_FALSE(has(fp32, "load_plan"));
}

TEST_CASE("the report names the operators that keep the plan from going lower, the dearest first") {
  comp::outcome o = made_up::outcome(12);
  o.evidence.resize(12);
  const auto next = [&] { return section_of(comp::html_text(o), "What next"); };
  CHECK(has(next(), "No operator was found to harm the loss"));
  for (const std::size_t i : {1, 3, 5, 7}) {
    o.evidence[i] = {
        comp::op_evidence::kind::harmful, comp::precision::bf16, 2, 0.013, 1e-6 * static_cast<double>(i), 0};
  }
  CHECK(has(next(), "The loss keeps 4 operators from going lower; the 3 that would save most:"));
  CHECK(has(
      next(),
      "<li><b>block0.layer_norm7</b> (layer_norm): bf16 would save 7 us of a batch; bf16 beside 2 accepted operators "
      "was not accepted, the loss 1.3% worse</li>"));
  CHECK(next().find("layer_norm7") < next().find("add5"));
  CHECK_FALSE(has(next(), "layer_norm1<"));
  o.evidence[0] = o.evidence[1];  // in the found plan it is low all the same
  CHECK(has(next(), "The loss keeps 4 operators"));
}

TEST_CASE_FIXTURE(made_up::of_twelve, "the report says what another search could tell") {
  const auto next = [&] { return section_of(comp::html_text(o), "What next"); };
  CHECK_FALSE(has(next(), "Search again"));
  o.contest[2].over_fp32 = {1.01, {0.98, 1.03}};
  CHECK(has(next(), "<li>on a quiet machine, or with more rounds"));
  CHECK(has(next(), "&quot;comp&quot; was 0.98 to 1.03 times as fast as FP32, which is too noisy to tell</li>"));
  comp::outcome fp32 = made_up::fp32_wins(12);
  fp32.contest[2].over_fp32 = {0.97, {0.14, 3.24}};
  CHECK_FALSE(has(comp::html_text(fp32), "too noisy to tell"));  // its loss was rejected
  fp32.contest[2].loss.reset();
  CHECK(has(comp::html_text(fp32), "was 0.14 to 3.24 times as fast as FP32, which is too noisy to tell"));
  o.evidence.resize(12);
  o.evidence[1] = {.what = comp::op_evidence::kind::undecided, .low = comp::precision::bf16};
  CHECK(has(
      next(),
      "<li>with a larger budget (settings.budget, train --budget): 1 operator was low in plans that were not accepted and not tried alone"));
  o.batches_per_epoch = 0;
  CHECK(has(next(), "<li>with batches_per_epoch() in the trainer"));
  o.memory_limit = 1;
  CHECK(has(next(), "<li>with a higher memory limit or a smaller batch"));
}

TEST_CASE("losses of FP32 and of the found plan are drawn on the same batches, with what was accepted") {
  const auto curves = [](const comp::outcome& o) { return section_of(comp::html_text(o), "Losses of FP32"); };
  const std::string both = curves(made_up::outcome(12));
  CHECK(count(both, "class=\"chart\"") == 2);
  CHECK(count(both, "<path class=\"band\"") == 2);
  CHECK(count(both, "<path class=\"line low\" d=\"M") == 3);  // and the legend's
  CHECK(has(both, "Loss of each of 40 batches under FP32 and under the found plan"));
  CHECK(has(both, "Mean loss so far against FP32's, at the end +0.49%"));  // what the tile says
  CHECK(has(both, "accepted, +1% of FP32's mean"));

  comp::outcome o = made_up::outcome(12);
  o.trials[2].sample.curve.resize(25);
  CHECK(has(curves(o), "Loss of each of 25 batches"));
  o.trials[2].sample.curve[7] = std::nan("");
  CHECK_FALSE(has(curves(o), "nan"));
  o.criterion = comp::criterion::scores;
  CHECK(curves(o) == "");
  o.criterion = comp::criterion::batch_losses;
  o.trials[2].sample.curve.clear();
  CHECK(curves(o) == "");
  CHECK(curves(made_up::fp32_wins(12)) == "");
}

TEST_CASE_FIXTURE(made_up::of_twelve, "a long curve is drawn with few points, the last among them") {
  o.baseline = made_up::batches(50'000, 0, 0.05);
  o.trials[2].sample = made_up::batches(50'000, 0.012, 0.03);
  const std::string curves = section_of(comp::html_text(o), "Losses of FP32");
  CHECK(curves.size() < 30'000);
  CHECK(has(curves, "L550.0 "));  // the right end
}

TEST_CASE_FIXTURE(made_up::of_twelve, "a candidate far slower than FP32 does not stretch the chart") {
  o.trials[5].sample.batch_seconds.assign(8, 50.0);
  const std::string chart = section_of(comp::html_text(o), "Each candidate");
  CHECK(has(chart, ">80 ms</text>"));
  CHECK_FALSE(has(chart, " s</text>"));
  CHECK(has(chart, " in bf16: 50.0 s per batch"));
}

TEST_CASE("times per operator come from profiles, and are left out without them") {
  const std::string html = comp::html_text(profiled(60));
  const std::string times = section_of(html, "Time per operator");
  // 60 operators of 3 ms; half of them in 1.5 ms.
  CHECK(has(times, "Whole batch</th><td>FP32</td><td class=\"n wide\">60.0 ms</td><td class=\"n wide\">120 ms</td>"));
  CHECK(has(times,
            "Whole batch</th><td>found plan</td><td class=\"n wide\">45.0 ms</td><td class=\"n wide\">90.0 ms</td>"));
  CHECK(count(times, "<th scope=\"row\">") == 2 + 10 + count(times, "<span class=\"p fb\">"));
  CHECK(has(html,
            "<td class=\"n wide\" data-v=\"0.003\">3.00 ms</td><td class=\"n wide\" data-v=\"0.0015\">1.50 ms</td>"));
  CHECK(has(html, "<td class=\"n wide\" data-v=\"0.004\">0.4%</td>"));
  const std::string without = comp::html_text(made_up::outcome(60));
  CHECK(section_of(without, "Time per operator") == "");
  CHECK_FALSE(has(without, "Low error"));
}

TEST_CASE("the rest of a batch is what its operators leave of it") {
  comp::outcome o = profiled(6);  // 18 ms of operators, 13.5 ms in the found plan
  for (comp::contestant& c : o.contest) c.seconds.assign(20, &c == &o.contest[0] ? 0.020 : 0.0155);
  const std::string times = section_of(comp::html_text(o), "Time per operator");
  CHECK(has(times, "<td class=\"n wide\">2.00 ms</td><td class=\"n\">20.0 ms</td>"));
  CHECK_FALSE(has(times, "longer than the whole batch"));
  for (comp::contestant& c : o.contest) c.seconds.assign(20, 0.010);
  const std::string busy = section_of(comp::html_text(o), "Time per operator");
  CHECK(has(busy, "<td class=\"n wide\"></td><td class=\"n\">10.0 ms</td>"));
  CHECK(has(busy, "Timed alone, the operators take longer than the whole batch"));
}

TEST_CASE("a profile that does not fit is not shown") {
  comp::outcome o = profiled(12);
  for (comp::trial& t : o.trials) {
    if (t.purpose == comp::purpose::profile && t.plan == o.plan) t.sample.curve.clear();
    if (t.purpose == comp::purpose::profile && t.plan.count_low() > 0) t.sample.curve.pop_back();
  }
  CHECK(section_of(comp::html_text(o), "Time per operator") == "");
}

TEST_CASE("each head of a table says what it heads, and tables of many rows sort by numbers") {
  const std::string html = comp::html_text(profiled(60));
  CHECK(count(html, "<th scope=\"") == count(html, "<th ") + count(html, "<th>"));
  CHECK(count(html, "class=\"sorts\"") == 2);
  CHECK(has(html, "<td class=\"n\" data-v=\"0.052\">52.0 ms</td>"));
  CHECK(has(html, "<td class=\"n wide\" data-v=\"\">not a number</td>"));  // last, whichever way
}

TEST_CASE("a plan in little shows each operator up to 120, and above that shares") {
  comp::plan p{120};
  for (std::size_t i = 0; i < 120; i += 2) p[i] = comp::precision::bf16;
  CHECK(count(comp::detail::small_plan(p, {}), "h1v10h-1z") == 120);
  comp::plan large{1200};
  for (std::size_t i = 0; i < 1200; i += 20) large[i] = comp::precision::bf16;  // one in 20: not the colour of all
  const std::string shares = comp::detail::small_plan(large, {});
  CHECK(has(shares, "<path fill=\"#c4ccd5\" d=\"M0 0h60v9.5h-60z\"/>"));
  CHECK(has(shares, "<path fill=\"#0072b2\" d=\"M0 9.5h60v0.5h-60z\"/>"));
  CHECK(has(shares, "fp32 but 60 in bf16"));
}

TEST_CASE("a large model's cells stand for neighbours, say their shares and lead to their rows") {
  const std::string html = comp::html_text(made_up::outcome(10'000));
  CHECK(count(html, "<span class=\"c part\"") <= 600);
  CHECK(has(html, "data-rows=\"0-33\""));
  CHECK(has(html, "aria-label=\"0 to 33, from block0.linear0 to block2.softmax9: "));
  CHECK(has(html, "background:linear-gradient(0deg,var(--p1) 0%,var(--p1) "));
  CHECK(count(html, "<tr class=\"far\">") == 9000);
  CHECK(html.size() < 5'000'000);
}

TEST_CASE("texts stand out from what is behind them, in light and in dark") {
  for (const bool dark : {false, true}) {
    CAPTURE(dark);
    for (const char* behind : {"bg", "card"}) {
      for (const char* text : {"ink", "soft", "accent", "bad"}) {
        CAPTURE(behind);
        CAPTURE(text);
        CHECK(contrast(colour(text, dark), colour(behind, dark)) >= 4.5);
      }
    }
    for (const char precision : comp::precision_letters) {
      CAPTURE(precision);
      const std::string style{comp::detail::html_style}, name{'p', precision};
      const std::string rule = fmt::format(".f{}{{background:var(--{});color:", precision, name);
      REQUIRE(has(style, "--" + name + ":"));
      REQUIRE(has(style, rule));
      const auto begin = style.find(rule) + rule.size();
      std::string text = style.substr(begin, style.find('}', begin) - begin);
      if (text.starts_with("var")) text = colour(name + "i", dark);
      CHECK(contrast(text, colour(name, dark)) >= 4.5);
    }
  }
}
