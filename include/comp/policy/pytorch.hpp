// SPDX-License-Identifier: Apache-2.0
// Which operators PyTorch's autocast lowers, on CUDA or on the CPU: the rule-based peer that a found plan is measured
// against, and the default policy.
// lower_precision_fp is allow; each fp32 list is deny; promote is infer; what no list names is follow. A composite that
// LibTorch expands has the category of what it expands into: cross_entropy_loss on CUDA is deny.
// binary_cross_entropy, which raises an error under CUDA's autocast, is deny here: a trainer that has it can still be
// searched, and FP32 is where PyTorch's message sends it.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/decision.hpp>
#include <comp/core/op_info.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/kind_name.hpp>
#include <comp/policy/pytorch_lists.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

namespace comp::policy {

enum class pytorch_list : std::uint8_t { cuda, cpu };

namespace pytorch_lists {

struct entry {
  std::string_view kind;
  comp::category category;
};

/// A list's operators in one array, sorted by kind. '.' sorts before every other character of a kind, so the overloads
/// of an operator directly follow its bare name.
template <std::size_t N>
class table {
 public:
  constexpr void add(std::span<const std::string_view> kinds, comp::category category) {
    for (const std::string_view kind : kinds) entries_[used_++] = {kind, category};
  }
  constexpr void add(std::span<const expansion> composites) {
    const std::size_t listed = used_;
    for (const expansion& composite : composites) {
      const auto into = std::ranges::find_if(entries_.begin(), entries_.begin() + listed,
                                             [&](const entry& e) { return same_operator(e.kind, composite.into); });
      if (into == entries_.begin() + listed) throw "a composite expands into an operator that is on no list";
      entries_[used_++] = {composite.kind, into->category};
    }
  }
  constexpr void sort() {
    if (used_ != N) throw "the size of the table is not the sum of its lists";
    std::ranges::sort(entries_, {}, &entry::kind);
  }

  /// The entry of `kind`; without an overload, the first of any overload. Null where no list names it.
  constexpr const entry* find(std::string_view kind) const {
    const auto at = std::ranges::lower_bound(entries_, kind, {}, &entry::kind);
    if (at == entries_.end() || !at->kind.starts_with(kind)) return nullptr;
    return at->kind.size() == kind.size() || at->kind[kind.size()] == '.' ? &*at : nullptr;
  }
  constexpr std::span<const entry> entries() const { return entries_; }

 private:
  std::array<entry, N> entries_ = {};
  std::size_t used_ = 0;
};

inline constexpr auto cuda = []() consteval {
  table<std::size(cuda_lower_precision_fp) + std::size(cuda_fp32) + std::size(cuda_fp32_set_opt_dtype) +
        std::size(cuda_fp32_append_dtype) + std::size(cuda_promote) + std::size(cuda_banned) +
        std::size(cuda_composites)>
      made;
  made.add(cuda_lower_precision_fp, category::allow);
  made.add(cuda_fp32, category::deny);
  made.add(cuda_fp32_set_opt_dtype, category::deny);
  made.add(cuda_fp32_append_dtype, category::deny);
  made.add(cuda_promote, category::infer);
  made.add(cuda_banned, category::deny);
  made.add(cuda_composites);
  made.sort();
  return made;
}
();

inline constexpr auto cpu = []() consteval {
  table<std::size(cpu_lower_precision_fp) + std::size(cpu_fp32) + std::size(cpu_promote) + std::size(cpu_composites)>
      made;
  made.add(cpu_lower_precision_fp, category::allow);
  made.add(cpu_fp32, category::deny);
  made.add(cpu_promote, category::infer);
  made.add(cpu_composites);
  made.sort();
  return made;
}
();

}  // namespace pytorch_lists

struct pytorch {  // models comp::OperatorPolicy
  pytorch_list list = pytorch_list::cuda;
  precision low = precision::fp16;  // PyTorch's own default: fp16 on CUDA, bf16 on the CPU

  /// Never throws. `choosable` is not asked for: an operator's category is that of its kind.
  constexpr decision classify(const op_info& op) const {
    const std::string_view kind = without_namespace(op.kind);
    const auto* listed = list == pytorch_list::cuda ? pytorch_lists::cuda.find(kind) : pytorch_lists::cpu.find(kind);
    if (listed == nullptr || kind.empty()) return {.category = category::follow};
    if (listed->category == category::allow) return {.category = category::allow, .compute = low, .output = low};
    return {.category = listed->category};
  }
};

}  // namespace comp::policy
