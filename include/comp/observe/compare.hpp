// SPDX-License-Identifier: Apache-2.0
// Shows summaries of several searches side by side in a table, for a person who asks whether a change of model, data,
// machine or settings pays. It reads the files of write_summary(), or two plan files; listing_text() says what one plan
// file says.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/core/precision.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json_reader.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/report.hpp>
#include <comp/observe/summary.hpp>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// Returns operator `i` of the plan; of a file that names none, "operator 3" without a kind.
inline plan_listing::entry entry_of(const plan_listing& from, std::size_t i) {
  if (from.operators) return (*from.operators)[i];
  return {.name = fmt::format("operator {}", i), .kind = "", .chosen = (*from.letters)[i]};
}

/// Returns the precision of an operator that a plan lowers nowhere: FP64 in a model that has it.
inline precision highest_of(const plan_listing& from) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from.chosen(i) == precision::fp64) return precision::fp64;
  }
  return precision::fp32;
}

inline std::size_t widest_name(const plan_listing& from) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < from.size(); ++i) width = std::max(width, entry_of(from, i).name.size());
  return width;
}

/// Returns how the operators are run: by "plain" casts, "tuned", or "run by autocast".
inline std::string_view way_of(const plan_listing& from) {
  return from.runs_autocast() ? "run by autocast" : from.letters && from.letters->is_tuned() ? "tuned" : "plain";
}

}  // namespace detail

/// Returns how many operators have which precision, where the plan was found, and a line for each operator.
inline std::string listing_text(const plan_listing& from) {
  std::vector<std::pair<std::size_t, precision>> counts;
  for (const precision p : all_precisions) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < from.size(); ++i) count += from.chosen(i) == p;
    if (count > 0) counts.emplace_back(count, p);
  }
  std::ranges::sort(counts, [](const auto& a, const auto& b) {  // std's stable_sort is deprecated under clang
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::string text = fmt::format("{} operators:", from.size());
  for (const auto& [count, p] : counts) text += fmt::format(" {} {},", count, name(p));
  text.back() = '\n';
  if (detail::way_of(from) != "plain") text.insert(text.size() - 1, fmt::format(", {}", detail::way_of(from)));
  if (from.made_for && !from.made_for->name.empty()) {
    const char* reference = detail::highest_of(from) == precision::fp64 ? "FP64" : "FP32";
    const std::string faster = from.speedup ? fmt::format(", {:.2f}x as fast as {}", *from.speedup, reference) : "";
    text += fmt::format("found on {}{}\n", from.made_for->name, faster);
  }
  const std::size_t width = detail::widest_name(from);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const plan_listing::entry op = detail::entry_of(from, i);
    const std::string why = op.author == author_choice::none ? "" : fmt::format("  ({})", reason(op.author));
    text += fmt::format("  {:<{}}  {:<8}  {}{}\n", op.name, width, name(op.chosen), op.kind, why);
  }
  for (const later_plan& next : from.later) {
    const auto high = std::ranges::count(next.plan, detail::highest_of(from));
    text += fmt::format("from batch {} on {} operators are low{}{}\n", next.batch,
                        from.size() - static_cast<std::size_t>(high), next.reason.empty() ? "" : ": ", next.reason);
  }
  return text;
}

/// Returns the operators whose precisions differ, by modules, after a line if the plans are run in different ways;
/// nothing if nothing differs.
/// Throws: `settings_error` for plans of different models.
inline std::string compare_text(const plan_listing& a, const plan_listing& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) {
    const plan_listing::entry p = detail::entry_of(a, i), q = detail::entry_of(b, i);
    same = p.name == q.name && p.kind == q.kind;
  }
  require<settings_error>(same,
                          "plans of {} and {} operators that are not the same (they are for different models): compare "
                          "plans of one model",
                          a.size(), b.size());
  const std::string_view first = detail::way_of(a), second = detail::way_of(b);
  std::string text = first == second ? "" : fmt::format("the first is {}, the second {}\n", first, second);
  const std::size_t width = detail::widest_name(a);
  std::string module = ".";  // no module is called so
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a.chosen(i) == b.chosen(i)) continue;
    const plan_listing::entry op = detail::entry_of(a, i);
    const std::string of = op.name.substr(0, op.name.find('.') == std::string::npos ? 0 : op.name.rfind('.'));
    if (std::exchange(module, of) != of) text += fmt::format("{}:\n", of.empty() ? "(no module)" : of);
    text += fmt::format("  {:<{}}  {:<5} {:<5} {}\n", op.name, width, name(a.chosen(i)), name(b.chosen(i)), op.kind);
  }
  return text;
}

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
          {"plan", text("/plan_name")},
          {"batch in FP32", number("/fp32/seconds_per_batch/median", time_text)},
          {"batch, found plan", number("/found/seconds_per_batch/median", time_text)},
          {"against FP32 (95%)", [](reader s) { return with_bounds(s, "comp_over_fp32"); }},
          {"against the rules (95%)", [](reader s) { return with_bounds(s, "comp_over_rule_based"); }},
          {"loss against FP32's", loss_against},
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
