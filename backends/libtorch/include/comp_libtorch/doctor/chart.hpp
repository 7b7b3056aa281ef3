// SPDX-License-Identifier: Apache-2.0
// What a doctor writes down while a step runs: an entry for each operator, and one for each tensor that no operator
// made. It also knows the entry that each tensor comes from, by the tensor's identity and its count of in-place writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/scaled_formats.hpp>
#include <comp/doctor/examination.hpp>
#include <comp_libtorch/doctor/tensor_counts.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

class chart {
 public:
  chart(const parameter_names& parameters, precision low) : parameters_{&parameters} { all_.low = low; }

  /// Returns: the entries of what the operator is about to read. A tensor that no operator made gets a new one. Numbers
  /// among the arguments are added to `constants`.
  std::vector<std::size_t> read(const std::string& op, const op_traits& known, const torch::jit::Stack& arguments,
                                std::vector<double>& constants) {
    std::vector<std::size_t> inputs;
    for_each_tensor(arguments, arguments.size(), [&](const at::Tensor& t, std::size_t, int) {
      if (is_wrapped_number(t)) return;
      if (const auto entry = entry_of(t, op)) inputs.push_back(*entry);
    });
    std::ranges::sort(inputs);
    inputs.erase(std::ranges::unique(inputs).begin(), inputs.end());
    note_numbers(known, arguments, constants);
    return inputs;
  }

  /// Enters the results of an operator that has run. Returns: its entry; none for an operator without values of its
  /// own, as a view is.
  std::optional<std::size_t> add_results(examined op, const op_traits& known, const torch::jit::Stack& arguments,
                                         const torch::jit::Stack& results) {
    if (known.is_view && !op.inputs.empty()) {
      for_each_tensor(results, results.size(), [&](const at::Tensor& t, std::size_t, int) { link(t, op.inputs[0]); });
      return std::nullopt;
    }
    if (known.word.find("empty") != std::string::npos) return std::nullopt;  // its values are undefined
    std::optional<std::size_t> entry;
    for_each_tensor(results, results.size(), [&](const at::Tensor& t, std::size_t, int) {
      const auto values = countable(t);
      if (!values) return;
      if (!entry) entry = add(op, t);
      const tensor_values tensor = values_of(*values);
      examined& to = all_.entries[*entry];
      to.values.merge(tensor.counts);
      to.sample.insert(to.sample.end(), tensor.sample.begin(), tensor.sample.end());
      link(t, *entry);
    });
    if (entry && known.is_in_place) add_written(known, arguments, *entry);
    return entry;
  }

  /// Returns: of dropout and batch norm whether they run as in training; nothing for other operators, or if no value is
  /// dropped.
  static std::optional<bool> trains(const op_traits& known, const torch::jit::Stack& arguments) {
    std::optional<bool> as_in_training;
    bool drops = known.word.find("batch_norm") != std::string::npos;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const std::string& name = known.argument_names[i];
      if ((name == "p" || name == "dropout" || name == "dropout_p") && arguments[i].isDouble()) {
        if (known.word.find("drop") == std::string::npos && name == "p") continue;
        drops = arguments[i].toDouble() > 0;
        if (drops && name == "dropout_p") as_in_training = true;
      }
      if ((name == "train" || name == "training") && arguments[i].isBool()) as_in_training = arguments[i].toBool();
    }
    return drops ? as_in_training : std::nullopt;
  }

  /// Counts a matrix that product `entry` reads as block formats hold it, along its last axis; of a large one a part.
  void add_blocks(std::size_t entry, operand which, const at::Tensor& given) {
    constexpr std::int64_t most = 1 << 14;
    const auto values = given.dim() < 2 ? std::nullopt : countable(given);
    if (!values) return;
    const at::NoGradGuard no_gradients;
    const std::int64_t width = values->size(-1), rows = std::max<std::int64_t>(1, most / width);
    const at::Tensor all = values->detach().reshape({-1, width});
    const at::Tensor part = all.slice(0, 0, rows).contiguous();
    const auto largest = all.abs().max().item<float>();
    if (!std::isfinite(largest)) return;
    const std::lock_guard only_one{mutex_};
    for (std::size_t f = 0; f < block_formats.size(); ++f) {
      const std::span row{detail::values_of<float>(part), static_cast<std::size_t>(part.numel())};
      all_.entries[entry].blocks[f][static_cast<std::size_t>(which)].merge(
          counted_in_blocks(row, static_cast<std::size_t>(width), block_formats[f], largest));
    }
  }

  void set_error(std::size_t entry, double error) { all_.entries[entry].error = error; }

  /// Adds a gradient that the backward of `entry` made. Use from any thread is safe.
  void add_gradient(std::size_t entry, const at::Tensor& given) {
    const auto values = countable(given);
    if (!values) return;
    const tensor_values tensor = values_of(*values);
    const std::lock_guard only_one{mutex_};
    examined& to = all_.entries[entry];
    if (to.backward == 0) to.backward = ++backwards_;
    to.gradients.merge(tensor.counts);
    to.gradient_sample.insert(to.gradient_sample.end(), tensor.sample.begin(), tensor.sample.end());
  }

  examination finish() const {
    const std::lock_guard only_one{mutex_};
    return all_;
  }

 private:
  struct origin {
    tensor_address keep;
    std::uint32_t version = 0;
    std::size_t entry = 0;
  };
  struct writer {
    c10::weak_intrusive_ptr<c10::StorageImpl> keep;
    std::size_t entry = 0;
  };

  std::optional<std::size_t> entry_of(const at::Tensor& t, const std::string& op) {
    const auto at = origins_.find(t.unsafeGetTensorImpl());
    if (at != origins_.end() && at->second.version == version(*t.unsafeGetTensorImpl())) return at->second.entry;
    if (t.has_storage()) {
      const auto last = writers_.find(t.storage().unsafeGetStorageImpl());
      if (last != writers_.end()) return last->second.entry;
    }
    const auto values = countable(t);
    if (!values) return std::nullopt;
    const std::string* name = parameters_->find(t);
    tensor_values tensor = values_of(*values);
    examined leaf{.name = name != nullptr ? *name : "input of " + op, .kind = name != nullptr ? "parameter" : "input"};
    leaf.values = tensor.counts;
    leaf.sample = std::move(tensor.sample);
    const std::size_t entry = add(std::move(leaf), t);
    link(t, entry);
    return entry;
  }

  std::size_t add(examined op, const at::Tensor& result) {
    op.shape = result.sizes().vec();
    const std::string name = op.name;
    while (!names_.emplace(op.name, 0).second) op.name = name + "_" + std::to_string(++names_[name] + 1);
    const std::lock_guard only_one{mutex_};
    all_.entries.push_back(std::move(op));
    return all_.entries.size() - 1;
  }
  void link(const at::Tensor& t, std::size_t entry) {
    origins_.insert_or_assign(t.unsafeGetTensorImpl(), origin{address_of(t), version(*t.unsafeGetTensorImpl()), entry});
  }
  /// Enters what an operator wrote in place. It is noted for the storage, too, because views of it show what was
  /// written.
  void add_written(const op_traits& known, const torch::jit::Stack& arguments, std::size_t entry) {
    for_each_tensor(arguments, known.arguments.size(), [&](const at::Tensor& t, std::size_t i, int) {
      if (known.arguments[i] != argument_use::written) return;
      link(t, entry);
      if (!t.has_storage()) return;
      writers_.insert_or_assign(t.storage().unsafeGetStorageImpl(), writer{t.storage().getWeakStorageImpl(), entry});
    });
  }

  /// Notes the numbers that operators put beside values (a clamp's limits, the value of masked_fill): a format that
  /// cannot hold such a number loses it. Factors and divisors are left out, because they are applied in FP32.
  static void note_numbers(const op_traits& known, const torch::jit::Stack& arguments, std::vector<double>& to) {
    constexpr std::array words{"add",     "sub",      "rsub",        "clamp", "clamp_min", "clamp_max", "maximum",
                               "minimum", "hardtanh", "masked_fill", "where", "full",      "full_like", "fill"};
    if (!known.aten || std::ranges::find(words, known.word) == words.end()) return;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (known.arguments[i] != argument_use::read || known.argument_names[i] == "alpha") continue;
      const at::IValue& value = arguments[i];
      if (value.isDouble()) to.push_back(value.toDouble());
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0 &&
          is_wrapped_number(value.toTensor()) && value.toTensor().is_floating_point())
        to.push_back(value.toTensor().item<double>());
    }
  }

  const parameter_names* parameters_;
  mutable std::mutex mutex_;
  examination all_;
  std::size_t backwards_ = 0;
  std::unordered_map<const c10::TensorImpl*, origin> origins_;
  std::unordered_map<const c10::StorageImpl*, writer> writers_;
  std::unordered_map<std::string, std::size_t> names_;
};

}  // namespace comp::libtorch::detail
