// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/html_report.hpp>
#include <set>

#include "made_up.hpp"
#include "scratch.hpp"

namespace {
// The first tag that is not closed by its own end tag; empty when all are. Attributes are always quoted here.
std::string unbalanced(const std::string& html) {
  const std::set<std::string> alone{"meta", "input", "br", "path", "rect", "circle", "line"};
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

std::string scatter_of(const std::string& html) {
  const std::string from = html.substr(html.find("<h2>Each candidate"));
  return from.substr(from.find("class=\"chart\""), from.find("</section>"));
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
  for (const auto operators : std::initializer_list<std::size_t>{1, 12, 60, 500, 2000}) {
    CAPTURE(operators);
    const std::string html = comp::html_text(made_up::outcome(operators));
    CHECK(unbalanced(html) == "");
    CHECK(count(html, "<span class=\"c f") == operators);
    CHECK(count(html, "tabindex=\"0\" data-tip aria-label=\"0 block0.linear0 (linear): bf16.") == 1);
    CHECK(count(html, "</td><td class=\"t\">block0.linear0</td>") == 1);
  }
}

struct with_report {
  const std::string html = comp::html_text(made_up::outcome(12));
};

TEST_CASE_FIXTURE(with_report, "the report needs nothing but itself") {
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url("}) {
    CAPTURE(outside);
    CHECK_FALSE(has(html, outside));
  }
}

TEST_CASE_FIXTURE(with_report, "the report begins with what was found") {
  CHECK(has(html, "<h1>1.15 times as fast as the best rule-based plan, 1.61 times as fast as FP32</h1>"));
  CHECK(has(
      html,
      "The found plan: all but 2 layer_norm, 2 softmax and 2 add in bf16. It is 1.15 times as fast as the best "
      "rule-based plan (95%: 1.14 to 1.16) and 1.61 times as fast as FP32 (95%: 1.59 to 1.64), its loss within 1%."));
  CHECK(has(html, "<b>118 MiB</b><span>peak memory, 62% of FP32's</span>"));
  CHECK(has(html, "<b>+0.49%</b><span>loss against FP32's: +- 0.16%, mean of 40 batches; limit +1%</span>"));
  CHECK(has(html, "<b>2.05%</b><span>of a 100-epoch training is what the search cost: 5.34 s</span>"));
}

TEST_CASE("the title is the gain over the rules, FP32 comes second; where the rules or FP32 are best it says that") {
  const auto title = [](const comp::outcome& o) {
    const std::string html = comp::html_text(o);
    const auto from = html.find("<h1>") + 4;
    return html.substr(from, html.find("</h1>") - from);
  };
  CHECK(title(made_up::with_tie(12)) == "As fast as the best rule-based plan within noise, 1.61 times as fast as FP32");
  comp::outcome o = made_up::outcome(12);
  o.speedup_bounds = {0.9, 1.8};
  CHECK(title(o) == "1.15 times as fast as the best rule-based plan, as fast as FP32 within noise");
  o.contest[1].loss->answer = comp::loss_answer::rejected;
  CHECK(
      has(comp::html_text(o), "best rule-based plan (95%: 1.14 to 1.16), whose loss was not accepted, and as fast as"));
  o = made_up::outcome(12);
  o.plan = o.contest[1].plan;
  CHECK(title(o) == "The rule-based plan is the fastest here: 1.61 times as fast as FP32");
  o = made_up::outcome(12);
  o.contest[1].rule_based = false;
  CHECK(title(o) == "1.61 times as fast as FP32");
  o = made_up::fp32_wins(12);
  o.contest[1].seconds = made_up::contestant("", {}, 0.058, 5).seconds;
  o.contest[1].over_fp32 = comp::compare_paired(o.contest[0].seconds, o.contest[1].seconds);
  CHECK(title(o) ==
        "FP32 is the fastest plan here that keeps the loss, 1.15 times as fast as the best rule-based plan");
}

TEST_CASE("a search without an accepted candidate says so") {
  const std::string html = comp::html_text(made_up::fp32_wins(20));
  CHECK(has(html, "<h1>FP32 is the fastest plan here that keeps the loss</h1>"));
  CHECK(has(html,
            "The best rule-based plan, rule-based bf16, ran at 1.42x FP32's speed, but its loss was not accepted."));
  CHECK(unbalanced(html) == "");
}

TEST_CASE("where FP32 wins, what became of the rule-based plan is told as far as it is known") {
  comp::outcome o = made_up::fp32_wins(20);
  o.contest[1].loss.reset();
  CHECK(has(comp::html_text(o), "ran at 1.42x FP32's speed, but its loss was not judged."));
  o.contest[1].over_fp32 = {1.005, {0.99, 1.02}};
  CHECK(has(comp::html_text(o), "ran at 1.00x FP32's speed: no faster beyond noise."));
}

TEST_CASE("what is within noise is called a tie") {
  const std::string html = comp::html_text(made_up::with_tie(12));
  CHECK(has(html, "as fast as the best rule-based plan within noise (95%: 0."));
  CHECK(has(html, "rule-based bf16<br><span class=\"soft\">as fast as comp within noise</span>"));
  CHECK(has(html, ": a tie</span>"));
  comp::outcome o = made_up::outcome(12);
  o.speedup = 1.01, o.speedup_bounds = {0.98, 1.03};
  o.contest[1].rule_based = false;
  CHECK(has(comp::html_text(o), "<h1>As fast as FP32 within noise</h1>"));
  CHECK_FALSE(has(comp::html_text(made_up::outcome(12)), "within noise"));
}

TEST_CASE_FIXTURE(made_up::of_twelve, "a rule-based plan that was not raced is compared without an interval") {
  std::erase_if(o.trials,
                [&](const comp::trial& t) { return t.stage == comp::stage::contest && t.plan == o.contest[1].plan; });
  CHECK(has(comp::html_text(o), "It is 1.14 times as fast as the best rule-based plan and 1.61"));
}

TEST_CASE_FIXTURE(with_report, "the costs are those of the stages, what was kept as training, and what is left") {
  CHECK(
      has(html,
          "Judged by losses</td><td class=\"n wide\">6</td><td class=\"n wide\">108</td><td class=\"n\">4.10 s</td>"));
  CHECK(has(html, "Whole search</td><td class=\"wide\"></td><td class=\"n wide\"></td><td class=\"n\">9.10 s</td>"));
  CHECK(has(
      html,
      "Kept as training, at the found plan's speed</td><td class=\"wide\"></td><td class=\"n wide\">118</td><td class=\"n\">3.76 s</td>"));
  CHECK(has(html, "<b>5.34 s</b>, 2.05% of 100 epochs"));
  const std::string unknown = comp::html_text(made_up::fp32_wins(12));
  CHECK(has(unknown, "<b>9.10 s</b>, the length of an epoch is not known"));
  CHECK(has(unknown, "<span>is what the search cost; the length of an epoch is not known</span>"));
  CHECK(has(unknown, "<dt>Batches per epoch</dt><dd>not known</dd>"));
}

TEST_CASE_FIXTURE(made_up::of_twelve, "a limit of memory is told, and who is above it") {
  o.memory_limit = std::int64_t{150} << 20;
  CHECK(has(comp::html_text(o), "<span>peak memory, 62% of FP32's; limit 150 MiB</span>"));
  CHECK(count(comp::html_text(o), "too much") == 1);
  CHECK_FALSE(has(comp::html_text(made_up::outcome(12)), "limit 1"));
}

TEST_CASE("a plan that was run again with its roundings perturbed is judged by its first run") {
  comp::outcome o = made_up::outcome(12);
  comp::trial again = o.trials[2];
  again.purpose = comp::purpose::perturbed;
  again.label = "roundings perturbed";
  o.trials.push_back(again);
  const std::string html = comp::html_text(o);
  CHECK(count(html, "class=\"mk ok\"") == 3);  // two and the legend's
  CHECK(has(html, "roundings perturbed"));
}

TEST_CASE_FIXTURE(made_up::of_twelve, "runs that came from a ledger are told") {
  o.recalled = 5;
  CHECK(has(comp::html_text(o), "<dt>Runs</dt><dd>73, 5 of them from the ledger</dd>"));
  CHECK_FALSE(has(comp::html_text(made_up::outcome(12)), "from the ledger"));
}

TEST_CASE_FIXTURE(made_up::of_twelve, "epoch losses and scores have columns only where epochs were run") {
  CHECK_FALSE(has(comp::html_text(o), "Epoch loss"));
  o.contest[2].epoch = comp::sample{.loss = 2.25, .seconds = 3, .batches = 80, .score = 0.75};
  const std::string html = comp::html_text(o);
  CHECK(has(html, "Epoch loss"));
  CHECK(has(html, "data-l=\"Epoch loss\">2.2500</td><td class=\"n\" data-l=\"Score\">0.75</td>"));
}

TEST_CASE("a plan that was not judged by itself is told as part of an accepted one that lowers more") {
  comp::outcome o = made_up::outcome(12);
  o.contest[1].loss.reset();
  std::erase_if(o.trials,
                [&](const comp::trial& t) { return t.stage == comp::stage::losses && t.plan == o.contest[1].plan; });
  CHECK(has(comp::html_text(o), ">part of an accepted plan<"));
  o.plan = o.contest[1].plan;
  CHECK(
      has(comp::html_text(o), "<b>+0.49%</b><span>loss against FP32's of a plan that lowers more: mean of 40 batches"));
  for (comp::trial& t : o.trials) t.accepted = false;
  CHECK_FALSE(has(comp::html_text(o), "part of an accepted plan"));
}

TEST_CASE("of a loss that is to be high, what is shown is its change, and the chart has worse above") {
  comp::outcome o = made_up::outcome(12);
  o.higher_is_better = true;
  for (comp::contestant& c : o.contest) {
    if (c.loss) c.loss->difference = -c.loss->difference;  // it is higher, and so better
  }
  const std::string html = comp::html_text(o);
  CHECK(has(html, "<b>+0.49%</b><span>loss against FP32's: +- 0.16%, mean of 40 batches; limit -1%</span>"));
  CHECK(has(html, "accepted above FP32 - 1%"));
  CHECK(has(html, "losses of the same batches, at most 1% below FP32's"));
}

TEST_CASE("an outcome with nothing in it makes a report, without NaN in it") {
  const std::string html = comp::html_text(comp::outcome{});
  CHECK(unbalanced(html) == "");
  CHECK_FALSE(has(html, "nan%"));
  CHECK(has(html, "No plan was judged by its losses."));
  CHECK_FALSE(has(html, ">nan"));
}

TEST_CASE_FIXTURE(with_report, "each fate has its shape in the chart, and the line of acceptance is drawn") {
  const std::string chart = scatter_of(html);
  CHECK(count(chart, "class=\"mk base\"") == 1);
  CHECK(count(chart, "class=\"mk ok\"") == 2);
  CHECK(count(chart, "class=\"mk rej\"") == 1);
  CHECK(count(chart, "class=\"mk cut\"") == 1);
  CHECK(count(chart, "class=\"mk bad\"") == 1);
  CHECK(count(chart, "class=\"ring\"") == 1);
  CHECK(has(chart, "accepted below FP32 + 1%"));
  comp::outcome o = made_up::outcome(12);
  o.tolerance = 0.05;  // what was not accepted is 4.36% above
  CHECK(has(comp::html_text(o), " of 16 batches, undecided\""));
  CHECK(has(html, "1 run without a time, or without a loss on batches that FP32 trained, is not drawn."));
}

TEST_CASE("what was neither accepted nor shown to be worse is undecided, and its interval is drawn") {
  comp::outcome o = made_up::outcome(12);
  comp::trial& t = o.trials[3];
  t.sample = made_up::batches(16, 0, 0.029);
  for (std::size_t i = 0; i < 16; ++i) t.sample.curve[i] += i % 2 == 0 ? 0.25 : -0.19;  // +1.2% on average
  t.accepted = false;
  const std::string html = comp::html_text(o), chart = scatter_of(html);
  CHECK(count(chart, "class=\"mk open\"") == 1);
  CHECK(count(chart, "class=\"mk rej\"") == 0);
  CHECK(count(chart, "class=\"bar\"") == 3);
  CHECK(has(chart, "of 16 batches, undecided\""));
  CHECK(has(html, "<td class=\"e\">undecided</td>"));
  CHECK(has(html, "</svg>undecided: may be within the tolerance or not</span>"));
  for (double& loss : t.sample.curve) loss += 1;
  CHECK(has(scatter_of(comp::html_text(o)), "of 16 batches, rejected\""));
}

TEST_CASE_FIXTURE(with_report, "the chart shows losses against FP32's on the same batches, whatever else was run") {
  const std::string all = "all in bf16: 30.2 ms per batch, loss +4.36% +- ";
  CHECK(has(html, all));  // its mean is above FP32's for a longer run, too, by 8%
  const std::string more = comp::html_text(made_up::with_side_runs(12));
  const std::string chart = scatter_of(more);
  CHECK(has(chart, all));
  CHECK(count(chart, "class=\"mk base\"") == 2);  // FP32 in two parts is one training; and with its roundings perturbed
  CHECK(has(chart, "fp32, roundings perturbed: 52.0 ms per batch, loss +0.02% of 16 batches, ok"));
  CHECK(count(chart, "all bf16: ") == 0);  // a first look judges nothing
  CHECK(has(more, "<td class=\"e\">a first look</td>"));
}

TEST_CASE("a run without curves is drawn by its mean where FP32 trained as many batches, and else not") {
  comp::outcome o = made_up::outcome(12);
  o.baseline.curve.clear();
  for (comp::trial& t : o.trials) t.sample.curve.clear();
  const std::string html = comp::html_text(o);
  CHECK(has(
      html,
      "all but 2 layer_norm, 2 softmax and 2 add in bf16: 32.2 ms per batch, loss +0.49% of 40 batches, accepted\""));
  CHECK(has(html, "4 runs without a time, or without a loss on batches that FP32 trained, are not drawn."));
}

TEST_CASE("numbers at the edge of sense are drawn inside the chart") {
  for (const double loss : {0.0, -2.3, 1e300, 1e-300, std::nan("")}) {
    for (const bool fp32 : {true, false}) {
      CAPTURE(loss);
      CAPTURE(fp32);
      comp::outcome o = made_up::outcome(12);
      for (double& each : fp32 ? o.baseline.curve : o.trials[2].sample.curve) each = loss;
      o.trials[1].seconds = 1e-9;
      const std::string html = comp::html_text(o);
      CHECK(unbalanced(html) == "");
      CHECK_FALSE(has(html, "=\"nan"));
      CHECK_FALSE(has(html, "=\"-nan"));
      CHECK_FALSE(has(html, "=\"inf"));
    }
  }
}

TEST_CASE("text from outside stays text") {
  const std::string evil = "<script>alert(\"1\")</script>'&";
  comp::outcome o = renamed(made_up::outcome(24), [&](auto& ops) {
    ops[0].name = ops[0].kind = evil;
    for (auto& op : ops) op.scopes = {evil + op.scopes[0]};
  });
  o.reasons[0].text = o.trials[6].sample.message = o.trials[1].label = o.contest[1].label = o.hardware.name = evil;
  o.hardware.isa = o.warnings = {evil};
  const std::string html = comp::html_text(o);
  CHECK(count(html, "<script>") == 2);  // our own
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
  CHECK(html.size() < 10'000'000);
  CHECK(has(html, "The first 20000 of 100000 operators."));
  CHECK(count(html, "<span class=\"c ") <= 302);  // neighbours share a cell
}

TEST_CASE("the casts of the found plan are listed, the largest first") {
  const std::string html = comp::html_text(made_up::outcome(60));
  const std::string casts = html.substr(html.find("<h2>Casts of the plan"));
  CHECK(
      has(casts, "<p>59 in the forward pass and 59 in the backward pass; together they read and write 88.5 MiB.</p>"));
  CHECK(has(casts, "after block0.linear0</td><td><span class=\"p fb\">bf16</span></td><td><span class=\"p f1\">fp32"));
  CHECK(has(casts, "<p class=\"soft\">The 10 largest.</p>"));
  CHECK_FALSE(has(comp::html_text(made_up::fp32_wins(12)), "Casts of the plan"));
  comp::outcome o = made_up::outcome(12);
  o.plan = o.plan.as_autocast();
  CHECK_FALSE(has(comp::html_text(o), "Casts of the plan"));
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
  CHECK(count(text_of(path), "<h2>Training after the search</h2>") == 1);
  now.so_far.epochs.push_back({.loss = 1.25, .seconds = 4, .batches = 80, .score = 0.75, .message = "<slow>"});
  now.so_far.fallbacks = {{.epoch = 1, .from = o.plan, .to = comp::plan{12}, .why = comp::status::diverged}};
  now.so_far.warnings = {"a & b"};
  comp::html_report{path}.training_progressed(now);
  const std::string html = text_of(path);
  CHECK(unbalanced(html) == "");
  CHECK(count(html, "<h2>Training after the search</h2>") == 1);
  CHECK(has(html,
            "<td class=\"n\">2</td><td class=\"n wide\">80</td><td class=\"n\">1.2500</td><td class=\"n\">4.00 s</td>"
            "<td class=\"n\">0.75</td><td class=\"e\">&lt;slow&gt;</td>"));
  CHECK(has(html,
            "<li>Epoch 2 ended as diverged: it was trained again with 0 operators lowered instead of 6.</li>"
            "<li>a &amp; b</li>"));
  now.plans.front() = comp::plan{12};  // of another plan than the report is
  comp::html_report{path}.training_progressed(now);
  CHECK(text_of(path) == html);
}

TEST_CASE_FIXTURE(with_folder, "the report is written when the search is done, whole or not at all") {
  comp::html_report report{folder / "report.html"};
  report.search_done(made_up::outcome(12));
  CHECK(has(text_of(folder / "report.html"),
            "<h1>1.15 times as fast as the best rule-based plan, 1.61 times as fast as FP32</h1>"));
  CHECK(folder.files() == 1);
  CHECK(has(message_of<comp::file_error>([&] { comp::html_report{folder / "no/r.html"}.search_done(comp::outcome{}); }),
            "no/r.html\" cannot be written (No such file or directory)"));
  CHECK_THROWS_AS(comp::write_html(comp::outcome{}, "/dev/full"), comp::file_error);
}
