// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <charconv>
#include <comp/observe/report.hpp>
#include <comp/observe/summary.hpp>
#include <cstdlib>
#include <limits>
#include <set>

#include "drawn.hpp"
#include "made_up.hpp"
#include "scratch.hpp"

using comp::json;

namespace {
// The first tag that is not closed by its own end tag; empty when all are. Attributes are always quoted here.
std::string unbalanced(const std::string& html) {
  const std::set<std::string> alone{"meta", "input", "br"};
  std::vector<std::string> open;
  for (std::size_t at = 0; (at = html.find('<', at)) != std::string::npos;) {
    std::size_t end = at + 1;
    for (bool quoted = false; end < html.size() && (quoted || html[end] != '>'); ++end) quoted ^= html[end] == '"';
    const std::string tag = html.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    at = end;
    if (tag[0] == '/') {
      if (open.empty() || tag.substr(1) != open.back()) return tag;
      open.pop_back();
    } else if (name[0] != '!' && !alone.contains(name)) {
      open.push_back(name);
      if (name == "style" || name == "script") at = html.find("</" + name, at);
    }
  }
  return open.empty() ? "" : open.back();
}

json json_in(const std::string& html) {
  const std::string begin = "id=\"data\">";
  const auto from = html.find(begin) + begin.size();
  return json::parse(html.substr(from, html.find("</script>", from) - from));
}

comp::outcome renamed(comp::outcome o, auto change) {
  std::vector<comp::op_info> operators{o.graph.begin(), o.graph.end()};
  change(operators);
  o.graph = operators;
  return o;
}

const std::string& style() {
  static const std::string page = comp::html_text(comp::outcome{});
  return page;
}

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

/// The value of a variable of the style; the dark one where there is one and it is asked for.
std::string colour(const std::string& variable, bool dark) {
  auto at = dark ? style().find("--" + variable + ":", style().find("prefers-color-scheme:dark")) : std::string::npos;
  if (at == std::string::npos) at = style().find("--" + variable + ":");
  const auto begin = at + variable.size() + 3;
  return style().substr(begin, style().find_first_of(";}", begin) - begin);
}

const comp::report_info of_mlp{.model = "mlp <8>",
                               .data = "digits.csv.gz",
                               .command = "train --model 'a & b'",
                               .date = "2026-11-22 13:20:05",
                               .use_command = "train --plan out/plan.json",
                               .plan_file = "out/plan.json"};
}  // namespace

static_assert(comp::Observer<comp::html_report>);

TEST_CASE("the page is well-formed for any size of model, and has the summary's JSON") {
  for (const auto operators : std::initializer_list<std::size_t>{0, 1, 12, 60, 500}) {
    CAPTURE(operators);
    const comp::outcome o = operators == 0 ? comp::outcome{} : made_up::outcome(operators);
    const std::string html = comp::html_text(o, of_mlp);
    CHECK(unbalanced(html) == "");
    CHECK(json_in(html) == comp::summary(o, of_mlp));
  }
  CHECK(comp::html_text(made_up::outcome(std::getenv("COMP_TEST_SMALL") != nullptr ? 25'000 : 100'000)).size() <
        10'000'000);  // a browser can open it
}

TEST_CASE("the page needs nothing but itself") {
  for (const char* outside : {"https:", "src=", "href=", "@import", "url("}) {
    CAPTURE(outside);
    CHECK_FALSE(has(style(), outside));
  }
  CHECK(count(style(), "http:") == count(style(), "'http://www.w3.org/2000/svg'"));  // the name of SVG's tags
}

TEST_CASE("without scripts the page has a title, the found plan, the contest and the costs") {
  const std::string html = comp::html_text(made_up::outcome(12));
  CHECK(has(html, "<title>1.61 times as fast as FP32 (95%: 1.59 to 1.64)</title>"));
  CHECK(has(html, "<h1>1.61 times as fast as FP32 (95%: 1.59 to 1.64)</h1>"));
  CHECK(
      has(html, "<p>The found plan (*): all but 2 layer_norm, 2 softmax and 2 add in bf16. In time, memory and loss "));
  CHECK(has(html,
            "<tr><td>* comp</td><td>31.9 ms</td><td>2.55 s</td><td>1.61x</td><td>1.59 to 1.64</td>"
            "<td>+0.49% +- 0.16% of 40 batches</td><td>118 MiB</td></tr>"));
  CHECK(has(html, "<p>The cost: 2.05% of 100 epochs.</p>"));
  CHECK(has(html, "<td>  cost of the search</td><td>5.34 s</td>"));
}

TEST_CASE("texts from outside stay texts, in the page as it is written and as it is drawn") {
  const std::string evil = "</script><b>alert(\"1\")</b>'&<!--title-->";
  comp::outcome o = renamed(made_up::outcome(24), [&](auto& ops) {
    ops[0].name = ops[0].kind = evil;
    for (auto& op : ops) op.scopes = {evil + op.scopes[0]};
  });
  o.reasons[0].text = o.trials[6].sample.message = o.trials[1].label = o.contest[1].label = o.hardware.name = evil;
  o.hardware.isa = o.warnings = {evil};
  const std::string html = comp::html_text(o, {.model = evil, .command = evil, .plan_file = evil});
  CHECK(unbalanced(html) == "");
  CHECK(count(html, "</script>") == 2);
  CHECK_FALSE(has(html, "<b>"));
  CHECK(has(html, "&lt;/script&gt;&lt;b&gt;alert"));
  CHECK(json_in(html)["operator_list"][0]["name"] == evil);
  if (!can_draw) return;
  const std::string page = drawn(html);
  CHECK(count(page, "[" + evil + "]") >= 8);
  CHECK(count(page, "<b>") == count(page, "<b>[") + count(page, "<b>alert"));  // each element of that name is ours
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
      const std::string name{'p', precision}, rule = fmt::format(".f{}{{background:var(--{});color:", precision, name);
      REQUIRE(has(style(), "--" + name + ":"));
      REQUIRE(has(style(), rule));
      const auto begin = style().find(rule) + rule.size();
      std::string text = style().substr(begin, style().find('}', begin) - begin);
      if (text.starts_with("var")) text = colour(name + "i", dark);
      CHECK(contrast(text, colour(name, dark)) >= 4.5);
    }
  }
}

TEST_CASE("a training with the found plan adds its epochs to the report, anew after each, in another process too") {
  const scratch folder;
  const std::string path = folder / "report.html";
  const comp::outcome o = made_up::outcome(12);
  comp::training_progress now{.plans = {o.plan, comp::plan{12}}};
  now.so_far.epochs = {made_up::batches(80, 0, 0.05)};
  comp::html_report report{path};
  report.training_progressed(now);  // there is no report
  CHECK(folder.files() == 0);
  report.search_done(o);
  report.training_progressed(now);
  CHECK(json_in(text_of(path))["training"]["epochs"].size() == 1);
  now.so_far.epochs.push_back({.loss = 1.25, .seconds = 4, .batches = 80, .score = 0.75, .message = "</script>"});
  now.so_far.fallbacks = {{.epoch = 1, .from = o.plan, .to = comp::plan{12}, .why = comp::status::diverged}};
  now.so_far.warnings = {"a & b"};
  comp::html_report{path}.training_progressed(now);
  const std::string html = text_of(path);
  CHECK(unbalanced(html) == "");
  json expected = comp::summary(o);
  expected["of"]["date"] = json_in(html)["of"]["date"];
  expected["training"] = json_in(html)["training"];
  CHECK(json_in(html) == expected);
  CHECK(expected["training"]["epochs"][1]["message"] == "</script>");
  if (can_draw) {
    const std::string training = section_of(drawn(html), "Training after the search");
    CHECK(has(training, "[2]</td><td class=\"n\">[80]</td><td class=\"n\">[1.2500]</td><td class=\"n\">[4.00 s]</td>"));
    CHECK(has(training, "[0.75]</td><td class=\"e\">[</script>]</td>"));
    CHECK(
        has(training, "<li>[Epoch 2 ended as diverged: it was trained again with 0 operators lowered instead of 6.]"));
    CHECK(has(training, "<li>[a & b]</li>"));
  }
  now.plans.front() = comp::plan{12};  // of another plan than the report is
  comp::html_report{path}.training_progressed(now);
  CHECK(text_of(path) == html);
  now.plans.front() = o.plan;
  for (const char* other : {"", "<script type=\"application/json\" id=\"data\">",
                            "<script type=\"application/json\" id=\"data\">{</script>"}) {
    write_text(path, other);  // the user's own, or damaged
    comp::html_report{path}.training_progressed(now);
    CHECK(text_of(path) == other);
  }
}

TEST_CASE_FIXTURE(with_folder, "the report is written when the search is done, whole or not at all") {
  comp::html_report report{folder / "report.html"};
  report.search_done(made_up::outcome(12));
  CHECK(has(text_of(folder / "report.html"), "<h1>1.61 times as fast as FP32"));
  CHECK(folder.files() == 1);
  CHECK(has(message_of<comp::file_error>([&] { comp::html_report{folder / "no/r.html"}.search_done(comp::outcome{}); }),
            "no/r.html\" cannot be written (No such file or directory)"));
  CHECK_THROWS_AS(comp::write_html(comp::outcome{}, "/dev/full"), comp::file_error);
}
