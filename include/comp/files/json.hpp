// SPDX-License-Identifier: Apache-2.0
// Converts trials, samples and hardware to JSON and back. Numbers come back bit for bit; those that JSON lacks are the
// texts "nan", "inf" and "-inf".
// Files come from outside, so type, range and size of each field are checked. An error names the file, the line, the
// field, the value found, the value needed and the remedy. An unknown field is refused, because it may be a known one
// that was misspelt by hand.
#pragma once

#include <cmath>
#include <comp/core/execution.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/later_plan.hpp>
#include <comp/core/trial.hpp>
#include <comp/files/json_reader.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

namespace detail {
inline constexpr std::int64_t most_counted = std::int64_t{1} << 53;  // larger whole numbers are no exact doubles
}

/// Returns a number as JSON; see above for those that JSON lacks.
inline json json_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

inline json json_of(const std::vector<double>& values) {
  json list = json::array();
  for (const double value : values) list.push_back(json_of(value));
  return list;
}

inline json json_of(const interval& bounds) { return json_of(std::vector<double>{bounds.low, bounds.high}); }

/// Returns a sample. Fields that are empty are left out, because a ledger has many samples and most lack them.
inline json json_of(const sample& s) {
  json to;
  to["loss"] = json_of(s.loss);
  to["seconds"] = json_of(s.seconds);
  to["batches"] = s.batches;
  to["peak_bytes"] = s.peak_bytes;
  if (s.not_finite > 0) to["not_finite"] = s.not_finite;
  to["status"] = name(s.status);
  if (!s.losses.empty()) to["losses"] = json_of(s.losses);
  if (!s.batch_seconds.empty()) to["batch_seconds"] = json_of(s.batch_seconds);
  if (!s.curve.empty()) to["curve"] = json_of(s.curve);
  for (const auto& curve : s.curves) to["curves"].push_back(json_of(curve));
  if (s.score) to["score"] = json_of(*s.score);
  if (!s.message.empty()) to["message"] = s.message;
  return to;
}

inline json json_of(const trial& t) {
  json to;
  to["number"] = t.number;
  to["stage"] = name(t.stage);
  to["plan"] = t.plan.str();
  if (t.purpose != purpose::judge) to["purpose"] = name(t.purpose);
  to["repeat"] = t.repeat;
  to["accepted"] = t.accepted;
  to["seconds"] = json_of(t.seconds);
  to["bounds"] = json_of(t.bounds);
  to["sample"] = json_of(t.sample);
  if (!t.label.empty()) to["label"] = t.label;
  return to;
}

inline json json_of(const hardware& h) {
  json to;
  to["name"] = h.name;
  to["kind"] = name(h.kind);
  to["compute_capability"] = h.compute_capability;
  to["isa"] = h.isa;
  to["threads"] = h.threads;
  return to;
}

/// Returns {"images": {"value": "channels_last", "speedup": 1.12, "speedup_bounds": [1.08, 1.15]}}, without speedup and
/// speedup_bounds for a choice that was not measured.
inline json json_of(const execution& how) {
  json to = json::object();
  for (const execution_choice& choice : how) {
    json& field = to[choice.name];
    field["value"] = choice.value;
    if (std::isnan(choice.gain.ratio)) continue;
    field["speedup"] = json_of(choice.gain.ratio);
    field["speedup_bounds"] = json_of(choice.gain.bounds);
  }
  return to;
}

/// Returns the plans that a training changes to.
inline json json_of(const std::vector<later_plan>& later) {
  json to = json::array();
  for (const later_plan& next : later) {
    to.push_back({{"batch", next.batch}, {"plan", next.plan.str()}, {"reason", next.reason}});
  }
  return to;
}

/// Reads [low, high], which may be infinite, as for a plan that was not timed. The comparison also refuses NaN.
inline interval interval_from(const json_reader& from) {
  const auto ends = from.numbers();
  if (ends.size() != 2 || !(ends[0] <= ends[1])) from.fail("two numbers, the lower one first");
  return {ends[0], ends[1]};
}

/// Reads a backend's choices. Their names are not checked, because only the backend that runs the plan knows which
/// exist.
inline execution execution_from(const json_reader& from) {
  execution how;
  from.each_field([&](const std::string& name, const json_reader& field) {
    field.only({"value", "speedup", "speedup_bounds"});
    execution_choice& choice = how.emplace_back(execution_choice{.name = name, .value = field["value"].text()});
    const auto speedup = field.find("speedup"), bounds = field.find("speedup_bounds");
    if (speedup.has_value() != bounds.has_value()) field.fail("both speedup and speedup_bounds, or neither");
    if (!speedup) return;
    choice.gain = {speedup->number(), interval_from(*bounds)};
    if (!(choice.gain.ratio > 0)) speedup->fail("a number above 0");
  });
  return how;
}

/// Reads a plan string. Its letters are checked here, since an error of parse_plan() would not name file and field.
inline plan plan_from(const json_reader& from) {
  const std::string_view text = from.text();
  if (letters_of(text).find_first_not_of(precision_letters) != std::string_view::npos) {
    from.fail(fmt::format("one letter of {} for each operator", precision_letters));
  }
  return parse_plan(text);
}

/// Reads the plans that a training changes to, whose batches have to rise.
inline std::vector<later_plan> later_from(const json_reader& from) {
  std::vector<later_plan> later;
  from.each([&](const json_reader& next) {
    next.only({"batch", "plan", "reason"});
    const std::int64_t before = later.empty() ? 0 : static_cast<std::int64_t>(later.back().batch);
    const auto reason = next.find("reason");
    later.push_back({static_cast<std::size_t>(next["batch"].integer(before + 1, detail::most_counted)),
                     plan_from(next["plan"]), reason ? reason->text() : ""});
  });
  return later;
}

/// Reads a sample. Counts and times are checked for their range, because the search adds them up.
inline sample sample_from(const json_reader& from) {
  from.only({"loss", "seconds", "batches", "not_finite", "peak_bytes", "status", "losses", "batch_seconds", "curve",
             "curves", "score", "message"});
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  sample s;
  s.loss = from["loss"].number();
  s.seconds = from["seconds"].seconds();
  s.batches = from["batches"].integer(0, most);
  if (const auto lost = from.find("not_finite")) s.not_finite = lost->integer(0, s.batches);
  s.peak_bytes = from["peak_bytes"].integer(0, most);
  s.status = from["status"].template one_of<status>(status::failed);
  if (const auto list = from.find("losses")) s.losses = list->numbers();
  if (const auto list = from.find("batch_seconds")) s.batch_seconds = list->numbers();
  if (const auto list = from.find("curve")) s.curve = list->numbers();
  if (const auto lists = from.find("curves")) {
    lists->each([&](const json_reader& list) { s.curves.push_back(list.numbers()); });
  }
  if (const auto score = from.find("score")) s.score = score->number();
  if (const auto message = from.find("message")) s.message = message->text();
  return s;
}

/// Sets the purpose of a run that comp 0.2 recorded: it counted runs that judge from 0, other ones from a million on.
inline void take_purpose_from_repeat(trial& t) {
  constexpr std::pair<std::size_t, purpose> first_of[] = {
      {4'000'000, purpose::compile}, {3'000'001, purpose::sensitivity}, {3'000'000, purpose::profile},
      {2'500'000, purpose::check},   {2'000'000, purpose::first_look},  {1'000'000, purpose::perturbed}};
  for (const auto& [first, what] : first_of) {
    if (t.repeat < first) continue;
    t.purpose = what;
    t.repeat -= first;
    return;
  }
}

/// Reads a trial, also one that comp 0.2 recorded, which called losses "epochs" and times "batches".
inline trial trial_from(const json_reader& from) {
  from.only({"number", "stage", "plan", "purpose", "repeat", "accepted", "seconds", "bounds", "sample", "label"});
  constexpr std::int64_t most = std::int64_t{1} << 53;  // JSON readers that use doubles know no larger whole number
  trial t;
  t.number = static_cast<std::size_t>(from["number"].integer(0, most));
  t.stage =
      from["stage"].template one_of<stage>(stage::training, {{"epochs", stage::losses}, {"batches", stage::times}});
  t.plan = plan_from(from["plan"]);
  t.repeat = static_cast<std::size_t>(from["repeat"].integer(0, most));
  if (const auto what = from.find("purpose")) {
    t.purpose = what->template one_of<purpose>(purpose::compile);
  } else {
    take_purpose_from_repeat(t);
  }
  t.accepted = from["accepted"].boolean();
  t.seconds = from["seconds"].seconds();
  t.bounds = interval_from(from["bounds"]);
  t.sample = sample_from(from["sample"]);
  if (const auto label = from.find("label")) t.label = label->text();
  return t;
}

inline hardware hardware_from(const json_reader& from) {
  from.only({"name", "kind", "compute_capability", "isa", "threads"});
  hardware h;
  h.name = from["name"].text();
  h.kind = from["kind"].template one_of<device_kind>(device_kind::cuda);
  h.compute_capability = static_cast<int>(from["compute_capability"].integer(0, 10'000));
  h.threads = static_cast<int>(from["threads"].integer(0, 1'000'000));
  from["isa"].each([&](const json_reader& feature) { h.isa.emplace_back(feature.text()); });
  return h;
}

}  // namespace comp
