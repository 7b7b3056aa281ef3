// SPDX-License-Identifier: Apache-2.0
// Copies the state of a LibTorch optimizer and puts it back in place: tensors and option objects keep their identity,
// so references to them stay valid. LibTorch's own six optimizers are copied member by member. A user's own state class
// is copied by its clone() and serialize(), as LibTorch's state_dict does it.
// Members of a user's optimizer outside state() and param_groups() are not copied; setup::extra takes them.
#pragma once

#include <c10/util/Type.h>
#include <torch/optim.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace comp::libtorch {

namespace detail {

using torch::optim::OptimizerParamState;

/// Returns: a copy on `to`, else on the device of `from`; undefined stays undefined.
inline at::Tensor copied(const at::Tensor& from, std::optional<c10::Device> to = {}) {
  if (!from.defined()) return from;
  return from.detach().to(from.options().device(to.value_or(from.device())), false, /*copy=*/true);
}

/// Gives `to` the value of `from`; in place if shape and format are the same.
inline void put(at::Tensor& to, const at::Tensor& from, std::optional<c10::Device> device = {}) {
  if (to.defined() && from.defined() && to.sizes() == from.sizes() && to.dtype() == from.dtype() &&
      to.layout() == from.layout() && to.is_sparse() == from.is_sparse()) {
    to.copy_(from);
  } else {
    to = copied(from, to.defined() ? to.device() : device);
  }
}
inline void put(std::deque<at::Tensor>& to, const std::deque<at::Tensor>& from, std::optional<c10::Device> device) {
  to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) put(to[i], from[i], device);
}
inline void put(std::optional<std::vector<at::Tensor>>& to, const std::optional<std::vector<at::Tensor>>& from,
                std::optional<c10::Device> device) {
  if (!from) return to.reset();
  if (!to) to.emplace();
  to->resize(from->size());
  for (std::size_t i = 0; i < from->size(); ++i) put((*to)[i], (*from)[i], device);
}
template <class T>
requires std::is_arithmetic_v<T>
void put(T& to, T from, std::optional<c10::Device> /*device*/) { to = from; }

/// Calls `f` with each pair of members of two states of one LibTorch class. Returns: false for another class.
bool for_members(OptimizerParamState& to, const OptimizerParamState& from, auto f) {
  using namespace torch::optim;
  const auto as = [&]<class S>(auto&&... member) {
    auto* t = dynamic_cast<S*>(&to);
    const auto* s = dynamic_cast<const S*>(&from);
    if (t == nullptr || s == nullptr || typeid(to) != typeid(S)) return false;
    (f(member(*t), member(*s)), ...);
    return true;
  };
#define COMP_LIBTORCH_MEMBER(name) \
  [](auto& state) -> auto& { return state.name(); }
  return as.template operator()<SGDParamState>(COMP_LIBTORCH_MEMBER(momentum_buffer)) ||
         as.template operator()<AdamParamState>(COMP_LIBTORCH_MEMBER(step), COMP_LIBTORCH_MEMBER(exp_avg),
                                                COMP_LIBTORCH_MEMBER(exp_avg_sq),
                                                COMP_LIBTORCH_MEMBER(max_exp_avg_sq)) ||
         as.template operator()<AdamWParamState>(COMP_LIBTORCH_MEMBER(step), COMP_LIBTORCH_MEMBER(exp_avg),
                                                 COMP_LIBTORCH_MEMBER(exp_avg_sq),
                                                 COMP_LIBTORCH_MEMBER(max_exp_avg_sq)) ||
         as.template operator()<RMSpropParamState>(COMP_LIBTORCH_MEMBER(step), COMP_LIBTORCH_MEMBER(square_avg),
                                                   COMP_LIBTORCH_MEMBER(momentum_buffer),
                                                   COMP_LIBTORCH_MEMBER(grad_avg)) ||
         as.template operator()<AdagradParamState>(COMP_LIBTORCH_MEMBER(step), COMP_LIBTORCH_MEMBER(sum)) ||
         as.template operator()<LBFGSParamState>(
             COMP_LIBTORCH_MEMBER(func_evals), COMP_LIBTORCH_MEMBER(n_iter), COMP_LIBTORCH_MEMBER(t),
             COMP_LIBTORCH_MEMBER(prev_loss), COMP_LIBTORCH_MEMBER(d), COMP_LIBTORCH_MEMBER(H_diag),
             COMP_LIBTORCH_MEMBER(prev_flat_grad), COMP_LIBTORCH_MEMBER(old_dirs), COMP_LIBTORCH_MEMBER(old_stps),
             COMP_LIBTORCH_MEMBER(ro), COMP_LIBTORCH_MEMBER(al));
#undef COMP_LIBTORCH_MEMBER
}

/// Calls f(tensor) with each tensor in a state of a LibTorch class. Those in a user's own are not known.
void for_state_tensors(OptimizerParamState& state, auto f) {
  for_members(state, state, [&](auto& /*same*/, const auto& member) {
    using member_type = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<member_type, at::Tensor>) f(member);
    if constexpr (std::is_same_v<member_type, std::deque<at::Tensor>>) std::ranges::for_each(member, f);
  });
}

/// Calls f<Options, State>() for LibTorch's own optimizers until it returns true. Returns: whether it did.
bool any_own_optimizer(auto f) {
  using namespace torch::optim;
  return f.template operator()<SGDOptions, SGDParamState>() || f.template operator()<AdamOptions, AdamParamState>() ||
         f.template operator()<AdamWOptions, AdamWParamState>() ||
         f.template operator()<RMSpropOptions, RMSpropParamState>() ||
         f.template operator()<AdagradOptions, AdagradParamState>() ||
         f.template operator()<LBFGSOptions, LBFGSParamState>();
}

/// Returns: the bytes of what serializes itself.
std::string serialized(const auto& state) {
  torch::serialize::OutputArchive archive;
  state.serialize(archive);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return bytes.str();
}
inline torch::serialize::InputArchive archive_of(const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  return archive;
}

}  // namespace detail

class optimizer_state {
 public:
  /// Copies the state of `optimizer` to `store`, or to the device of each tensor.
  /// Throws: `error` for a state class of the user's own that cannot be copied.
  static optimizer_state save(torch::optim::Optimizer& optimizer, std::optional<c10::Device> store = {}) {
    optimizer_state saved;
    for (auto& group : optimizer.param_groups()) {
      saved.groups_.emplace_back(group.has_options() ? group.options().clone() : nullptr);
      for (const at::Tensor& parameter : group.params()) {
        const auto entry = optimizer.state().find(parameter.unsafeGetTensorImpl());
        saved.entries_.push_back(entry == optimizer.state().end() ? kept{} : copy_of(*entry->second, store));
      }
    }
    return saved;
  }

  /// Throws: `error` when it is the state of another optimizer.
  void restore(torch::optim::Optimizer& optimizer) const {
    std::size_t next = 0, parameters = 0;
    for (const auto& group : optimizer.param_groups()) parameters += group.params().size();
    require<error>(groups_.size() == optimizer.param_groups().size() && entries_.size() == parameters,
                   "state of {} parameters in {} groups for an optimizer of {} in {} (it is another optimizer's): save "
                   "and restore one trainer",
                   entries_.size(), groups_.size(), parameters, optimizer.param_groups().size());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      auto& group = optimizer.param_groups()[g];
      if (groups_[g]) put_options(group, *groups_[g]);
      for (const at::Tensor& parameter : group.params()) put_entry(optimizer, parameter, entries_[next++]);
    }
  }

  /// Returns: the bytes of the copies.
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const kept& k : entries_) {
      sum += static_cast<std::int64_t>(k.archive.size());
      if (k.state == nullptr) continue;
      detail::for_state_tensors(*k.state, [&](const at::Tensor& t) {
        if (t.defined()) sum += static_cast<std::int64_t>(t.nbytes());
      });
    }
    return sum;
  }

 private:
  /// One parameter's state. `state`: a deep copy; of a user's own class a shallow one, whose content is `archive`.
  struct kept {
    std::shared_ptr<torch::optim::OptimizerParamState> state = {};
    std::string archive = {};
  };

  static kept copy_of(const torch::optim::OptimizerParamState& state, std::optional<c10::Device> store) {
    kept copy;
    try {
      copy.state = make_empty(state);
      if (!put_members(*copy.state, state, store)) copy.archive = detail::serialized(state);
    } catch (const c10::Error&) {
      throw error{
          fmt::format("optimizer state {} cannot be copied (it neither clones nor serializes itself): derive it from "
                      "torch::optim::OptimizerCloneableParamState and override both serialize()",
                      c10::demangle(typeid(state).name()))};
    }
    return copy;
  }
  /// Returns: false, with nothing put, for a state class of the user's own.
  static bool put_members(torch::optim::OptimizerParamState& to, const torch::optim::OptimizerParamState& from,
                          std::optional<c10::Device> device) {
    return detail::for_members(to, from, [&](auto& member, const auto& kept) { detail::put(member, kept, device); });
  }

  static void put_entry(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const kept& from) {
    auto& all = optimizer.state();
    void* key = parameter.unsafeGetTensorImpl();
    if (!from.state) {
      all.erase(key);
      return;
    }
    auto& entry = all[key];
    const auto same_class = [](const auto& a, const auto& b) { return typeid(a) == typeid(b); };
    if (!entry || !same_class(*entry, *from.state)) entry = make_empty(*from.state);
    if (put_members(*entry, *from.state, parameter.device())) return;
    entry = from.state->clone();
    auto archive = detail::archive_of(from.archive);
    entry->serialize(archive);
  }

  /// Returns: a state of the same class that shares no tensor with `from`.
  static std::unique_ptr<torch::optim::OptimizerParamState> make_empty(const torch::optim::OptimizerParamState& from) {
    auto state = from.clone();
    detail::for_members(*state, from, [](auto& to, const auto& /*kept*/) { to = std::remove_cvref_t<decltype(to)>{}; });
    return state;
  }

  static void put_options(torch::optim::OptimizerParamGroup& group, const torch::optim::OptimizerOptions& from) {
    auto& to = group.options();
    const bool known = detail::any_own_optimizer([&]<class Options, class State>() {
      if (typeid(to) != typeid(Options) || typeid(from) != typeid(Options)) return false;
      static_cast<Options&>(to) = static_cast<const Options&>(from);
      return true;
    });
    if (!known) group.set_options(from.clone());
  }

  std::vector<std::shared_ptr<torch::optim::OptimizerOptions>> groups_;
  std::vector<kept> entries_;  // of each parameter, group by group
};

/// Appends the tensors in an optimizer's state. Those in a state class of the user's own are not known.
inline void append_tensors(torch::optim::Optimizer& optimizer, std::vector<at::Tensor>& to) {
  for (auto& entry : optimizer.state())
    detail::for_state_tensors(*entry.second, [&](const at::Tensor& t) { to.push_back(t); });
}

}  // namespace comp::libtorch
