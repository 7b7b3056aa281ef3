// SPDX-License-Identifier: Apache-2.0
// Shows summaries of several searches side by side in a table, for a person who asks whether a change of model, data,
// machine or settings pays. It reads the files of write_summary(), or two plan files.
#pragma once

#include <algorithm>
#include <comp/core/precision.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json_reader.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/plan_words.hpp>
#include <comp/observe/report.hpp>
#include <comp/observe/summary.hpp>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// A summary that was read from a file. A field that is missing or null is shown as "-".
struct stored_summary {
  std::string label;  // the path that the user gave
  json_place place;
  json text;  // the summary, with its contestants "found" and "fp32" beside its own fields

  /// Returns a reader for the field at a JSON pointer.
  std::optional<json_reader> find(const std::string& at) const {
    const json::json_pointer pointer{at};
    if (!text.contains(pointer) || text.at(pointer).is_null()) return std::nullopt;
    return json_reader{text.at(pointer), place};
  }
  /// Returns a text without control characters, with which a file could move the cursor of the user's terminal.
  std::string text_at(const std::string& at) const {
    const auto value = find(at);
    std::string shown = value ? value->text() : "";
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; }, ' ');
    return shown.empty() ? "-" : shown;
  }
  std::string number_at(const std::string& at, auto&& written) const {
    const auto value = find(at);
    return value ? std::string{written(value->number())} : "-";
  }
};

/// `path` is a file, or a folder with a summary.json in it.
/// Throws: `file_error` if it is no summary.
inline stored_summary load_summary(const std::string& path) {
  std::error_code unknown;  // reading it says why
  const bool folder = std::filesystem::is_directory(path, unknown);
  const std::string file = folder ? (std::filesystem::path{path} / "summary.json").string() : path;
  stored_summary loaded{path, {file, 0, "give a summary.json that comp::write_summary or train wrote"}, {}};
  loaded.text = parse_json(read_file(file, std::size_t{1} << 30), loaded.place);
  const json_reader root{loaded.text, loaded.place};
  root["comp_summary"].integer(1, 1);
  const auto winner = loaded.find("/comp");
  if (!winner) return loaded;
  std::vector<std::string> labels;
  root["contest"].each([&](const json_reader& c) { labels.push_back(c["label"].text()); });
  const auto found = std::find(labels.begin(), labels.end(), winner->text());
  json both = json::object();
  if (!labels.empty()) both["fp32"] = loaded.text["contest"][0];
  if (found != labels.end()) both["found"] = loaded.text["contest"][static_cast<std::size_t>(found - labels.begin())];
  loaded.text.update(both);
  return loaded;
}

/// Returns how many operators have which low precision: "30 of 60 bf16, 2 fp16".
inline std::string lowered_text(const std::string& plan) {
  std::string text;
  for (const precision p : all_precisions) {
    const auto count = std::count(plan.begin(), plan.end(), letter(p));
    const bool reference =
        plan.find(letter(precision::fp64)) == std::string::npos ? p == precision::fp32 : p == precision::fp64;
    if (count > 0 && !reference)
      text += text.empty() ? fmt::format("{} of {} {}", count, plan.size(), name(p))
                           : fmt::format(", {} {}", count, name(p));
  }
  return text.empty() ? "all fp32" : text;
}

inline std::string with_bounds(const stored_summary& s, const std::string& ratio) {
  const auto bounds = s.find("/ratios/" + ratio + "/interval_95");
  const std::string within = bounds ? fmt::format(" ({})", bounds_text(read_json<interval>(*bounds))) : "";
  return s.number_at("/ratios/" + ratio + "/ratio", [&](double middle) { return ratio_text(middle) + within; });
}

inline std::string loss_against(const stored_summary& s) {
  const std::string at = "/found/loss_against_fp32/";
  const auto radius = s.find(at + "radius");
  const std::string within = radius ? fmt::format(" +- {:.2f}%", 100 * radius->number()) : "";
  return s.number_at(at + "difference", [&](double difference) { return percent_text(difference) + within; });
}

/// Makes the text of one row for a run.
using summary_cell = std::function<std::string(const stored_summary&)>;

/// Returns the rows of the table. A row that is "-" for every run is left out later.
inline std::vector<std::pair<const char*, summary_cell>> summary_rows() {
  using reader = const stored_summary&;
  const auto text = [](std::string at) { return [at](reader s) { return s.text_at(at); }; };
  const auto number = [](std::string at, auto written) {
    return [at, written](reader s) { return s.number_at(at, written); };
  };
  const auto plain = [](double n) { return fmt::format("{:.5g}", n); };
  const auto bytes = [](double n) { return n < 0x1p62 ? bytes_text(static_cast<std::int64_t>(n)) : "-"; };
  return {{"model", text("/of/model")},
          {"data", text("/of/data")},
          {"machine", text("/hardware/name")},
          {"date", text("/of/date")},
          {"comp", text("/comp_version")},
          {"operators lowered", [](reader s) { return lowered_text(s.text_at("/plan")); }},
          {"batch in FP32", number("/fp32/seconds_per_batch/median", time_text)},
          {"batch, found plan", number("/found/seconds_per_batch/median", time_text)},
          {"against FP32 (95%)", [](reader s) { return with_bounds(s, "comp_over_fp32"); }},
          {"against the rules (95%)", [](reader s) { return with_bounds(s, "comp_over_rule_based"); }},
          {"loss against FP32's", loss_against},
          {"epoch loss", number("/found/epoch_loss", plain)},
          {"score", number("/found/validation_score", plain)},
          {"peak memory", number("/found/peak_bytes", bytes)},
          {"cost of the search", number("/overhead/seconds", time_text)},
          {"of 100 epochs", number("/overhead/share_of_100_epochs", share_text)},
          {"runs", number("/runs", plain)},
          {"warnings", [](reader s) {
             std::size_t count = 0;
             if (const auto all = s.find("/warnings")) all->each([&](const json_reader&) { ++count; });
             return std::to_string(count);
           }}};
}

/// Returns sentences on what keeps two runs from being compared, and on how many operators their plans differ in.
inline std::string compare_notes(const stored_summary& a, const stored_summary& b) {
  const bool same_model = a.text_at("/fingerprint") == b.text_at("/fingerprint");
  std::string text;
  if (!same_model) text += fmt::format("{} is of another model than {}.\n", b.label, a.label);
  if (a.text_at("/hardware/name") != b.text_at("/hardware/name"))
    text += fmt::format("{} is of another machine than {}: their times say nothing of each other.\n", b.label, a.label);
  const std::string p = a.text_at("/plan"), q = b.text_at("/plan");
  if (!same_model || p.size() != q.size()) return text;
  std::size_t apart = 0;
  for (std::size_t i = 0; i < p.size(); ++i) apart += p[i] != q[i];
  return text + (apart == 0
                     ? fmt::format("{} has the plan of {}.\n", b.label, a.label)
                     : fmt::format("{} differs from {} in {} of {} operators.\n", b.label, a.label, apart, p.size()));
}

inline bool is_plan_file(const std::string& path) {
  std::error_code unknown;  // reading it says why
  if (std::filesystem::is_directory(path, unknown)) return false;
  const json text = json::parse(read_file(path, std::size_t{1} << 30), nullptr, false);
  return text.is_object() && text.contains("comp_plan");
}

}  // namespace detail

/// Returns a table with a column for each run, and below it the differences from the first run. `paths` are summaries,
/// or folders with a summary.json. If the first is a plan file, there is a second one: returns what differs.
/// Throws: `file_error`, naming the file and its field, for a file that is no summary; `settings_error` for more plan
/// files than two, or of different models.
inline std::string compare_text(const std::vector<std::string>& paths) {
  if (!paths.empty() && detail::is_plan_file(paths.front())) {
    require<settings_error>(paths.size() == 2,
                            "{} files, of which the first is a plan (two plans are compared): give two", paths.size());
    const std::string text = compare_text(load_listing(paths[0]), load_listing(paths[1]));
    return text.empty() ? "the same precisions\n" : text;
  }
  std::vector<detail::stored_summary> runs;
  for (const std::string& path : paths) runs.push_back(detail::load_summary(path));
  std::vector<std::vector<std::string>> rows{{""}};
  for (const auto& run : runs) rows.front().push_back(run.label);
  for (const auto& [name, value] : detail::summary_rows()) {
    std::vector<std::string> row{name};
    for (const auto& run : runs) row.push_back(value(run));
    const bool known = std::any_of(row.begin() + 1, row.end(), [](const std::string& cell) { return cell != "-"; });
    if (known) rows.push_back(std::move(row));
  }
  std::string text = detail::aligned(rows);
  for (std::size_t i = 1; i < runs.size(); ++i) text += detail::compare_notes(runs[0], runs[i]);
  return text;
}

}  // namespace comp
