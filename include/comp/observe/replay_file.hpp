// SPDX-License-Identifier: Apache-2.0
// Reads a ledger or a T4 file as a Backend that replays the recorded runs (search/trainer/replay.hpp), so that
// strategies can be compared on a real search without training. Use:
//   comp::replay trainer = comp::replay_ledger("search.jsonl", graph);
// Without a graph the operators are a chain without kinds, which is enough to compare strategies but not policies.
// A T4 file has less than a ledger: mean losses instead of curves. A run whose loss was rejected comes back as one that
// ended well, with its loss, so that the new search judges it again. Files come from outside, so what does not fit is
// refused with its place and a remedy.
// Source: results-schema.json 1.0.0 of T4, as observe/t4.hpp writes it
#pragma once

#include <algorithm>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/ledger_lines.hpp>
#include <comp/search/trainer/replay.hpp>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// Reads the precision of each operator by its name.
/// Throws: `file_error` if one is missing or is no precision that the operator can have.
inline plan t4_plan(const json_reader& configuration, const op_graph& graph) {
  plan p{graph.size()};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const json_reader said = configuration[graph[i].name];
    const auto known = precision_of(std::string_view{said.text()});
    if (!known || (*known != precision::fp32 && !graph[i].choosable)) {
      said.fail(graph[i].choosable ? "the name of a precision" : "fp32, the operator has no other");
    }
    p[i] = *known;
  }
  return p;
}

/// Turns T4's words for how a run ended into a status (t4_invalidity in observe/t4.hpp does the reverse).
inline status t4_status(const json_reader& invalidity, bool has_loss) {
  const std::string& word = invalidity.text();
  if (word == "correct") return status::ok;
  if (word == "correctness") return has_loss ? status::ok : status::not_finite;
  if (word == "timeout") return status::stopped_early;
  if (word != "runtime" && word != "compile" && word != "constraints") {
    invalidity.fail("one of correct, correctness, timeout, runtime, compile, constraints");
  }
  return status::failed;
}

/// One result of a T4 file.
struct t4_run {
  trial record = {};
  bool by_batches = false;  // true: batches that were timed in turns; false: a run that was judged by its losses
};

inline t4_run t4_result_from(const json_reader& result, const op_graph& graph) {
  t4_run run;
  run.record.plan = t4_plan(result["configuration"], graph);
  sample& s = run.record.sample;
  std::optional<double> time;
  result["measurements"].each([&](const json_reader& m) {
    const std::string& name = m["name"].text();
    if (name == "time") {
      if (m["unit"].text() != "ms") m["unit"].fail("ms");
      time = m["value"].seconds() / 1e3;
    } else if (name == "loss") {
      s.loss = m["value"].number();
    } else if (name == "validation_score") {
      s.score = m["value"].number();
    } else if (name == "peak_memory") {
      s.peak_bytes = static_cast<std::int64_t>(std::min(m["value"].seconds(), 0x1p62));
    } else if (name == "epochs") {
      run.by_batches = m["value"].number() == 0;
    }
  });
  for (const double ms : result["times"]["runtimes"].numbers()) s.batch_seconds.push_back(ms / 1e3);
  if (!std::all_of(s.batch_seconds.begin(), s.batch_seconds.end(), [](double t) { return t >= 0; })) {
    result["times"]["runtimes"].fail("numbers of milliseconds, 0 or more");
  }
  s.status = t4_status(result["invalidity"], std::isfinite(s.loss));
  if (s.status == status::failed) s.message = fmt::format("recorded as \"{}\"", result["invalidity"].text());
  s.batches = static_cast<std::int64_t>(s.batch_seconds.size());
  s.seconds = std::accumulate(s.batch_seconds.begin(), s.batch_seconds.end(), 0.0);
  if (s.batches == 0 && time) s.batches = 1, s.seconds = *time;
  run.record.accepted = result["invalidity"].text() == "correct";
  run.record.stage = run.by_batches ? stage::times : stage::losses;
  return run;
}

/// Appends each batch of a result as a run of its own, as it was in the search; T4 has one result for all of them.
inline void add_batches(std::vector<trial>& to, const trial& all) {
  for (std::size_t i = 0; i < std::max<std::size_t>(all.sample.batch_seconds.size(), 1); ++i) {
    trial one = all;
    one.repeat = i;
    if (i < all.sample.batch_seconds.size()) {
      one.sample.batch_seconds.clear();
      one.sample.seconds = all.sample.batch_seconds[i];
      one.sample.batches = 1;
    }
    to.push_back(std::move(one));
  }
}

inline op_graph chain_named(std::vector<std::string> names) {
  std::vector<op_info> operators(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) operators[i].name = std::move(names[i]);
  return {std::move(operators)};
}

}  // namespace detail

/// Replays a ledger. `graph` is the model's; without it there is a chain of operators named "0", "1", ..., as many as
/// the ledger's plans have.
/// Throws: `file_error` for a file that is no ledger, is corrupt, has no run, or is of another model.
inline replay replay_ledger(const std::string& path, std::optional<op_graph> graph = {}) {
  const auto content = detail::parse_ledger(detail::read_file(path, detail::ledger_limit), path);
  require<file_error>(!content.trials.empty(),
                      "ledger \"{}\" has no run (a search writes one line each): give another file", path);
  if (!graph) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < content.trials.front().plan.size(); ++i) names.push_back(std::to_string(i));
    graph = detail::chain_named(std::move(names));
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

/// Replays a T4 file. `graph` is the model's; without it there is a chain of the operators that the first configuration
/// names, in alphabetical order, since JSON objects have no other.
/// Throws: `file_error` for a file that is no T4, has no result, or whose configurations are not of this model.
inline replay replay_t4(const std::string& path, std::optional<op_graph> graph = {}) {
  const json_place place{path, 0, "give a T4 file that comp::write_t4 wrote of a search on this model"};
  const json document = parse_json(detail::read_file(path, detail::ledger_limit), place);
  const json_reader all{document, place};
  if (all["schema_version"].text() != "1.0.0") all["schema_version"].fail("\"1.0.0\"");
  std::vector<trial> runs;
  std::size_t at = 0;
  all["results"].each([&](const json_reader& result) {
    (void)result["configuration"].find("");  // throws if the configuration is no object
    const json& configuration = document["results"][at++]["configuration"];
    if (!graph) {
      std::vector<std::string> names;
      for (auto each = configuration.begin(); each != configuration.end(); ++each) names.push_back(each.key());
      graph = detail::chain_named(std::move(names));
    }
    if (configuration.size() != graph->size()) {
      result["configuration"].fail(fmt::format("the {} operators of the model", graph->size()));
    }
    const detail::t4_run run = detail::t4_result_from(result, *graph);
    run.by_batches ? detail::add_batches(runs, run.record) : runs.push_back(run.record);
  });
  if (runs.empty()) all["results"].fail("at least one result");
  return {std::move(*graph), runs, path};
}

}  // namespace comp
