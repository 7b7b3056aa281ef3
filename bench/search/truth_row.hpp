// SPDX-License-Identifier: Apache-2.0
// A row of the table of the truth lab: what is measured, the goal, and whether it is met.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace bench {

struct row {
  std::string what = {};
  std::string measured = {};
  std::string goal = {};
  bool met = false;
};

/// Figures of many runs.
class figures {
 public:
  void add(double value) { values_.push_back(value); }
  double mean() const {
    return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(values_.size());
  }
  double most() const { return *std::max_element(values_.begin(), values_.end()); }
  double least() const { return *std::min_element(values_.begin(), values_.end()); }
  std::size_t above(double limit) const {
    return count([limit](double v) { return v > limit; });
  }
  double last() const { return values_.back(); }
  const std::vector<double>& all() const { return values_; }
  std::size_t size() const { return values_.size(); }

 private:
  std::size_t count(auto which) const {
    return static_cast<std::size_t>(std::count_if(values_.begin(), values_.end(), which));
  }
  std::vector<double> values_;
};

/// How many runs a row has: all, or a tenth.
struct scale {
  bool quick = false;
  std::size_t operator()(std::size_t runs) const { return quick ? std::max<std::size_t>(runs / 10, 2) : runs; }
  /// A goal of at most `count` in `all`, for the runs that there are; at least 1 if the goal allows any.
  std::size_t at_most(std::size_t count, std::size_t all) const {
    return count == 0 ? 0 : std::max<std::size_t>(count * (*this)(all) / all, 1);
  }
};

struct named_row {
  std::string name = {};  // for --only
  std::function<std::vector<row>(const scale&)> make = {};
};

}  // namespace bench
