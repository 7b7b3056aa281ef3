// SPDX-License-Identifier: Apache-2.0
// What tells the training after a search from a search: the trainer knows of it, nothing of it is recalled, and the
// batches that the search trained are epochs of it.
#pragma once

#include <comp/search/any_trainer.hpp>
#include <comp/search/observers.hpp>
#include <optional>

namespace comp::detail {

/// While it lives the trainer knows that its epochs are no experiments.
class post_training_notice {
 public:
  explicit post_training_notice(any_trainer& trainer) : trainer_{trainer} { trainer_.post_training(true); }
  post_training_notice(const post_training_notice&) = delete;
  post_training_notice& operator=(const post_training_notice&) = delete;
  ~post_training_notice() {
    try {
      trainer_.post_training(false);
    } catch (...) {  // what ended the training is what its caller hears of
    }
  }

 private:
  any_trainer& trainer_;
};

/// Observers of a training: it is no experiment, so nothing of it is recalled from a ledger.
template <Observer... Observers>
struct training_observers : observer_list<Observers...> {
  using observer_list<Observers...>::observer_list;
  std::optional<trial> recall(const trial&) final { return std::nullopt; }
};

}  // namespace comp::detail
