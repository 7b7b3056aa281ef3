// SPDX-License-Identifier: Apache-2.0
// Checkpoints: the trainer's state and the progress of a post-training in one file, so that the training goes on in
// another process with the same losses. It is a safetensors file with the state's tensors; all else is JSON in its
// metadata, under "comp_training". Of the epochs so far it keeps losses, times and scores, but not those of each batch,
// which would let the file grow with the training.
#pragma once

#include <comp/core/error.hpp>
#include <comp/core/fnv1a.hpp>
#include <comp/core/stored_state.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/files/json.hpp>
#include <comp/files/safetensors.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace comp {

/// The contents of a checkpoint.
struct stored_training {
  std::string signature = {};  // the trainer's signature(): only a training with the same one may go on from it
  stored_state state = {};
  training_progress progress = {};
};

namespace detail {

inline constexpr std::string_view training_field = "comp_training", checksum_field = "comp_checksum";

inline std::size_t count_from(const json_reader& from) {
  return static_cast<std::size_t>(from.integer(0, most_counted));
}

inline json json_of(const training_result& r) {
  json to;
  json& epochs = to["epochs"] = json::array();
  for (sample s : r.epochs) {
    s.curve.clear();
    s.curves.clear();
    s.batch_seconds.clear();
    epochs.push_back(comp::json_of(s));
  }
  json& fallbacks = to["fallbacks"] = json::array();
  for (const training_fallback& f : r.fallbacks) {
    fallbacks.push_back(
        {{"epoch", f.epoch}, {"from", f.from.str()}, {"to", f.to.str()}, {"why", name(f.why)}, {"message", f.message}});
  }
  if (!r.later.empty()) to["later"] = comp::json_of(r.later);
  to["warnings"] = r.warnings;
  to["compared"] = r.compared;
  return to;
}
inline training_result result_from(const json_reader& from) {
  from.only({"epochs", "fallbacks", "later", "warnings", "compared"});
  training_result r;
  from["epochs"].each([&](const json_reader& epoch) { r.epochs.push_back(sample_from(epoch)); });
  from["fallbacks"].each([&](const json_reader& f) {
    f.only({"epoch", "from", "to", "why", "message"});
    r.fallbacks.push_back({count_from(f["epoch"]), plan_from(f["from"]), plan_from(f["to"]),
                           f["why"].template one_of<status>(status::failed), f["message"].text()});
  });
  if (const auto later = from.find("later")) r.later = later_from(*later);
  from["warnings"].each([&](const json_reader& text) { r.warnings.push_back(text.text()); });
  r.compared = count_from(from["compared"]);
  return r;
}

inline json json_of(const normal_levels& n) {
  json to{{"window", n.window}, {"leeway", comp::json_of(n.leeway)}, {"epochs", json::array()}};
  for (const auto& [low, high] : n.epochs) to["epochs"].push_back(comp::json_of(std::vector{low, high}));
  return to;
}
inline normal_levels levels_from(const json_reader& from) {
  from.only({"window", "leeway", "epochs"});
  normal_levels n;
  n.window = static_cast<std::size_t>(from["window"].integer(1, most_counted));
  n.leeway = from["leeway"].seconds();
  from["epochs"].each([&](const json_reader& epoch) {
    const interval ends = interval_from(epoch);
    n.epochs.emplace_back(ends.low, ends.high);
  });
  return n;
}

inline json json_of(const check_state& a) {
  return {{"began", a.began},
          {"next", a.next},
          {"acquittals", a.passed},
          {"settled", a.beginning_passed},
          {"known", comp::json_of(a.known)}};
}
/// Reads the state of the checks against FP32. The plan cannot have begun after the epochs that were trained.
inline check_state checks_from(const json_reader& from, std::size_t epochs) {
  from.only({"began", "next", "acquittals", "settled", "known"});
  check_state a{static_cast<std::size_t>(from["began"].integer(0, static_cast<std::int64_t>(epochs))),
                count_from(from["next"]), count_from(from["acquittals"])};
  if (const auto passed = from.find("settled")) a.beginning_passed = passed->boolean();  // absent in files of 0.2
  if (const auto known = from.find("known")) a.known = known->number();
  return a;
}

inline json json_of(const training_progress& p) {
  json to{{"so_far", json_of(p.so_far)},
          {"ladder", json::array()},
          {"rung", p.current},
          {"normal", json_of(p.normal)},
          {"audits", json_of(p.checks)},
          {"batches_per_epoch", p.batches_per_epoch},
          {"baseline_loss", comp::json_of(p.baseline_loss)},
          {"tolerance", comp::json_of(p.tolerance)},
          {"higher_is_better", p.higher_is_better}};
  if (p.floor > 0) to["floor"] = p.floor;
  for (const plan& each : p.plans) to["ladder"].push_back(each.str());
  if (p.begun) to["begun"] = comp::json_of(*p.begun);
  if (!p.later.empty()) to["later"] = comp::json_of(p.later);
  if (p.raise_tried) to["raise_tried"] = true;
  return to;
}
/// Reads the progress. The training relies on a `rung` within `ladder`, and on batches that are left of an epoch that
/// has begun.
inline training_progress progress_from(const json_reader& from) {
  from.only({"so_far", "ladder", "rung", "normal", "audits", "batches_per_epoch", "baseline_loss", "tolerance", "floor",
             "higher_is_better", "begun", "later", "raise_tried"});
  training_progress p;
  p.so_far = result_from(from["so_far"]);
  from["ladder"].each([&](const json_reader& each) { p.plans.push_back(plan_from(each)); });
  if (p.plans.empty()) from["ladder"].fail("a plan at least");
  p.current = static_cast<std::size_t>(from["rung"].integer(0, std::ssize(p.plans) - 1));
  p.normal = levels_from(from["normal"]);
  p.checks = checks_from(from["audits"], p.so_far.epochs.size());
  p.batches_per_epoch = count_from(from["batches_per_epoch"]);
  p.baseline_loss = from["baseline_loss"].number();
  p.tolerance = from["tolerance"].number();
  p.higher_is_better = from["higher_is_better"].boolean();
  if (const auto floor = from.find("floor")) p.floor = floor->number();
  if (const auto later = from.find("later")) p.later = later_from(*later);
  if (const auto tried = from.find("raise_tried")) p.raise_tried = tried->boolean();
  if (const auto begun = from.find("begun")) {
    p.begun = sample_from(*begun);
    const bool part = static_cast<std::size_t>(p.begun->batches) < p.batches_per_epoch;
    if (!part) (*begun)["batches"].fail("fewer batches than an epoch has");
  }
  return p;
}

/// Returns a checksum (FNV-1a) of a checkpoint's contents, because safetensors has none and a flipped bit in a weight
/// would go unnoticed. The tensors are added in the order of their names, in which a file gives them back.
inline std::string checksum_of(std::string_view text, const std::vector<named_tensor>& tensors) {
  fnv1a all;
  std::map<std::string_view, const named_tensor*> by_name;
  for (const named_tensor& t : tensors) by_name.emplace(t.name, &t);
  all.add_bytes(text.data(), text.size());
  for (const auto& [name, t] : by_name) {
    all.add_bytes(name.data(), name.size());
    all.add_bytes(t->values.data(), t->values.size() * sizeof(float));
  }
  return fmt::format("{:016x}", all.hash);
}

}  // namespace detail

/// Writes a checkpoint. A crash leaves the old file whole.
/// Throws: `file_error`, naming path and reason.
inline void write_training(const stored_training& t, const std::string& path) {
  json to{{"version", 1},
          {"signature", t.signature},
          {"numbers", json::object()},
          {"progress", detail::json_of(t.progress)}};
  for (const auto& [name, value] : t.state.numbers) to["numbers"][name] = json_of(value);
  const std::string text = json_text(to);
  write_safetensors(path, t.state.tensors,
                    {{std::string{detail::training_field}, text},
                     {std::string{detail::checksum_field}, detail::checksum_of(text, t.state.tensors)}});
}

/// Reads a checkpoint.
/// Throws: `file_error` if the file cannot be read, is damaged, or is no checkpoint.
inline stored_training read_training(const std::string& path) {
  tensor_file file = read_safetensors(path);
  const json_place place{path, 0, "go on from another file, or begin anew"};
  const auto text = [&](std::string_view field) {
    const auto field_at = file.metadata.find(std::string{field});
    require<file_error>(field_at != file.metadata.end(), "\"{}\" holds no training (its metadata have no \"{}\"): {}",
                        path, field, place.remedy);
    return field_at->second;
  };
  const std::string about = text(detail::training_field);
  require<file_error>(text(detail::checksum_field) == detail::checksum_of(about, file.tensors),
                      "\"{}\" is damaged (its checksum is not that of its contents): {}", path, place.remedy);
  const json document = parse_json(about, place);
  const json_reader from{document, place};
  from.only({"version", "signature", "numbers", "progress"});
  from["version"].integer(1, 1);
  stored_training t{.signature = from["signature"].text(),
                    .state = {.tensors = std::move(file.tensors)},
                    .progress = detail::progress_from(from["progress"])};
  const auto numbers = from["numbers"];
  if (!document["numbers"].is_object()) numbers.fail("an object of numbers");
  for (const auto& entry : document["numbers"].items()) t.state.numbers[entry.key()] = numbers[entry.key()].number();
  return t;
}

}  // namespace comp
