// SPDX-License-Identifier: Apache-2.0
// What tells the training after a search from a search: the trainer knows of it, nothing of it is recalled, and the
// batches that the search trained are epochs of it.
#pragma once

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/sample.hpp>
#include <comp/search/observers.hpp>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace comp::detail {

/// While it lives the trainer knows that its epochs are no experiments.
template <Backend B>
class told_of_training {
 public:
  explicit told_of_training(B& trainer) : trainer_{trainer} { tell(true); }
  told_of_training(const told_of_training&) = delete;
  told_of_training& operator=(const told_of_training&) = delete;
  ~told_of_training() {
    try {
      tell(false);
    } catch (...) {  // what ended the training is what its caller hears of
    }
  }

 private:
  void tell([[maybe_unused]] bool on) {
    if constexpr (knows_post_training<B>) trainer_.post_training(on);
  }
  B& trainer_;
};

/// Observers of a training: it is no experiment, so nothing of it is recalled from a ledger.
template <Observer... Observers>
struct training_observers : observer_list<Observers...> {
  using observer_list<Observers...>::observer_list;
  std::optional<trial> recall(const trial&) { return std::nullopt; }
};

inline double mean_of(std::span<const double> x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

/// Batches `from` to `to` of a run.
inline sample part_of(const sample& run, std::size_t from, std::size_t to) {
  const auto count = static_cast<double>(to - from);
  const auto cut = [&](const std::vector<double>& all) {
    if (all.size() < to) return std::vector<double>{};
    return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(from),
                               all.begin() + static_cast<std::ptrdiff_t>(to));
  };
  sample part{.loss = run.loss, .losses = run.losses, .batches = static_cast<std::int64_t>(to - from)};
  part.peak_bytes = run.peak_bytes;
  part.curve = cut(run.curve);
  part.batch_seconds = cut(run.batch_seconds);
  part.seconds = run.seconds * count / std::max(static_cast<double>(run.batches), 1.0);
  if (!part.curve.empty()) part.loss = mean_of(part.curve);
  if (!part.batch_seconds.empty()) part.seconds = mean_of(part.batch_seconds) * count;
  for (std::size_t i = 0; i < run.curves.size(); ++i) {
    part.curves.push_back(cut(run.curves[i]));
    if (!part.curves[i].empty() && i < part.losses.size()) part.losses[i] = mean_of(part.curves[i]);
  }
  return part;
}

}  // namespace comp::detail
