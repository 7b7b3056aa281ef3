// SPDX-License-Identifier: Apache-2.0
// Windows of SQuAD as the native trainer's BERT reads them.
#pragma once

#include <comp_native/data_source.hpp>
#include <cstdint>
#include <examples/data/squad_windows.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace train {

/// Examples are (2,length): tokens, and their segments, which are -1 for padding. Labels are the answer's first and
/// last token.
class span_data {
 public:
  using windows = std::vector<data_sets::squad_window>;

  span_data(std::shared_ptr<const windows> all, std::int64_t length, std::int32_t pad)
      : all_{std::move(all)}, length_{length}, pad_{pad} {}

  std::size_t size() const { return all_->size(); }
  comp::native::example_layout layout() const {
    return {.input = comp::native::input_kind::tokens, .input_shape = {2, length_}, .target_shape = {2}};
  }
  void write(std::size_t i, const comp::native::example_spans& to) const {
    const data_sets::squad_window& window = (*all_)[i];
    const auto segments = to.tokens.begin() + length_;
    std::fill(std::copy(window.tokens.begin(), window.tokens.end(), to.tokens.begin()), segments, pad_);
    std::fill(std::copy(window.segments.begin(), window.segments.end(), segments), to.tokens.end(), -1);
    to.labels[0] = static_cast<std::int32_t>(window.first);
    to.labels[1] = static_cast<std::int32_t>(window.last);
  }
  std::string signature() const {
    std::uint64_t hash = 0;
    for (const data_sets::squad_window& window : *all_) {
      hash = hash * 31 + comp::native::hash_of<std::int32_t>(window.tokens) +
             static_cast<std::uint64_t>(window.first * length_ + window.last);
    }
    return fmt::format("{} windows of {} hash {:016x}", all_->size(), length_, hash);
  }

 private:
  std::shared_ptr<const windows> all_;
  std::int64_t length_;
  std::int32_t pad_;
};

}  // namespace train
