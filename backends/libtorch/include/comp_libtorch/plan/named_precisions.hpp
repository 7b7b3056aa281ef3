// SPDX-License-Identifier: Apache-2.0
// The precisions that a plan or a plan file gives to operators, by their common names (layer_names.hpp). For forwards
// that differ from the recorded one.
#pragma once

#include <comp/core/precision.hpp>
#include <comp/core/product.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace comp::libtorch::detail {

class named_precisions {
 public:
  /// Adds an operator. `choosable`: it counts for what operators of its kind usually have. A layer's products have the
  /// layer's precision unless they are added behind it.
  void add(const std::string& layer, const std::string& kind, product_precisions chosen, bool choosable = true) {
    if (const product of = gradient_named(layer); of != product::all) {
      const auto whole = by_name_.find(layer.substr(0, layer.size() - suffix(of).size()));
      if (whole != by_name_.end()) return static_cast<void>(whole->second.of(of) = chosen.forward);
    }
    by_name_.insert_or_assign(layer, chosen);
    if (!choosable) return;
    for (uses* of : {&kinds_[{kind, chosen.as_written}], &words_[{name_parts{layer}.word, chosen.as_written}]}) {
      of->add(chosen.forward);
    }
  }
  /// Returns: the precisions of the operator of that name, else of the first of its calls; nothing if there is none.
  /// An addmm is looked for as a linear layer's, too, because the caller does not always know what was called before
  /// it.
  std::optional<product_precisions> find(const std::string& layer) const {
    const name_parts parts{layer};
    const std::string linear = parts.word == "addmm" ? parts.scope + "linear" : layer;
    for (const std::string& asked : {layer, first_of_its_name(layer), linear}) {
      if (const auto at = by_name_.find(asked); at != by_name_.end()) return at->second;
    }
    return {};
  }
  /// Returns: what most operators of a kind have that are written in the same precision, else those of the same
  /// operation in another language; `as_written` if there are none.
  product_precisions usual(const std::string& layer, const std::string& kind, precision as_written) const {
    if (const auto at = kinds_.find({kind, as_written}); at != kinds_.end()) return {at->second.usual, as_written};
    const auto at = words_.find({name_parts{layer}.word, as_written});
    return {at == words_.end() ? as_written : at->second.usual, as_written};
  }

 private:
  struct uses {
    std::map<precision, std::size_t> of = {};
    precision usual = precision::fp32;
    void add(precision chosen) {
      if (of.empty()) usual = chosen;
      ++of[chosen];
      if (of[chosen] > of[usual]) usual = chosen;
    }
  };
  std::map<std::string, product_precisions> by_name_;  // by common names (layer_names.hpp)
  std::map<std::pair<std::string, precision>, uses> kinds_, words_;
};

}  // namespace comp::libtorch::detail
