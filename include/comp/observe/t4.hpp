// SPDX-License-Identifier: Apache-2.0
// Writes the runs of a search in T4, the results format of Kernel Tuner and of the auto-tuning methodology, so that
// their tools can read them.
// There is one result for each run of FP32 and of a plan that was judged by its losses, and one for each plan that was
// timed in turns. A configuration has the precision of each operator by the operator's name. The measurement "epochs"
// is how many epochs a run was, 0 for batches that were timed in turns; it is left out if the length of an epoch is
// unknown. Times are in milliseconds, as Kernel Tuner writes them.
// T4 has few words for how a run ended: "timeout" stands for a run that was cut, "correctness" for a loss that is not
// finite, diverged or rejected, and "runtime" for a failure or too little memory.
// Source: kernel_tuner/schema/T4/1.0.0/results-schema.json and kernel_tuner/file_utils.py in KernelTuner/kernel_tuner.
#pragma once

#include <cmath>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/ledger_lines.hpp>
#include <comp/observe/figures.hpp>
#include <comp/search/outcome.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace comp {

namespace detail {

/// Returns T4's word for why a result does not count. A plan whose loss was not accepted has wrong results in T4's
/// sense.
inline std::string_view t4_invalidity(const trial& t) {
  constexpr std::string_view words[] = {"correct", "correctness", "correctness", "runtime", "timeout", "runtime"};
  return t.sample.ok() && !t.accepted ? "correctness" : words[static_cast<std::size_t>(t.sample.status)];
}

inline void add_measurement(json& to, std::string_view name, double value, std::string_view unit) {
  if (!std::isfinite(value)) return;  // T4 only has finite numbers
  json m;
  m["name"] = name;
  m["value"] = value;
  m["unit"] = unit;
  to.push_back(std::move(m));
}

/// Returns the times of all batches of a result.
inline json t4_times(const trial_group& group) {
  json times;
  for (const char* none : {"compilation_time", "framework", "search_algorithm", "validation"}) times[none] = 0;
  json& runtimes = times["runtimes"] = json::array();
  const auto add = [&](double seconds) {
    if (std::isfinite(seconds)) runtimes.push_back(1e3 * seconds);
  };
  for (const trial* t : group.runs) {
    const sample& s = t->sample;
    for (const double seconds : s.batch_seconds) add(seconds);
    if (s.batch_seconds.empty() && s.batches > 0) add(s.seconds / static_cast<double>(s.batches));
  }
  return times;
}

/// Returns a result in T4's terms: a configuration is the precision of each operator, the objective is the time of a
/// batch.
inline json t4_result(const trial_group& group, const outcome& result, const std::string& written) {
  const trial& t = *group.shown;
  json entry;
  entry["timestamp"] = written;
  json& configuration = entry["configuration"] = json::object();
  for (std::size_t i = 0; i < t.plan.size() && i < result.graph.size(); ++i) {
    configuration[result.graph[i].name] = name(t.plan[i]);
  }
  entry["times"] = t4_times(group);
  entry["invalidity"] = t4_invalidity(t);
  entry["correctness"] = t.accepted ? 1 : 0;
  json& measurements = entry["measurements"] = json::array();
  add_measurement(measurements, "time", 1e3 * group.seconds(), "ms");
  add_measurement(measurements, "loss", t.sample.loss, "");
  if (t.sample.score) add_measurement(measurements, "validation_score", *t.sample.score, "");
  if (t.sample.peak_bytes > 0)
    add_measurement(measurements, "peak_memory", static_cast<double>(t.sample.peak_bytes), "B");
  if (is_timed(t.stage)) {
    add_measurement(measurements, "epochs", 0, "");
  } else if (result.batches_per_epoch > 0) {
    add_measurement(measurements, "epochs",
                    static_cast<double>(t.sample.batches) / static_cast<double>(result.batches_per_epoch), "");
  }
  entry["objectives"] = json::array({"time"});
  return entry;
}

}  // namespace detail

/// Returns the trials of a search as a T4 document.
inline json t4(const outcome& result) {
  json document;
  document["schema_version"] = "1.0.0";
  json& results = document["results"] = json::array();
  const std::string written = detail::utc_now();
  for (const auto& group : detail::grouped_trials(result)) {
    results.push_back(detail::t4_result(group, result, written));
  }
  return document;
}

/// Writes the trials of a search to a file. Throws: `file_error` if it cannot be written; an old file is then still
/// there.
inline void write_t4(const outcome& result, const std::string& path) {
  detail::write_file(path, json_text(t4(result)) + "\n");
}

}  // namespace comp
