// SPDX-License-Identifier: Apache-2.0
// Low-precision copies of parameters, which the operators of a region share. A copy is made on first use in the region
// and dropped at its end, as autocast does. Or its memory is kept, and is written anew on first use in each region. So
// no region sees the weights of an earlier one, however they were written. Within a region, every in-place write that
// autograd counts is seen. The parameter stays FP32, and so does its gradient. Use from several threads is safe.
// If FSDP shards a parameter, so that its memory comes and goes, no copy of any parameter is kept.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <comp_libtorch/hook/cast.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace comp::libtorch::detail {

class low_weights {
 public:
  /// Returns: the number under which get() finds the copies of one parameter in one format.
  std::int32_t entry_of(std::int32_t parameter, at::ScalarType type, at::MemoryFormat layout) {
    const auto at = std::ranges::find_if(
        entries_, [&](const entry& e) { return e.parameter == parameter && e.type == type && e.layout == layout; });
    if (at != entries_.end()) return static_cast<std::int32_t>(at - entries_.begin());
    entries_.push_back({parameter, type, layout});
    return static_cast<std::int32_t>(entries_.size() - 1);
  }

  /// Begins a region: the weights may have changed, so no copy of an earlier region is used as it is.
  void begin_region() {
    const std::lock_guard only_one{mutex_};
    ++regions_;
  }
  /// Ends a region: copies are dropped unless their memory is kept.
  void end_region() {
    const std::lock_guard only_one{mutex_};
    sharded_ = sharded_ || std::ranges::any_of(entries_, &entry::has_no_memory);
    for (entry& e : entries_) {
      if (!e.copy.defined() || sharded_) e.drop();
    }
  }

  /// Returns: the low copy of `parameter` as it is now. `keep`: its memory is kept.
  at::Tensor get(std::int32_t number, const at::Tensor& parameter, bool keep) {
    const std::lock_guard only_one{mutex_};
    keep = keep && !sharded_;
    entry& e = entries_[static_cast<std::size_t>(number)];
    if (e.region != regions_ && keep && e.is_of(parameter) && e.has_room()) {
      e.refresh();
    } else if (e.region != regions_ || !e.is_of(parameter) || !e.is_unwritten()) {
      e.make(parameter, keep);
      remember(e);
    }
    e.region = regions_;
    return e.low;
  }

  /// Makes the copies that the next forward would make of parameters that were seen before, so that no step pays for a
  /// change of plans.
  void keep_known() {
    const std::lock_guard only_one{mutex_};
    if (sharded_) return;
    for (entry& e : entries_) {
      const auto parameter = static_cast<std::size_t>(e.parameter);
      if (parameter < parameters_.size() && parameters_[parameter].defined()) e.make(parameters_[parameter], true);
    }
  }

  /// Begins another plan, which makes entries of its own.
  void drop_entries() {
    const std::lock_guard only_one{mutex_};
    entries_.clear();
  }
  /// Begins another recording, which numbers its parameters anew.
  void clear() {
    const std::lock_guard only_one{mutex_};
    entries_.clear();
    parameters_.clear();
  }
  /// Returns: the bytes of the kept copies.
  std::int64_t bytes() const {
    const std::lock_guard only_one{mutex_};
    std::int64_t sum = 0;
    for (const entry& e : entries_) sum += e.copy.defined() ? static_cast<std::int64_t>(e.copy.nbytes()) : 0;
    return sum;
  }

 private:
  struct entry {
    std::int32_t parameter;
    at::ScalarType type;
    at::MemoryFormat layout;
    at::Tensor source = {};
    at::Tensor low = {};       // what operators get: a node of the autograd graph
    at::Tensor copy = {};      // the memory of `low`, if that is kept
    std::uint64_t region = 0;  // in which it was made or refreshed
    std::uint32_t source_version = 0;
    std::uint32_t low_version = 0;  // an operator may return its input, which somebody then writes

    bool has_no_memory() const {
      return source.defined() && source.has_storage() && source.numel() > 0 && source.storage().nbytes() == 0;
    }
    bool is_of(const at::Tensor& now) const {
      if (!low.defined() || source.unsafeGetTensorImpl() != now.unsafeGetTensorImpl()) return false;
      if (low.requires_grad() != now.requires_grad() && (low.requires_grad() || at::GradMode::is_enabled()))
        return false;
      return !low.is_inference() || c10::InferenceMode::is_enabled();
    }
    /// Returns: whether nobody wrote the parameter or the copy since it was made, as far as writes are counted.
    bool is_unwritten() const {
      return source_version == version(*source.unsafeGetTensorImpl()) &&
             low_version == version(*low.unsafeGetTensorImpl());
    }
    bool has_room() const { return copy.defined() && copy.sizes() == source.sizes(); }
    void refresh() {
      const at::NoGradGuard no_gradients;
      copy.copy_(source);
      note_versions();
    }
    void make(const at::Tensor& now, bool keep) {
      drop();
      source = now;
      if (keep) {
        make_kept();
      } else {
        low = cast(now, type, layout);
      }
      note_versions();
    }
    void note_versions() {
      source_version = version(*source.unsafeGetTensorImpl());
      low_version = version(*low.unsafeGetTensorImpl());
    }
    void make_kept() {
      const c10::InferenceMode off{false};  // a copy that was made in inference mode could not be trained with
      {
        const at::NoGradGuard no_gradients;
        copy = at::_to_copy(source, source.options().dtype(type), false, layout);
      }
      // shares memory, but not the count of writes, as with LibTorch's optimizers: the refresh must not make autograd
      // refuse a backward that is still to come (another network's)
      low = copy.variable_data();
      if (!source.requires_grad()) return;
      auto node = make_node<cast_backward>(cast_backward::kept_copy{});
      node->type = source.scalar_type();
      node->add_next_edge(torch::autograd::impl::gradient_edge(source));
      torch::autograd::set_history(low, node);
    }
    void drop() {
      low.reset();
      copy.reset();
      source.reset();
    }
  };

  void remember(const entry& e) {
    const auto parameter = static_cast<std::size_t>(e.parameter);
    if (parameters_.size() <= parameter) parameters_.resize(parameter + 1);
    parameters_[parameter] = e.source;
  }

  mutable std::mutex mutex_;
  std::vector<entry> entries_;
  std::uint64_t regions_ = 0;
  bool sharded_ = false;
  std::vector<at::Tensor> parameters_;  // parameters by their number in the recording, as `get` last saw them
};

}  // namespace comp::libtorch::detail
