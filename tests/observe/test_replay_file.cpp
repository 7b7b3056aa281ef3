// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/ledger.hpp>
#include <comp/observe/replay_file.hpp>
#include <comp/observe/t4.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

using comp::json;

using made_up::found;

namespace {

std::string written_ledger(const scratch& folder, const std::string& signature) {
  comp::ledger ledger{folder / "search.jsonl"};
  ledger.search_started({found.graph, found.hardware, signature, 0.01, 9});
  for (const comp::trial& t : found.trials) ledger.trial_done(t);
  return ledger.path();
}
std::string signature_of(const comp::op_graph& graph) {
  return fmt::format("model={:016x}; backend=made up", graph.fingerprint());
}

json one_result() {
  return json::parse(R"({"schema_version":"1.0.0","results":[{"configuration":{"a":"fp32","b":"bf16"},
    "times":{"runtimes":[2,4]},"invalidity":"correct","correctness":1,
    "measurements":[{"name":"time","value":3,"unit":"ms"},{"name":"loss","value":0.5,"unit":""}]}]})");
}
std::string refusal(const scratch& folder, const json& document, std::optional<comp::op_graph> graph = {}) {
  write_text(folder / "t4.json", document.dump());
  return message_of<comp::file_error>([&] { comp::replay_t4(folder / "t4.json", graph); });
}

}  // namespace

TEST_CASE_FIXTURE(with_folder, "a ledger is replayed as it was recorded") {
  const std::string path = written_ledger(folder, signature_of(found.graph));
  for (const bool with_graph : {true, false}) {
    CAPTURE(with_graph);
    comp::replay trainer = with_graph ? comp::replay_ledger(path, found.graph) : comp::replay_ledger(path);
    CHECK(trainer.graph().size() == 12);
    CHECK(trainer.plans().size() == 7);
    for (const comp::trial& t : found.trials) {
      if (comp::detail::is_timed(t.stage)) continue;
      trainer.set_precision(t.plan);
      const comp::sample got = trainer.run_epoch();
      CHECK(got.status == t.sample.status);
      CHECK(got.batch_seconds == t.sample.batch_seconds);
      if (t.sample.ok()) CHECK(got.loss == t.sample.loss);
    }
  }
}

TEST_CASE_FIXTURE(with_folder, "a ledger of another model, without runs, or that is none is refused") {
  const auto refused = [](const std::string& path, const comp::op_graph& graph) {
    return message_of<comp::file_error>([&] { comp::replay_ledger(path, graph); });
  };
  CHECK(has(refused(written_ledger(folder, signature_of(found.graph)), made_up::graph(24)),
            "): give the ledger of this model"));
  const scratch other;
  CHECK(has(refused(written_ledger(other, "no model named"), made_up::graph(24)),
            "has a plan of 12 operators (the model has 24)"));
  write_text(folder / "empty.jsonl", comp::detail::ledger_header(""));
  CHECK(has(refused(folder / "empty.jsonl", found.graph), "has no run"));
  write_text(folder / "none.txt", "hello\n");
  CHECK(has(refused(folder / "none.txt", found.graph), "is no ledger"));
  CHECK(has(refused(folder / "absent", found.graph), "cannot be opened"));
}

TEST_CASE_FIXTURE(with_folder, "a T4 file is replayed: times, losses, memory, and how each run ended") {
  comp::write_t4(found, folder / "t4.json");
  comp::replay trainer = comp::replay_t4(folder / "t4.json", found.graph);
  CHECK(trainer.plans().size() == 7);
  for (const comp::trial& t : found.trials) {
    if (comp::detail::is_timed(t.stage)) continue;
    CAPTURE(t.plan.str());
    trainer.set_precision(t.plan);
    const comp::sample got = trainer.run_epoch();
    CHECK(got.status == t.sample.status);
    REQUIRE(got.batch_seconds.size() == t.sample.batch_seconds.size());
    for (std::size_t i = 0; i < got.batch_seconds.size(); ++i) {
      CHECK(got.batch_seconds[i] == doctest::Approx(t.sample.batch_seconds[i]));
    }
    if (t.sample.ok()) CHECK(got.loss == t.sample.loss);
    CHECK(got.peak_bytes == t.sample.peak_bytes);
  }
  trainer.restore({});
  trainer.set_precision(found.plan);  // 40 batches of its epoch, then three that were timed
  for (int i = 0; i < 40; ++i) (void)trainer.run_batch();
  CHECK(trainer.run_batch().seconds == doctest::Approx(0.03));
  CHECK(trainer.run_batch().seconds == doctest::Approx(0.032));
}

TEST_CASE_FIXTURE(with_folder, "a T4 file without a graph has the operators of its configurations") {
  write_text(folder / "t4.json", one_result().dump());
  comp::replay trainer = comp::replay_t4(folder / "t4.json");
  REQUIRE(trainer.graph().size() == 2);
  CHECK(trainer.graph()[1].name == "b");
  trainer.set_precision(comp::parse_plan("1b"));
  CHECK(trainer.run_epoch().loss == 0.5);
  CHECK(trainer.run_batch().seconds == doctest::Approx(0.002));
}

TEST_CASE_FIXTURE(with_folder, "each fault in a T4 file is named, with its place") {
  json bad = one_result();
  json& result = bad["results"][0];
  const std::string at = "t4.json\": field results[0].";
  SUBCASE("a precision that is none") {
    result["configuration"]["b"] = "fp12";
    CHECK(has(refusal(folder, bad),
              at + "configuration.b is \"fp12\" (the name of a precision is needed): give a T4 file"));
  }
  SUBCASE("an operator that is missing, and one too many") {
    const auto graph = comp::detail::chain_named({"a", "c"});
    CHECK(has(refusal(folder, bad, graph), "an object with field \"c\""));
    CHECK(has(refusal(folder, bad, comp::detail::chain_named({"a"})), "the 1 operators of the model"));
  }
  SUBCASE("a lowered view") {
    std::vector<comp::op_info> ops{{.name = "a"}, {.name = "b", .choosable = false}};
    CHECK(has(refusal(folder, bad, comp::op_graph{ops}), "fp32, the operator has no other"));
  }
  SUBCASE("a configuration that is no object") {
    result["configuration"] = 5;
    CHECK(has(refusal(folder, bad), at + "configuration is 5 (an object is needed)"));
  }
  SUBCASE("a word of T4 that is none") {
    result["invalidity"] = "perhaps";
    CHECK(has(refusal(folder, bad), at + "invalidity is \"perhaps\""));
  }
  SUBCASE("negative times and other units") {
    result["times"]["runtimes"][0] = -1;
    CHECK(
        has(refusal(folder, bad), at + "times.runtimes is array of 2 (numbers of milliseconds, 0 or more is needed)"));
    result["measurements"][0]["unit"] = "h";
    CHECK(has(refusal(folder, bad), "unit is \"h\" (ms is needed)"));
  }
  SUBCASE("no results, another version, no JSON") {
    bad["results"] = json::array();
    CHECK(has(refusal(folder, bad), "at least one result"));
    bad["schema_version"] = "2.0";
    CHECK(has(refusal(folder, bad), "schema_version is \"2.0\""));
    write_text(folder / "t4.json", "{");
    CHECK(has(message_of<comp::file_error>([&] { comp::replay_t4(folder / "t4.json"); }), "no JSON"));
  }
}

TEST_CASE_FIXTURE(with_folder, "what T4 says of how a run ended becomes a status") {
  const std::pair<const char*, comp::status> words[] = {{"correctness", comp::status::ok},
                                                        {"timeout", comp::status::stopped_early},
                                                        {"runtime", comp::status::failed},
                                                        {"constraints", comp::status::failed}};
  for (const auto& each : words) {
    const char* word = each.first;
    CAPTURE(word);
    json document = one_result();
    document["results"][0]["invalidity"] = word;
    write_text(folder / "t4.json", document.dump());
    comp::replay trainer = comp::replay_t4(folder / "t4.json");
    trainer.set_precision(comp::parse_plan("1b"));
    CHECK(trainer.run_epoch().status == each.second);
  }
}

TEST_CASE_FIXTURE(with_folder, "a file with any byte changed is replayed or refused, never anything else") {
  comp::write_t4(found, folder / "t4.json");
  const std::string ledger = text_of(written_ledger(folder, signature_of(found.graph)));
  const std::string table = text_of(folder / "t4.json");
  std::mt19937 draw{5};
  int refused = 0, replayed = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = i % 2 == 0 ? ledger : table;
    for (auto changes = 1 + draw() % 3; changes > 0; --changes) text[draw() % text.size()] = char(draw() % 256);
    write_text(folder / "changed", text);
    try {
      comp::replay trainer = i % 2 == 0 ? comp::replay_ledger(folder / "changed") : comp::replay_t4(folder / "changed");
      (void)trainer.run_epoch();
      ++replayed;
    } catch (const comp::error& e) {
      CHECK(has(e.what(), "changed"));  // names the file
      ++refused;
    }
  }
  CHECK(refused > 100);
  CHECK(replayed > 0);
}
