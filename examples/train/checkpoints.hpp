// SPDX-License-Identifier: Apache-2.0
// Keeps the last two checkpoints of a training in --out. One is written after the search and after each epoch, and is
// whole or not there at all. So a training can go on whenever it ended, and a damaged file costs one epoch.
#pragma once

#include <algorithm>
#include <comp/comp.hpp>
#include <comp/files/training_file.hpp>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace train {

/// Returns: the parts of a signature that the other one lacks. A signature is, for instance, "this | that | seed 1".
inline std::string parts_without(std::string_view signature, std::string_view other) {
  constexpr std::string_view bar = " | ";
  const std::string all = fmt::format("{}{}{}", bar, other, bar);
  std::string found;
  for (std::size_t at = 0, end = 0; at <= signature.size(); at = end + bar.size()) {
    end = std::min(signature.find(bar, at), signature.size());
    const std::string_view part = signature.substr(at, end - at);
    if (all.find(fmt::format("{}{}{}", bar, part, bar)) != std::string::npos) continue;
    found += fmt::format("{}{}", found.empty() ? "" : ", ", part);
  }
  return found.empty() ? "nothing more" : found;
}

/// An observer that writes the checkpoints. It does nothing for a Trainer that cannot store its state.
template <class Trainer>
class checkpoints {
 public:
  static constexpr bool possible = comp::StoresState<Trainer>;

  checkpoints(const std::filesystem::path& folder, Trainer& trainer)
      : last_{folder / "checkpoint.safetensors"},
        before_{folder / "checkpoint.previous.safetensors"},
        trainer_{trainer} {}

  const std::filesystem::path& last() const { return last_; }
  /// Returns: how many epochs the checkpoint has trained; nothing before the search has ended.
  std::optional<std::size_t> epochs() const { return epochs_; }

  /// Removes files that killed processes left half written. Requires: no other process writes to the folder.
  void clear_up() const {
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator{last_.parent_path()}) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(last_.filename().string() + ".") && name.ends_with(".tmp")) {
        std::filesystem::remove(entry.path(), gone);
      }
    }
  }
  /// Renames the checkpoints of an older training, which a new one would overwrite.
  void set_aside() const {
    for (const auto& path : {last_, before_}) {
      if (std::filesystem::exists(path)) std::filesystem::rename(path, path.string() + ".old");
    }
  }

  /// Restores the trainer from the latest checkpoint that is whole.
  /// Returns: the training's progress; nothing if there is no checkpoint.
  /// Throws: `file_error` if no checkpoint is whole, or one belongs to another training.
  std::optional<comp::training_progress> load() {
    if constexpr (possible) {
      std::string damaged;
      for (const auto& path : {last_, before_}) {
        if (!std::filesystem::exists(path)) continue;
        try {
          return taken(comp::read_training(path.string()), path);
        } catch (const another_training&) {
          throw;
        } catch (const comp::file_error& e) {
          fmt::print(stderr, "Note: {}\n", damaged = e.what());
          last_is_whole_ = false;
        }
      }
      comp::require<comp::file_error>(damaged.empty(), "{}", damaged);
    }
    return std::nullopt;
  }

  void training_progressed(const comp::training_progress& now) {
    if constexpr (possible) {
      if (std::exchange(epochs_, now.so_far.epochs.size()) == now.so_far.epochs.size()) return;  // just loaded
      try {
        if (last_is_whole_ && std::filesystem::exists(last_)) std::filesystem::rename(last_, before_);
        comp::write_training({trainer_.signature(), trainer_.store_state(), now}, last_.string());
        last_is_whole_ = true;
      } catch (const std::exception& e) {  // a training goes on without its checkpoint
        fmt::print(stderr, "Note: no checkpoint after {} epochs: {}\n", now.so_far.epochs.size(), e.what());
      }
    }
  }

 private:
  struct another_training : comp::file_error {
    using file_error::file_error;
  };

  std::optional<comp::training_progress> taken(comp::stored_training from, const std::filesystem::path& path) {
    const std::string ours = trainer_.signature();
    comp::require<another_training>(
        from.signature == ours,
        "\"{}\" belongs to another training: it has {}, this one has {} (it would not go on as it began): give another "
        "--out, or leave out --resume",
        path.string(), parts_without(from.signature, ours), parts_without(ours, from.signature));
    trainer_.load_state(from.state);
    epochs_ = from.progress.so_far.epochs.size();
    return std::move(from.progress);
  }

  std::filesystem::path last_, before_;
  Trainer& trainer_;
  std::optional<std::size_t> epochs_;
  bool last_is_whole_ = true;  // False: keep the previous checkpoint, and overwrite the damaged one
};

}  // namespace train
