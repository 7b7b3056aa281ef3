// SPDX-License-Identifier: Apache-2.0
// Shows summaries of several searches side by side in a table, for a person who asks whether a change of model, data,
// machine or settings pays. It reads the files of write_summary().
#pragma once

#include <algorithm>
#include <comp/core/precision.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json_reader.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/report.hpp>
#include <comp/observe/summary.hpp>
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

/// The names of the fields that lead to a value, from the outermost to the innermost.
using field_path = std::vector<std::string_view>;

/// A summary that was read from a file. A field that is missing or null is shown as "-".
class summary_reader {
 public:
  /// `path` is a file, or a folder with a summary.json in it.
  /// Throws: `file_error` where it is no summary.
  explicit summary_reader(const std::string& path)
      : place_{file_of(path), 0, "give a summary.json that comp::write_summary or train wrote"},
        label_{path},
        text_(parse_json(read_file(place_.file, std::size_t{1} << 30), place_)) {
    const json_reader root{text_, place_};
    root["comp_summary"].integer(1, 1);
    if (const auto winner = root.find("comp"); winner && !is_null("comp")) {
      root["contest"].each([&](const json_reader& c) {
        if (contestant_ == nullptr && c["label"].text() == winner->text()) contestant_ = &at(index_);
        if (fp32_ == nullptr && index_ == 0) fp32_ = &at(index_);
        ++index_;
      });
    }
  }

  summary_reader(summary_reader&&) = default;  // a copy would point into the text of the original

  const std::string& label() const { return label_; }

  /// Return a field of the summary (text, number), of the found plan's contestant (of_plan) or of FP32's (of_fp32).
  std::string text(const field_path& path) const {
    const auto value = field(text_, path);
    return value ? shown(value->text()) : "-";
  }
  std::optional<double> number(const field_path& path) const { return number_in(&text_, path); }
  std::optional<double> of_plan(const field_path& path) const { return number_in(contestant_, path); }
  std::optional<double> of_fp32(const field_path& path) const { return number_in(fp32_, path); }
  std::optional<interval> bounds(const field_path& path) const {
    const auto value = field(text_, path);
    return value ? std::optional{interval_from(*value)} : std::nullopt;
  }
  std::string plan() const { return text({"plan"}); }
  std::size_t warnings() const {
    std::size_t count = 0;
    if (const auto value = field(text_, {"warnings"})) value->each([&](const json_reader&) { ++count; });
    return count;
  }

 private:
  static std::string file_of(const std::string& path) {
    std::error_code unknown;  // reading it says why
    return std::filesystem::is_directory(path, unknown) ? (std::filesystem::path{path} / "summary.json").string()
                                                        : path;
  }
  const json& at(std::size_t i) const { return text_["contest"][i]; }
  bool is_null(const char* name) const { return text_[name].is_null(); }

  std::optional<json_reader> field(const json& from, const field_path& path) const {
    const json* now = &from;
    for (const std::string_view name : path) {
      if (!now->is_object()) return std::nullopt;
      const auto next = now->find(std::string{name});
      if (next == now->end() || next->is_null()) return std::nullopt;
      now = &*next;
    }
    return json_reader{*now, place_};
  }
  std::optional<double> number_in(const json* from, const field_path& path) const {
    if (from == nullptr) return std::nullopt;
    const auto value = field(*from, path);
    return value ? std::optional{value->number()} : std::nullopt;
  }
  // Replaces control characters, with which a file could otherwise move the cursor of the user's terminal.
  static std::string shown(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; }, ' ');
    return text.empty() ? "-" : text;
  }

  json_place place_;
  std::string label_;
  json text_;
  std::size_t index_ = 0;
  const json* contestant_ = nullptr;
  const json* fp32_ = nullptr;
};

/// Returns how many operators have which low precision: "30 of 60 bf16, 2 fp16".
inline std::string lowered_text(const std::string& plan) {
  std::string text;
  for (const precision p : all_precisions) {
    const auto count = std::count(plan.begin(), plan.end(), letter(p));
    if (count > 0 && p != precision::fp32)
      text += text.empty() ? fmt::format("{} of {} {}", count, plan.size(), name(p))
                           : fmt::format(", {} {}", count, name(p));
  }
  return text.empty() ? "all fp32" : text;
}

inline std::string with_bounds(const summary_reader& s, std::string_view ratio) {
  const auto middle = s.number({"ratios", ratio, "ratio"});
  if (!middle) return "-";
  const auto bounds = s.bounds({"ratios", ratio, "interval_95"});
  return bounds ? fmt::format("{} ({})", ratio_text(*middle), bounds_text(*bounds)) : ratio_text(*middle);
}

inline std::string loss_against(const summary_reader& s) {
  const auto difference = s.of_plan({"loss_against_fp32", "difference"});
  if (!difference) return "-";
  const auto radius = s.of_plan({"loss_against_fp32", "radius"});
  return percent_text(*difference) + (radius ? fmt::format(" +- {:.2f}%", 100 * *radius) : "");
}

/// Makes the text of one row for a run.
using summary_cell = std::function<std::string(const summary_reader&)>;

/// Returns the rows of the table. A row that is "-" for every run is left out later.
inline std::vector<std::pair<const char*, summary_cell>> summary_rows() {
  using reader = const summary_reader&;
  const auto text = [](field_path path) { return [path](reader s) { return s.text(path); }; };
  const auto time = [](std::optional<double> s) { return s ? time_text(*s) : "-"; };
  const auto number = [](std::optional<double> n) { return n ? fmt::format("{:.5g}", *n) : "-"; };
  const field_path median{"seconds_per_batch", "median"}, cost{"overhead", "seconds"};
  return {{"model", text({"of", "model"})},
          {"data", text({"of", "data"})},
          {"machine", text({"hardware", "name"})},
          {"date", text({"of", "date"})},
          {"comp", text({"comp_version"})},
          {"operators lowered", [](reader s) { return lowered_text(s.plan()); }},
          {"batch in FP32", [=](reader s) { return time(s.of_fp32(median)); }},
          {"batch, found plan", [=](reader s) { return time(s.of_plan(median)); }},
          {"against FP32 (95%)", [](reader s) { return with_bounds(s, "comp_over_fp32"); }},
          {"against the rules (95%)", [](reader s) { return with_bounds(s, "comp_over_rule_based"); }},
          {"loss against FP32's", loss_against},
          {"epoch loss", [=](reader s) { return number(s.of_plan({"epoch_loss"})); }},
          {"score", [=](reader s) { return number(s.of_plan({"validation_score"})); }},
          {"peak memory",
           [](reader s) {
             const auto bytes = s.of_plan({"peak_bytes"});
             return bytes && *bytes < 0x1p62 ? bytes_text(static_cast<std::int64_t>(*bytes)) : "-";  // fits 64 bits
           }},
          {"cost of the search", [=](reader s) { return time(s.number(cost)); }},
          {"of 100 epochs",
           [](reader s) {
             const auto share = s.number({"overhead", "share_of_100_epochs"});
             return share ? share_text(*share) : "-";
           }},
          {"runs", [=](reader s) { return number(s.number({"runs"})); }},
          {"warnings", [](reader s) { return fmt::format("{}", s.warnings()); }}};
}

/// Returns sentences on what keeps two runs from being compared, and on how many operators their plans differ in.
inline std::string compare_notes(const summary_reader& a, const summary_reader& b) {
  const bool same_model = a.text({"fingerprint"}) == b.text({"fingerprint"});
  std::string text;
  if (!same_model) text += fmt::format("{} is of another model than {}.\n", b.label(), a.label());
  if (a.text({"hardware", "name"}) != b.text({"hardware", "name"}))
    text +=
        fmt::format("{} is of another machine than {}: their times say nothing of each other.\n", b.label(), a.label());
  const std::string p = a.plan(), q = b.plan();
  if (!same_model || p.size() != q.size()) return text;
  std::size_t apart = 0;
  for (std::size_t i = 0; i < p.size(); ++i) apart += p[i] != q[i];
  return text + (apart == 0 ? fmt::format("{} has the plan of {}.\n", b.label(), a.label())
                            : fmt::format("{} differs from {} in {} of {} operators.\n", b.label(), a.label(), apart,
                                          p.size()));
}

}  // namespace detail

/// Returns a table with a column for each run, and below it the differences from the first run. `paths` are summaries,
/// or folders with a summary.json.
/// Throws: `file_error`, naming the file and its field, for a file that is no summary.
inline std::string compare_text(const std::vector<std::string>& paths) {
  std::vector<detail::summary_reader> runs;
  runs.reserve(paths.size());
  for (const std::string& path : paths) runs.emplace_back(path);
  std::vector<std::vector<std::string>> rows{{""}};
  for (const auto& run : runs) rows.front().push_back(run.label());
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
