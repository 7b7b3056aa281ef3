// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/html_report.hpp>
#include <set>

#include "made_up.hpp"
#include "scratch.hpp"

namespace {
std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

// The first tag that is not closed by its own end tag; empty when all are. Attributes are always quoted here.
std::string unbalanced(const std::string& html) {
  const std::set<std::string> alone{"meta", "input", "br", "path", "rect", "circle", "line", "!DOCTYPE"};
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
    } else if (!alone.contains(name)) {
      open.push_back(name);
      if (name == "style" || name == "script") at = html.find("</" + name, at);
    }
  }
  return open.empty() ? "" : open.back();
}

comp::outcome renamed(comp::outcome o, auto change) {
  std::vector<comp::op_info> operators{o.graph.begin(), o.graph.end()};
  change(operators);
  o.graph = operators;
  return o;
}
}  // namespace

static_assert(comp::Observer<comp::html_report>);

TEST_CASE("the report is whole and well-formed for any size of model") {
  for (const std::size_t operators : {1, 12, 60, 500, 2000}) {
    CAPTURE(operators);
    const std::string html = comp::html_text(made_up::outcome(operators));
    CHECK(unbalanced(html) == "");
    CHECK(count(html, "<span class=\"c f") == operators);
    CHECK(count(html, "tabindex=\"0\" data-tip aria-label=\"0 block0.linear0 (linear): bf16.") == 1);
    CHECK(count(html, "</td><td class=\"t\">block0.linear0</td>") == 1);
  }
}

TEST_CASE("the report needs nothing but itself") {
  const std::string html = comp::html_text(made_up::outcome(12));
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url("}) {
    CAPTURE(outside);
    CHECK_FALSE(has(html, outside));
  }
}

TEST_CASE("the report begins with what was found") {
  const std::string html = comp::html_text(made_up::outcome(12));
  CHECK(has(html, "<h1>1.61 times as fast as FP32, its loss within 1%</h1>"));
  CHECK(has(html,
            "The found plan runs 6 of 12 operators in bf16. It is 1.61 times as fast as FP32 (95%: 1.59 to 1.64) and "
            "1.15 times as fast as the best rule-based plan (95%: 1.14 to 1.16)."));
  CHECK(has(html, "<b>118 MiB</b><span>peak memory, 62% of FP32's</span>"));
  CHECK(has(html, "<b>2.3120</b><span>epoch loss, +0.52% of FP32's; limit +1%</span>"));
  CHECK(has(html, "<b>8.89%</b>"));
}

TEST_CASE("a search without an accepted candidate says so") {
  const std::string html = comp::html_text(made_up::fp32_wins(20));
  CHECK(has(html, "<h1>FP32 is the fastest plan here that keeps the loss</h1>"));
  CHECK(has(html,
            "The best rule-based plan, rule-based bf16, ran at 1.42x FP32's speed, but the loss of its epoch was not "
            "accepted."));
  CHECK(unbalanced(html) == "");
}

TEST_CASE("an outcome with nothing in it makes a report, without NaN in it") {
  const std::string html = comp::html_text(comp::outcome{});
  CHECK(unbalanced(html) == "");
  CHECK_FALSE(has(html, "nan%"));
  CHECK(has(html, "No epoch was run."));
}

TEST_CASE("each fate has its shape in the chart, and the line of acceptance is drawn") {
  const std::string html = comp::html_text(made_up::outcome(12));
  const std::string chart = html.substr(html.find("class=\"chart\""));
  CHECK(count(chart, "class=\"mk base\"") == 1);
  CHECK(count(chart, "class=\"mk ok\"") == 2);
  CHECK(count(chart, "class=\"mk rej\"") == 1);
  CHECK(count(chart, "class=\"mk cut\"") == 1);
  CHECK(count(chart, "class=\"mk bad\"") == 1);
  CHECK(count(chart, "class=\"ring\"") == 1);
  CHECK(has(chart, "accepted below FP32 + 1%"));
  CHECK(has(html, "1 run ended before a batch was timed and cannot be drawn."));
}

TEST_CASE("numbers at the edge of sense are drawn inside the chart") {
  for (const double loss : {0.0, -2.3, 1e300, 1e-300}) {
    CAPTURE(loss);
    comp::outcome o = made_up::outcome(12);
    o.baseline.loss = loss;
    o.trials[0].sample.loss = loss;
    o.trials[1].seconds = 1e-9;
    const std::string html = comp::html_text(o);
    CHECK(unbalanced(html) == "");
    CHECK_FALSE(has(html, "=\"nan"));
    CHECK_FALSE(has(html, "=\"-nan"));
    CHECK_FALSE(has(html, "=\"inf"));
  }
}

TEST_CASE("text from outside stays text") {
  const std::string evil = "<script>alert(\"1\")</script>'&";
  comp::outcome o = renamed(made_up::outcome(24), [&](auto& ops) {
    ops[0].name = ops[0].kind = evil;
    for (auto& op : ops) op.scopes = {evil + op.scopes[0]};
  });
  o.reasons[0].text = o.trials[6].sample.message = o.trials[1].label = o.contest[1].label = o.hardware.name = evil;
  o.contest[1].label += "rule-based";
  o.hardware.isa = o.warnings = {evil};
  const std::string html = comp::html_text(o);
  CHECK(count(html, "<script>") == 1);  // our own
  CHECK_FALSE(has(html, "alert(\""));
  CHECK(count(html, "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&#39;&amp;") >= 11);
  CHECK(unbalanced(html) == "");
}

TEST_CASE("operators are labelled by scope, or by the first part of their names, only where that groups them") {
  CHECK(count(comp::html_text(made_up::outcome(60)), "<em ") == 5);
  CHECK(count(comp::html_text(made_up::outcome(12)), "<em ") == 0);
  const auto by_name = renamed(made_up::outcome(24), [](auto& ops) {
    for (auto& op : ops) op.scopes = {};
  });
  CHECK(has(comp::html_text(by_name), "title=\"block1\">block1</em>"));
  const auto alone = renamed(made_up::outcome(24), [](auto& ops) {
    for (auto& op : ops) op.scopes = {op.name};
  });
  CHECK(count(comp::html_text(alone), "<em ") == 0);
}

TEST_CASE("a model of 100,000 operators makes a report that a browser can open") {
  const std::string html = comp::html_text(made_up::outcome(100'000));
  CHECK(html.size() < 40'000'000);
  CHECK(has(html, "The first 4000 of 100000 operators."));
  auto o = made_up::outcome(100'000);
  o.plan = comp::plan(100'000, comp::precision::bf16);
  CHECK(comp::html_text(o).size() < 5'000'000);  // runs of equal neighbours are one cell
}

TEST_CASE("the report is written when the search is done, whole or not at all") {
  const scratch folder;
  comp::html_report report{folder / "report.html"};
  report.search_done(made_up::outcome(12));
  CHECK(text_of(folder / "report.html") == comp::html_text(made_up::outcome(12)));
  CHECK(folder.files() == 1);
  CHECK(has(message_of<comp::file_error>([&] { comp::html_report{folder / "no/r.html"}.search_done(comp::outcome{}); }),
            "no/r.html\" cannot be written (No such file or directory)"));
  CHECK_THROWS_AS(comp::write_html(comp::outcome{}, "/dev/full"), comp::file_error);
}
