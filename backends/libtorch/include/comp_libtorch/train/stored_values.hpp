// SPDX-License-Identifier: Apache-2.0
// Keeps tensors and numbers under names, as a file has them (core/stored_state.hpp). FP32 is kept as it is. Another
// format is kept as its bytes, each as a float.
#pragma once

#include <ATen/ATen.h>

#include <comp/core/error.hpp>
#include <comp/core/stored_state.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// Writes values under names. Undefined tensors are left out.
class state_writer {
 public:
  explicit state_writer(stored_state& to) : to_{to} {}

  template <class T>
  requires std::is_arithmetic_v<T>
  void add(const std::string& name, T number) { to_.numbers.emplace(name, static_cast<double>(number)); }
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const at::Tensor here = tensor.detach().to(at::kCPU).contiguous();
    named_tensor result{.name = name, .shape = here.sizes().vec()};
    if (here.scalar_type() == at::kFloat) {
      const auto* values = values_of<float>(here);
      result.values.assign(values, values + here.numel());
    } else {
      const auto* bytes = static_cast<const std::uint8_t*>(here.const_data_ptr());
      result.values.assign(bytes, bytes + here.nbytes());
      result.shape.push_back(static_cast<std::int64_t>(here.element_size()));
      add(name + " format", static_cast<int>(here.scalar_type()));
    }
    to_.tensors.push_back(std::move(result));
  }
  template <class List>
  requires requires(const List& list) { list.front().defined(); }
  void add(const std::string& name, const List& tensors) {
    add(name + " count", tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) add(fmt::format("{} {}", name, i), tensors[i]);
  }
  template <class List>
  void add(const std::string& name, const std::optional<List>& tensors) {
    if (tensors) add(name, *tensors);
  }

 private:
  stored_state& to_;
};

/// Reads what state_writer wrote. Throws: `error`, naming what is missing.
class state_reader {
 public:
  explicit state_reader(const stored_state& from) : numbers_{from.numbers} {
    for (const named_tensor& each : from.tensors) tensors_.emplace(each.name, &each);
  }

  bool has(const std::string& name) const { return numbers_.contains(name); }
  double number(const std::string& name) const {
    const auto at = numbers_.find(name);
    require<error>(at != numbers_.end(), "no stored number \"{}\" (it is another training's state): {}", name, remedy);
    return at->second;
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void get(const std::string& name, T& to) const { to = static_cast<T>(number(name)); }
  void get(const std::string& name, at::Tensor& to) const { to = tensor(name); }
  template <class List>
  requires requires(List& list) { list.front().defined(); }
  void get(const std::string& name, List& to) const {
    to.resize(static_cast<std::size_t>(number(name + " count")));
    for (std::size_t i = 0; i < to.size(); ++i) get(fmt::format("{} {}", name, i), to[i]);
  }
  template <class List>
  void get(const std::string& name, std::optional<List>& to) const {
    to.reset();
    if (has(name + " count")) get(name, to.emplace());
  }
  /// Returns: the tensor, on the CPU; undefined if there was none.
  at::Tensor tensor(const std::string& name) const {
    const auto at = tensors_.find(name);
    if (at == tensors_.end()) return {};
    const std::vector<float>& values = at->second->values;
    std::vector<std::int64_t> shape = at->second->shape;
    if (!has(name + " format")) return at::tensor(values).reshape(shape);
    shape.pop_back();
    at::Tensor result = at::empty(shape, static_cast<at::ScalarType>(static_cast<int>(number(name + " format"))));
    const std::vector<std::uint8_t> bytes(values.begin(), values.end());
    require<error>(bytes.size() == result.nbytes(),
                   "stored tensor \"{}\" has {} bytes (its format and shape have {}): {}", name, bytes.size(),
                   result.nbytes(), remedy);
    std::memcpy(result.mutable_data_ptr(), bytes.data(), bytes.size());
    return result;
  }
  /// Returns: the tensor. Throws: `error` if it has not the shape of `like`.
  at::Tensor tensor(const std::string& name, const at::Tensor& like) const {
    at::Tensor found = tensor(name);
    require<error>(found.defined() && found.sizes() == like.sizes(),
                   "stored tensor \"{}\" {} (the model's has shape {}): {}", name,
                   found.defined() ? "has shape " + text(found.sizes()) : "is not there", text(like.sizes()), remedy);
    return found;
  }

 private:
  static constexpr const char* remedy = "load what this trainer stored";
  static std::string text(at::IntArrayRef shape) {
    std::string all;
    for (const std::int64_t size : shape) all += fmt::format("{}{}", all.empty() ? "" : " x ", size);
    return all.empty() ? "()" : all;
  }

  const std::map<std::string, double>& numbers_;
  std::map<std::string, const named_tensor*> tensors_;
};

}  // namespace comp::libtorch::detail
