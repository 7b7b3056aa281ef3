// SPDX-License-Identifier: Apache-2.0
// Names of operators: the module whose parameters an operator reads, and what it does: "features.0.conv2d". An operator
// without parameters takes the scope of the tensor that it reads first: "features.0.relu". The n-th operator of one
// name gets "_n". So the same forward always has the same names. A forward with fewer operators has the same names for
// those that are left.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <comp/core/precision.hpp>
#include <comp_libtorch/hook/layer_names.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::libtorch {

namespace detail {
inline thread_local std::vector<std::string> scope_tags;
}

/// While it lives, the operators of this thread have a tag of the user's in front of their scope:
///   { scope s{"attention"}; ... }
class scope {
 public:
  explicit scope(std::string tag) { detail::scope_tags.push_back(std::move(tag)); }
  ~scope() { detail::scope_tags.pop_back(); }
  scope(const scope&) = delete;
  scope& operator=(const scope&) = delete;
};

namespace detail {

/// A tensor's identity. No other tensor gets its address as long as this lives; its data may be freed.
using tensor_address = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
inline tensor_address address_of(const at::Tensor& tensor) { return tensor_address{tensor.getIntrusivePtr()}; }

/// "encoder.layers.0.linear1" -> {"encoder", "layers.0", "linear1"}: a number stays with the name before it.
inline std::vector<std::string> scopes_of(std::string_view path) {
  std::vector<std::string> scopes;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('.'));
    const bool number = std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (number && !scopes.empty()) {
      scopes.back().append(".").append(part);
    } else {
      scopes.emplace_back(part);
    }
    path.remove_prefix(std::min(path.size(), part.size() + 1));
  }
  return scopes;
}

/// Chooses an operator's precision by its common name (layer_names.hpp) and its kind. If none has that name, it is what
/// most operators of that kind have.
using named_choice =
    std::function<product_precisions(const std::string& layer, const std::string& kind, precision as_written)>;

/// The names of the parameters of the user's modules.
class parameter_names {
 public:
  void add(const at::Tensor& parameter, std::string name) {
    if (parameter.defined())
      names_.insert_or_assign(parameter.unsafeGetTensorImpl(), entry{address_of(parameter), std::move(name)});
  }
  /// Adds the parameters of a module; `prefix` begins their names. `Module`: has named_parameters(), as LibTorch's
  /// modules have.
  void add_all(const auto& module, const std::string& prefix) {
    for (const auto& item : module.named_parameters()) {
      const auto [name, parameter] = [&] {
        if constexpr (requires { item.key(); }) {
          return std::pair{item.key(), item.value()};
        } else {
          return std::pair{item.name, item.value};  // TorchScript's
        }
      }();
      add(parameter, prefix.empty() ? name : prefix + "." + name);
    }
  }
  bool empty() const { return names_.empty(); }
  /// Returns: the name of an operator whose first parameter is `tensor`; empty if no module has that.
  std::string name_of(const op_traits& op, const at::Tensor& tensor) const {
    const std::string* name = find(tensor);
    if (name == nullptr) return {};
    const auto dot = name->rfind('.');
    return dot == std::string::npos ? op.word : name->substr(0, dot + 1) + op.word;
  }
  /// Returns: null for a tensor that no module has.
  const std::string* find(const at::Tensor& tensor) const { return find(tensor.unsafeGetTensorImpl()); }
  const std::string* find(const c10::TensorImpl* tensor) const {
    const auto at = names_.find(tensor);
    return at == names_.end() ? nullptr : &at->second.name;
  }

 private:
  struct entry {
    tensor_address keep;
    std::string name;
  };
  std::unordered_map<const c10::TensorImpl*, entry> names_;
};

/// Names the operators of one forward, in the order of their calls.
class op_names {
 public:
  explicit op_names(const parameter_names& parameters) : parameters_{&parameters} {}

  struct named {
    std::string name;
    std::string layer;  // its common name (layer_names.hpp)
    std::uint32_t scope = 0;
    bool of_parameters = false;  // computed from parameters alone, as a transposed weight is
  };

  /// Returns: the name of the operator that is about to run with the arguments on `stack`.
  named next(const op_traits& op, const torch::jit::Stack& stack) {
    const mark *first = nullptr, *of_module = nullptr;
    bool any = false, only_parameters = true;
    for_each_tensor(stack, op.arguments.size(), [&](const at::Tensor& tensor, std::size_t, int) {
      any = true;
      const mark* origin = find(tensor);
      only_parameters = only_parameters && origin != nullptr && origin->of_parameters;
      if (origin == nullptr) return;
      if (first == nullptr) first = origin;
      if (origin->of_parameters && of_module == nullptr) of_module = origin;
    });
    const mark* decides = of_module != nullptr ? of_module : first;
    const std::uint32_t scope = with_tags(decides == nullptr ? 0 : decides->scope, of_module != nullptr);
    const std::string& path = scopes_[scope];
    std::string name = with_number(path.empty() ? op.word : path + "." + op.word);
    std::string layer = counts_.layers.next(name, op.kind);
    return {std::move(name), std::move(layer), scope, any && only_parameters};
  }
  void add_result(const named& op, const at::Tensor& result) {
    marks_.insert_or_assign(result.unsafeGetTensorImpl(), mark{address_of(result), op.scope, op.of_parameters});
  }
  /// From now on whoever reads `copy` counts as a reader of `source`.
  void add_copy(const at::Tensor& copy, const at::Tensor& source) {
    const mark* origin = find(source);
    if (origin == nullptr) return;
    marks_.insert_or_assign(copy.unsafeGetTensorImpl(), mark{address_of(copy), origin->scope, origin->of_parameters});
  }
  /// How often each name was given. Putting it back takes back the names that were given since.
  struct counts {
    std::unordered_map<std::string, std::uint32_t> names;
    layer_names layers;
  };
  const counts& name_counts() const { return counts_; }
  void set_counts(counts before) { counts_ = std::move(before); }
  const std::string& path(std::uint32_t scope) const { return scopes_[scope]; }
  /// Returns: true for parameters and for what was computed from parameters alone.
  bool is_of_parameters(const at::Tensor& tensor) {
    const mark* origin = find(tensor);
    return origin != nullptr && origin->of_parameters;
  }

 private:
  struct mark {
    tensor_address keep;
    std::uint32_t scope = 0;
    bool of_parameters = false;
  };

  const mark* find(const at::Tensor& tensor) {
    if (const auto known = marks_.find(tensor.unsafeGetTensorImpl()); known != marks_.end()) return &known->second;
    const std::string* name = parameters_->find(tensor);
    if (name == nullptr) return nullptr;
    const auto dot = name->rfind('.');
    const std::uint32_t scope = scope_number(dot == std::string::npos ? std::string{} : name->substr(0, dot));
    return &marks_.emplace(tensor.unsafeGetTensorImpl(), mark{address_of(tensor), scope, true}).first->second;
  }
  std::uint32_t scope_number(const std::string& path) {
    const auto [at, added] = numbers_.emplace(path, scopes_.size());
    if (added) scopes_.push_back(path);
    return at->second;
  }
  /// Returns: `scope` with the user's tags before it; the tags alone if the scope is of no module.
  std::uint32_t with_tags(std::uint32_t scope, bool from_module) {
    if (scope_tags.empty()) return scope;
    std::string path;
    for (const std::string& tag : scope_tags) path += path.empty() ? tag : "." + tag;
    if (from_module && !scopes_[scope].empty()) path += "." + scopes_[scope];
    return scope_number(path);
  }
  std::string with_number(std::string name) {
    const std::uint32_t before = counts_.names[name]++;
    if (before == 0) return name;
    return with_number(name + "_" + std::to_string(before + 1));  // another operator's own name may be just that
  }

  const parameter_names* parameters_;
  std::unordered_map<const c10::TensorImpl*, mark> marks_;
  std::vector<std::string> scopes_ = {""};
  std::unordered_map<std::string, std::uint32_t> numbers_ = {{"", 0}};
  counts counts_;
};

}  // namespace detail
}  // namespace comp::libtorch
