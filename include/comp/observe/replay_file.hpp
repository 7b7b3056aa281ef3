// SPDX-License-Identifier: Apache-2.0
// Reads a ledger as a Backend that replays the recorded runs (search/trainer/replay.hpp), so that strategies can be
// compared on a real search without training. Use:
//   comp::replay trainer = comp::replay_ledger("search.jsonl", graph);
// Without a graph the operators are a chain without kinds, which is enough to compare strategies but not policies.
#pragma once

#include <comp/files/file.hpp>
#include <comp/files/json_reader.hpp>
#include <comp/files/ledger_lines.hpp>
#include <comp/search/trainer/replay.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Replays a ledger. `graph` is the model's; without it there is a chain of operators named "0", "1", ..., as many as
/// the ledger's plans have.
/// Throws: `file_error` for a file that is no ledger, is corrupt, has no run, or is of another model.
inline replay replay_ledger(const std::string& path, std::optional<op_graph> graph = {}) {
  const auto content = detail::parse_ledger(detail::read_file(path, detail::ledger_limit), path);
  require<file_error>(!content.trials.empty(),
                      "ledger \"{}\" has no run (a search writes one line each): give another file", path);
  if (!graph) {
    std::vector<op_info> chain(content.trials.front().plan.size());
    for (std::size_t i = 0; i < chain.size(); ++i) chain[i].name = std::to_string(i);
    graph = op_graph{std::move(chain)};
  } else {
    const std::string model = fmt::format("model={:016x}", graph->fingerprint());
    for (const std::string& part : detail::signature_parts(content.signature)) {
      require<file_error>(!part.starts_with("model=") || part == model,
                          "ledger \"{}\" is of {} (this model is {}): give the ledger of this model", path,
                          in_quotes(part), model);
    }
  }
  for (const trial& t : content.trials) {
    require<file_error>(
        t.plan.size() == graph->size(),
        "run {} in ledger \"{}\" has a plan of {} operators (the model has {}): give the ledger of this model",
        t.number, path, t.plan.size(), graph->size());
  }
  return {std::move(*graph), content.trials, path};
}

}  // namespace comp
