// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/compare.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

namespace {
std::string unread(const std::string& path) {
  return message_of<comp::file_error>([&] { (void)comp::compare_text({path, path}); });
}
}  // namespace

TEST_CASE_FIXTURE(with_folder, "summaries of two searches stand side by side, and what differs is told") {
  comp::outcome o = made_up::outcome(12);
  std::filesystem::create_directory(folder / "a");
  comp::write_summary(o, folder / "a/summary.json", {.model = "mlp", .data = "digits"});
  const comp::plan before = o.plan;
  o.plan[1] = o.contest[2].plan[1] = comp::precision::fp16;
  o.warnings.clear();
  comp::write_summary(o, folder / "b.json");
  const std::string text = comp::compare_text({folder / "a", folder / "b.json"});
  const auto row = [&](const std::string& name) {
    const auto at = text.find("\n" + name);
    REQUIRE(at != std::string::npos);
    std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    line.erase(std::unique(line.begin(), line.end(), [](char a, char b) { return a == ' ' && b == ' '; }), line.end());
    return line;
  };
  CHECK(row("model") == "model mlp -");
  CHECK(row("plan") == fmt::format("plan {} {}", name(before, o.graph), name(o.plan, o.graph)));
  CHECK(row("batch in FP32") == "batch in FP32 51.6 ms 51.6 ms");
  CHECK(row("batch, found plan") == "batch, found plan 31.9 ms 31.9 ms");
  CHECK(row("against FP32 (95%)") == "against FP32 (95%) 1.61x (1.59 to 1.64) 1.61x (1.59 to 1.64)");
  CHECK(row("loss against FP32's") == "loss against FP32's +0.49% +- 0.16% +0.49% +- 0.16%");
  CHECK(row("peak memory") == "peak memory 118 MiB 118 MiB");
  CHECK(row("cost of the search") == "cost of the search 5.34 s 5.34 s");
  CHECK(row("warnings") == "warnings 1 0");
  CHECK_FALSE(has(text, "epoch loss"));  // neither has one
  CHECK(has(text, folder / "b.json differs from " + (folder / "a") + " in 1 of 12 operators.\n"));
}

TEST_CASE_FIXTURE(with_folder, "what cannot be compared is said") {
  comp::outcome o = made_up::outcome(12);
  comp::write_summary(o, folder / "a.json");
  comp::write_summary(o, folder / "same.json");
  o = made_up::outcome(24);
  o.hardware.name = "another";
  comp::write_summary(o, folder / "b.json");
  const std::string text = comp::compare_text({folder / "a.json", folder / "same.json", folder / "b.json"});
  CHECK(has(text, "same.json has the plan of "));
  CHECK(has(text, "b.json is of another model than "));
  CHECK(has(text, "b.json is of another machine than "));
}

TEST_CASE_FIXTURE(with_folder, "a search without a contest has a column, too") {
  comp::write_summary(comp::outcome{}, folder / "a.json");
  CHECK(has(comp::compare_text({folder / "a.json", folder / "a.json"}), "all in fp32"));
}

TEST_CASE_FIXTURE(with_folder, "what is no summary is refused, and no control character reaches the terminal") {
  const std::string path = folder / "x.json";
  CHECK(has(unread(path), "cannot be opened (No such file or directory)"));
  CHECK(has(unread(folder / ""), "summary.json\" cannot be opened"));
  const std::pair<const char*, const char*> bad[] = {
      {"[1, 2]", "array of 2 (an object is needed)"},
      {R"({"comp_summary": 2})", "field comp_summary is 2"},
      {R"({"comp_summary": 1, "comp": 7, "contest": [{"label": "a"}]})", "is 7 (a text is needed)"},
      {R"({"comp_summary": 1, "comp": "a"})", "field \"contest\""},
      {R"({"comp_summary": 1, "comp": "a", "contest": [3]})", "field contest[0]"},
      {R"({"comp_summary": 1, "plan": 3})", "is 3 (a text is needed)"},
      {R"({"comp_summary": 1, "runs": "many"})", "is \"many\" (a number"},
      {R"({"comp_summary": 1, "ratios": {"comp_over_fp32": {"ratio": 1, "interval_95": [2]}}})", "two numbers"},
      {"{", "no JSON"}};
  for (const auto& [text, message] : bad) {
    CAPTURE(text);
    write_text(path, text);
    CHECK(has(unread(path), message));
  }
  write_text(path, R"({"comp_summary": 1, "hardware": {"name": "\u001b[2Jcpu"}, "ratios": 5})");
  const std::string text = comp::compare_text({path, path});
  CHECK(has(text, " [2Jcpu"));
  CHECK_FALSE(has(text, "\x1b"));
}

TEST_CASE("a plan file's listing says how operators run, who fixed them, and which plans come later") {
  const comp::plan_listing named = comp::read_listing(R"({"comp_plan": 1, "plan": "d1d1", "speedup": 1.5,
    "operators": [{"name": "a.b.exp", "kind": "exp", "precision": "fp64", "as_written": "fp64"},
                  {"name": "a.b.mm", "kind": "mm", "precision": "fp32", "as_written": "fp64"},
                  {"name": "norm", "kind": "norm", "precision": "fp64", "as_written": "fp64", "author": "autocast off"},
                  {"name": "sum", "kind": "sum", "precision": "fp32"}],
    "hardware": {"name": "CPU 9", "kind": "cpu", "compute_capability": 0, "isa": [], "threads": 2},
    "later": [{"batch": 7, "plan": "d1dd", "reason": "the end"}]})",
                                                      "p.json");
  CHECK(comp::listing_text(named) ==
        "4 operators: 2 fp32, 2 fp64\nfound on CPU 9, 1.50x as fast as FP64\n"
        "  a.b.exp  fp64      exp\n  a.b.mm   fp32      mm\n"
        "  norm     fp64      norm  (the model's author switched autocast off there)\n  sum      fp32      sum\n"
        "from batch 7 on 1 operators are low: the end\n");
  const comp::plan_listing letters = comp::read_listing(R"({"comp_plan": 1, "plan": "1b@autocast"})", "q.json");
  CHECK(comp::listing_text(letters) ==
        "2 operators: 1 fp32, 1 bf16, run by autocast\n  operator 0  fp32      \n  operator 1  bf16      \n");
  CHECK(comp::compare_text(letters, comp::read_listing(R"({"comp_plan": 1, "plan": "11@tuned"})", "r.json")) ==
        "the first is run by autocast, the second tuned\n(no module):\n  operator 1  bf16  fp32  \n");
  CHECK(message_of<comp::settings_error>([&] { (void)comp::compare_text(named, letters); }) ==
        "plans of 4 and 2 operators that are not the same (they are for different models): compare plans of one model");
}
