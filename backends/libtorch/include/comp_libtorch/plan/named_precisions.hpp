// SPDX-License-Identifier: Apache-2.0
// The precisions that a plan or a plan file gives to operators, by their names and kinds, for forwards that are not as
// the recorded one.
#pragma once

#include <comp/core/precision.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace comp::libtorch::detail {

class named_precisions {
 public:
  /// `choosable`: whether it tells what operators of its kind usually have.
  void add(const std::string& name, const std::string& kind, precision chosen, bool choosable = true) {
    by_name_[name].insert_or_assign(kind, chosen);
    by_common_name_.emplace(common_name(name), chosen);
    if (!choosable) return;
    of_kind& seen = kinds_[kind];
    ++seen.uses[chosen];
    if (seen.uses[chosen] > seen.uses[seen.usual]) seen.usual = chosen;
  }
  /// Returns: the precision of the operator of that name, or of its first call where it is called more often; where
  /// there is none of its kind, of the one that is the same call in another language. Nothing where there is none.
  std::optional<precision> find(const std::string& name, const std::string& kind) const {
    for (const std::string& asked : {name, first_of_its_name(name)}) {
      const auto at = by_name_.find(asked);
      if (at == by_name_.end()) continue;
      if (const auto of = at->second.find(kind); of != at->second.end()) return of->second;
    }
    for (const std::string& asked : {common_name(name), common_name(first_of_its_name(name))}) {
      if (const auto at = by_common_name_.find(asked); at != by_common_name_.end()) return at->second;
    }
    return {};
  }
  /// What most operators of a kind have; FP32 where there are none.
  precision usual(const std::string& kind) const {
    const auto at = kinds_.find(kind);
    return at == kinds_.end() ? precision::fp32 : at->second.usual;
  }
  void clear() {
    by_name_.clear();
    by_common_name_.clear();
    kinds_.clear();
  }

 private:
  struct of_kind {
    std::map<precision, std::size_t> uses = {};
    precision usual = precision::fp32;
  };
  std::map<std::string, std::map<std::string, precision>> by_name_;  // and kind
  std::map<std::string, precision> by_common_name_;
  std::map<std::string, of_kind> kinds_;
};

}  // namespace comp::libtorch::detail
