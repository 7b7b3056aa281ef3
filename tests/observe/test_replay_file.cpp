// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/ledger.hpp>
#include <comp/observe/replay_file.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

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
