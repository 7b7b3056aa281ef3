// SPDX-License-Identifier: Apache-2.0
// Names of operators that C++, Python and TorchScript have in common, so that a plan file of one is taken by the
// others. The languages call different operators for one layer. C++'s torch::nn::Linear calls t and addmm, or t, matmul
// and add_ for more than two dimensions; Python's calls linear; a traced module calls _convolution.
// The common name follows from the name and kind of the operator and of the one before it. A plan file has both. A
// product belongs to the linear layer only directly after the transposition of that layer's weight: the product of
// attention scores, which Python names by the same module, is another call.
// Layers whose arithmetic differs between the languages keep different names.
#pragma once

#include <algorithm>
#include <comp/core/product.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace comp::libtorch::detail {

/// Returns: the name of the first of several calls: "head.linear" for "head.linear_3".
inline std::string first_of_its_name(const std::string& name) {
  const auto digits = name.find_last_not_of("0123456789") + 1;
  const bool numbered = digits > 1 && digits < name.size() && name[digits - 1] == '_';
  return numbered ? name.substr(0, digits - 1) : name;
}

/// The scope and the operation in a name: "head." and "linear" of "head.linear_3".
struct name_parts {
  std::string scope, word;
  explicit name_parts(const std::string& name) {
    const std::string first = first_of_its_name(name);
    const std::size_t at = first.rfind('.') + 1;  // 0 if there is no scope
    scope = first.substr(0, at);
    word = first.substr(at);
  }
};

/// A product that C++ calls for a linear layer.
inline bool is_linear_product(std::string_view word) { return word == "addmm" || word == "matmul" || word == "mm"; }

/// Gives the operators of one forward, or of one plan file, their common names in the order of their calls.
class layer_names {
 public:
  /// Returns: the common name of the next operator, whose own name and kind are given.
  std::string next(const std::string& name, std::string_view kind) {
    if (const std::string_view end = suffix(gradient_named(name)); !end.empty()) {  // its layer came before
      const auto layer = linear_.find(name.substr(0, name.size() - end.size()));
      if (layer != linear_.end()) return layer->second + std::string{end};
    }
    name_parts parts{name};
    const std::string called = parts.word;
    const bool behind = parts.scope == scope_;
    const step before = behind ? std::exchange(before_, step::other) : step::other;
    before_ = kind == "aten::t" ? step::transposed : step::other;
    if (before == step::transposed && is_linear_product(parts.word)) {
      before_ = parts.word == "addmm" ? step::other : step::multiplied;
      parts.word = "linear";
    } else if (before == step::multiplied && kind.starts_with("aten::add_")) {
      parts.word = "bias";
    } else {
      parts.word = common_word(parts.word);
    }
    scope_ = parts.scope;
    std::string common = parts.scope + parts.word;
    const std::uint32_t times = ++times_[common];
    if (times > 1) common += "_" + std::to_string(times);
    if (called == "linear" || is_linear_product(called)) linear_.insert_or_assign(name, common);
    return common;
  }

 private:
  /// Which part of a linear layer of `scope_` the operator before this one was.
  enum class step : std::uint8_t { other, transposed, multiplied };

  static std::string common_word(std::string_view word) {
    static constexpr std::pair<std::string_view, std::string_view> same[] = {{"conv1d", "conv"},
                                                                             {"conv2d", "conv"},
                                                                             {"conv3d", "conv"},
                                                                             {"_convolution", "conv"},
                                                                             {"convolution", "conv"},
                                                                             {"native_batch_norm", "batch_norm"},
                                                                             {"native_layer_norm", "layer_norm"}};
    const auto* const at = std::ranges::find(same, word, &std::pair<std::string_view, std::string_view>::first);
    return std::string{at == std::end(same) ? word : at->second};
  }

  std::string scope_;
  step before_ = step::other;
  std::unordered_map<std::string, std::uint32_t> times_;
  std::unordered_map<std::string, std::string> linear_;  // the common names of layers, by their own
};

}  // namespace comp::libtorch::detail
