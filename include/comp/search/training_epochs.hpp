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

}  // namespace comp::detail
