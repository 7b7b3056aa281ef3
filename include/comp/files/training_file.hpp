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

inline json json_of(training_result r) {
  for (sample& s : r.epochs) {
    s.curve.clear();
    s.curves.clear();
    s.batch_seconds.clear();
  }
  return member_writer::written(r);
}

/// Reads the progress. The training relies on a `rung` within `ladder`, on a plan that began in an epoch that was
/// trained, and on batches that are left of an epoch that has begun.
inline void read_json(const json_reader& from, training_progress& p) {
  member_reader::read(from, p);
  if (p.plans.empty()) from["ladder"].fail("a plan at least");
  from["rung"].integer(0, std::ssize(p.plans) - 1);
  from["audits"]["began"].integer(0, std::ssize(p.so_far.epochs));
  if (p.begun && static_cast<std::size_t>(p.begun->batches) >= p.batches_per_epoch) {
    from["begun"]["batches"].fail("fewer batches than an epoch has");
  }
}

namespace detail {

inline constexpr std::string_view training_field = "comp_training", checksum_field = "comp_checksum";

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
  json to{{"version", 1}, {"signature", t.signature}, {"numbers", json::object()}, {"progress", json_of(t.progress)}};
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
                    .progress = read_json<training_progress>(from["progress"])};
  from["numbers"].each_field(
      [&](const std::string& name, const json_reader& value) { t.state.numbers[name] = value.number(); });
  return t;
}

}  // namespace comp
