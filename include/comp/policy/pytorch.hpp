// SPDX-License-Identifier: Apache-2.0
// The default policy: the lists of PyTorch's autocast, for CUDA and for the CPU. They are the lists that the paper
// starts from (its AMP). A search takes the list of its backend's device unless the policy names one.
// PyTorch's lower_precision_fp list is category allow, its fp32 lists are deny, its promote list is infer, and an
// operator on no list is follow. A composite operator that LibTorch expands has the category of the part that decides
// the precision of its result: cross_entropy_loss on CUDA is deny, because it ends in nll_loss.
// Autocast itself rounds its log-probabilities to the logits' format first (torch 2.11); a plan keeps them in FP32.
// binary_cross_entropy raises an error under CUDA's autocast. Here it is deny, so that a model that has it can be
// searched; PyTorch's error message sends the user to FP32, too.
#pragma once

#include <cassert>
#include <comp/core/decision.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/names.hpp>
#include <comp/core/op_info.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/kind_name.hpp>
#include <comp/policy/pytorch_lists.hpp>
#include <cstdint>
#include <map>
#include <string_view>

namespace comp::policy {

/// Which of PyTorch's lists is used. `by_device` is the list for the machine that on() is given; CUDA's without a
/// machine, as in PyTorch.
enum class pytorch_list : std::uint8_t { by_device, cuda, cpu };

namespace pytorch_lists {

/// The category of each operator on a device's lists, by kind. '.' sorts before every other character of a kind, so the
/// overloads of an operator directly follow its bare name, and one search finds both.
class table {
 public:
  table& add(std::string_view kinds, comp::category category) {
    each_name(kinds, " ,\n", [&](std::string_view kind) {
      [[maybe_unused]] const bool fresh = categories_.emplace(kind, category).second;
      assert(fresh);  // no operator is listed twice
    });
    return *this;
  }
  /// Gives each composite the category of the listed operator that decides for it.
  /// Requires: that operator was added before.
  table& add_composites(std::string_view composites) {
    each_name(composites, " \n", [&](std::string_view composite) {
      const std::size_t equals = composite.find('=');
      const comp::category* decides = find(composite.substr(0, equals));
      assert(decides != nullptr);
      add(composite.substr(equals + 1), *decides);
    });
    return *this;
  }

  /// Returns: the category of `kind`; of one without an overload that of its overloads, which is the same for all; null
  /// if no list has it.
  const comp::category* find(std::string_view kind) const {
    const auto at = categories_.lower_bound(kind);
    if (at == categories_.end() || !at->first.starts_with(kind)) return nullptr;
    return at->first.size() == kind.size() || at->first[kind.size()] == '.' ? &at->second : nullptr;
  }
  const std::map<std::string_view, comp::category>& all() const { return categories_; }

 private:
  std::map<std::string_view, comp::category> categories_;
};

inline const table& cuda() {
  static const table lists = table{}
                                 .add(cuda_lower_precision_fp, category::allow)
                                 .add(cuda_fp32, category::deny)
                                 .add(cuda_fp32_set_opt_dtype, category::deny)
                                 .add(cuda_fp32_append_dtype, category::deny)
                                 .add(cuda_promote, category::infer)
                                 .add(cuda_banned, category::deny)
                                 .add_composites(cuda_composites);
  return lists;
}

inline const table& cpu() {
  static const table lists = table{}
                                 .add(cpu_lower_precision_fp, category::allow)
                                 .add(cpu_fp32, category::deny)
                                 .add(cpu_promote, category::infer)
                                 .add_composites(cpu_composites);
  return lists;
}

}  // namespace pytorch_lists

struct pytorch {  // models comp::OperatorPolicy
  pytorch_list list = pytorch_list::by_device;
  precision low = list == pytorch_list::cpu ? precision::bf16 : precision::fp16;  // PyTorch's own defaults

  /// Returns the policy with the list for `machine`; the same policy if it names a list already.
  pytorch on(const hardware& machine) const {
    if (list != pytorch_list::by_device || machine.kind == device_kind::unknown) return *this;
    return {.list = machine.kind == device_kind::cpu ? pytorch_list::cpu : pytorch_list::cuda, .low = low};
  }

  /// Decides by the operator's kind alone, as autocast does: whether its precision can be chosen (`choosable`) is asked
  /// elsewhere.
  decision classify(const op_info& op) const {
    const std::string_view kind = without_namespace(op.kind);
    const comp::category* listed =
        (list == pytorch_list::cpu ? pytorch_lists::cpu() : pytorch_lists::cuda()).find(kind);
    if (listed == nullptr || kind.empty()) return {.category = category::follow};
    if (*listed == category::allow) return {.category = category::allow, .compute = low, .output = low};
    return {.category = *listed};
  }
};

}  // namespace comp::policy
