// SPDX-License-Identifier: Apache-2.0
// Finds the operators of a forward in the recorded one. The forward may skip operators (LayerDrop, early exit, experts
// without tokens), repeat some (generation, a recurrence of another length) or have more of them. An operator is
// recognised by the parameter that it reads, which tells the module that calls it. An operator without a parameter is
// looked for among its neighbours, between the operators with parameters before and after it. If it is not among them,
// it has to be the only one of its kind.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace comp::libtorch::detail {

class forward_map {
 public:
  /// Adds `op` as instruction `at`. `parameter`: the one that it reads; null if it reads none.
  void add(const c10::OperatorHandle& op, std::size_t at, const c10::TensorImpl* parameter) {
    places_[op].push_back({at, parameter});
    size_ = at + 1;
    if (parameter == nullptr) return;
    parameters_.insert(parameter);
    with_parameters_.push_back(at);
  }
  bool is_parameter(const c10::TensorImpl* tensor) const { return parameters_.contains(tensor); }

  /// Returns: whether no operator with a parameter comes before instruction `at`, and some come after it.
  bool is_before_parameters(std::size_t at) const {
    return !with_parameters_.empty() && at <= with_parameters_.front();
  }

  struct place {
    std::size_t at;
    bool follows;  // the next instruction is the one after `at`; false: it is still `next`
  };
  /// Returns: the instruction that is `op`; nothing if the recorded forward has none there. `parameter`: the one that
  /// it reads; null if it reads none. `next`: the instruction that would be next.
  std::optional<place> find(const c10::OperatorHandle& op, const c10::TensorImpl* parameter, std::size_t next) const {
    const auto known = places_.find(op);
    if (known == places_.end()) return {};
    const auto [first, last] = parameter != nullptr ? range{0, size_} : neighbourhood(next);
    std::optional<place> earlier;
    for (const auto& [at, reads] : known->second) {
      if (at < first || at > last || reads != parameter) continue;
      if (at >= next) return place{at, true};
      if (!earlier || parameter == nullptr) earlier = place{at, true};  // a parameter's first, else the nearest
    }
    const bool only_one = known->second.size() == 1 && known->second.front().parameter == parameter;
    return earlier || !only_one ? earlier : place{known->second.front().at, false};
  }

 private:
  struct recorded {
    std::size_t at;
    const c10::TensorImpl* parameter;
  };
  struct range {
    std::size_t first, last;
  };
  /// Returns: the instructions from the operator with a parameter before `next` to the one after it. Behind the last
  /// instruction the forward begins anew.
  range neighbourhood(std::size_t next) const {
    if (next >= size_) next = 0;
    const auto after = std::ranges::lower_bound(with_parameters_, next);
    return {after == with_parameters_.begin() ? 0 : *(after - 1), after == with_parameters_.end() ? size_ : *after};
  }

  std::unordered_map<c10::OperatorHandle, std::vector<recorded>> places_;  // in the order of the forward
  std::unordered_set<const c10::TensorImpl*> parameters_;
  std::vector<std::size_t> with_parameters_;  // instructions, in the order of the forward
  std::size_t size_ = 0;
};

}  // namespace comp::libtorch::detail
