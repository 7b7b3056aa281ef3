// SPDX-License-Identifier: Apache-2.0
// Finds the known word that is most similar to the one that a user wrote, for messages that end with "did you mean
// ...?".
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace comp::policy {

/// Returns the least number of insertions, removals and replacements that turn `a` into `b` (Levenshtein 1966). Only
/// one row of the table is kept.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// Keeps the most similar of the words that are offered, if it can be a typing error: at most a third of the letters
/// may differ. Two edits are allowed from four letters on, because two letters that were swapped count as two; shorter
/// words are allowed one.
class nearest_word {
 public:
  explicit nearest_word(std::string_view text)
      : text_{text}, least_{std::max<std::size_t>(text.size() / 3, text.size() < 4 ? 1 : 2) + 1} {}

  void offer(std::string_view offered) {
    if (offered == nearest_ ||
        std::max(offered.size(), text_.size()) >= std::min(offered.size(), text_.size()) + least_)
      return;
    const std::size_t distance = edit_distance(text_, offered);
    if (distance >= least_) return;
    least_ = distance;
    nearest_ = offered;
  }
  /// Returns the word; empty if none was similar enough.
  const std::string& word() const { return nearest_; }
  /// Returns what a message tells the user to do: `did you mean "..."?`, or `otherwise` if no word was similar enough.
  std::string remedy(std::string_view otherwise) const {
    return nearest_.empty() ? std::string{otherwise} : fmt::format("did you mean \"{}\"?", nearest_);
  }

 private:
  std::string text_;
  std::size_t least_;
  std::string nearest_;
};

}  // namespace comp::policy
