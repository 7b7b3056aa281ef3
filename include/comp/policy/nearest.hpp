// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...?": the word at the least edit distance from what a user wrote.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace comp::policy {

/// Insertions, removals and replacements that lead from `a` to `b` (Levenshtein 1966).
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

/// Keeps the nearest of the words offered that is near enough for a typo: a third of the letters, at least two where
/// there are four (a swap is two edits), at least one.
class nearest_word {
 public:
  explicit nearest_word(std::string_view wanted)
      : wanted_{wanted}, least_{std::max<std::size_t>(wanted.size() / 3, wanted.size() < 4 ? 1 : 2) + 1} {}

  void offer(std::string_view offered) {
    if (offered == nearest_ ||
        std::max(offered.size(), wanted_.size()) >= std::min(offered.size(), wanted_.size()) + least_)
      return;
    const std::size_t distance = edit_distance(wanted_, offered);
    if (distance >= least_) return;
    least_ = distance;
    nearest_ = offered;
  }
  /// Empty: no word was near enough.
  const std::string& word() const { return nearest_; }
  /// What to do: `did you mean "..."?`, or `otherwise` where no word was near enough.
  std::string remedy(std::string_view otherwise) const {
    return nearest_.empty() ? std::string{otherwise} : fmt::format("did you mean \"{}\"?", nearest_);
  }

 private:
  std::string wanted_;
  std::size_t least_;
  std::string nearest_;
};

}  // namespace comp::policy
