// SPDX-License-Identifier: Apache-2.0
// What the operators of one device share: its stream, memory, scratch, and the libraries' handles, made when first
// used. Work is given to one stream, in order; nothing here waits for it but read() and synchronize().
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_native/arguments.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "prefetch.hpp"
#include "ranges.hpp"
#include "tensor.hpp"

namespace comp::cuda {

using native::require_same;
using native::require_some;
using native::text;

struct settings {
  int gpu = 0;
  /// [bytes] that one library call may ask for beside its tensors. The fastest convolutions of cuDNN trade memory for
  /// time; what they take counts in the peak of a plan, and 256 MiB is small beside the activations of a batch that
  /// fills a GPU.
  std::int64_t workspace_limit = std::int64_t{256} << 20;
  bool measure_algorithms = true;  // false: as the libraries' heuristics order them, the same from run to run
  bool fuse = true;                // neighbouring element-wise operators in one launch; see docs/cuda.md
  /// With `fuse`: a ReLU behind a linear layer by the layer's product. cuBLASLt's is reported to make 0 of NaN: a layer
  /// whose weights are not finite is then seen neither in the loss nor in the gradients.
  bool fuse_relu = false;
  bool fuse_attention = true;  // attention in one where cuDNN has it, rounded less often than operator by operator
  /// [bytes] of one of eight blocks of pinned memory for uploads; what is larger is waited for.
  std::int64_t pinned_limit = std::int64_t{64} << 20;
  bool ranges = false;  // names of operators and phases for Nsight Systems (NVTX)
};

/// Throws: settings_error for a workspace or pinned memory of less than nothing, and for ranges that are not built.
inline const settings& checked(const settings& chosen) {
  require<settings_error>(chosen.workspace_limit >= 0,
                          "a workspace of {} bytes asked for (0 is the least): use 0 to forbid workspaces",
                          chosen.workspace_limit);
  require<settings_error>(chosen.pinned_limit >= 0,
                          "{} bytes of pinned memory asked for (0 is the least): use 0 for none", chosen.pinned_limit);
  require<settings_error>(!chosen.ranges || profiler_range::there,
                          "ranges = {} (this build found no nvtx3/nvToolsExt.h, which is the toolkit's): leave it out",
                          chosen.ranges);
  return chosen;
}

class context : public std::enable_shared_from_this<context> {
 public:
  context(const capability& card, const settings& chosen) : life_{std::make_shared<lifeline>(card)}, chosen_{chosen} {}
  context(const capability& card, std::int64_t workspace_limit)
      : context{card, settings{.gpu = card.device, .workspace_limit = workspace_limit}} {}
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  const capability& card() const { return life_->card; }
  /// Makes this GPU the one that the calling thread speaks to: the runtime launches only on that.
  void be_current() const { check(cudaSetDevice(card().device), "choosing a GPU"); }
  const owned_stream& stream() const { return life_->stream; }
  memory_pool& pool() { return life_->pool; }
  const memory_pool& pool() const { return life_->pool; }
  /// Gives the stream all work that waits for somebody to ask for its result.
  void flush() {
    while (!life_->waiting.empty()) life_->waiting.rbegin()->second->materialize();
  }
  /// To be called before values of parameters change in place: where work waits that reads them, the stream is given
  /// all that waits.
  void finish_reads() {
    const auto reads = [](const auto& one) { return one.second->pending()->reads_parameters(); };
    if (!in_product_ && std::ranges::any_of(life_->waiting, reads)) flush();
  }
  /// f gives a product that has waited: what it asks for does not make it be given again.
  template <class F>
  void give_product(F f) {
    struct until_done {
      bool& flag;
      ~until_done() { flag = false; }
    } const done{in_product_ = true};
    f();
  }
  void synchronize() {
    flush();
    stream().synchronize();
  }

  /// True while the work that is given becomes a graph, and nothing may wait for it.
  bool capturing() const {
    cudaStreamCaptureStatus status{};
    check(cudaStreamIsCapturing(stream().get(), &status), "asking whether a graph is captured");
    return status != cudaStreamCaptureStatusNone;
  }

  std::shared_ptr<memory> allocate(std::int64_t bytes) { return std::make_shared<memory>(life_, bytes); }
  std::shared_ptr<memory> adopt(device_block block) { return std::make_shared<memory>(life_, std::move(block)); }
  /// Memory that `fill` gives a place and contents, when it is first asked for.
  std::shared_ptr<memory> promise(std::int64_t bytes, std::unique_ptr<pending_work> fill) {
    return std::make_shared<memory>(life_, bytes, std::move(fill));
  }
  const fusion_counts& fused() const { return life_->fused; }
  /// Uninitialised.
  tensor make(shape extents, precision p, order places = order::row_major) {
    const std::int64_t bytes = elements(extents) * bytes_of(storage_of(p));
    return {std::move(extents), p, places, allocate(bytes)};
  }
  tensor make_like(const tensor& t) { return make(t.shape(), t.precision(), t.order()); }

  /// Memory for the call that is given to the stream next: what was in it is overwritten by the one after. Products
  /// that wait are given before, since they take it, too.
  void* scratch(std::int64_t bytes) {
    finish_reads();
    if (!scratch_ || scratch_->bytes() < bytes) scratch_ = allocate(bytes);
    return scratch_->materialize();
  }
  template <class T>
  T* scratch_of(std::int64_t count) {
    return static_cast<T*>(scratch(count * static_cast<std::int64_t>(sizeof(T))));
  }
  /// Keeps the scratch memory of work that is run again later.
  std::shared_ptr<memory> scratch_memory() const { return scratch_; }
  void drop_scratch() { scratch_ = nullptr; }
  const settings& chosen() const { return chosen_; }
  std::int64_t workspace_limit() const { return chosen_.workspace_limit; }
  bool measures_algorithms() const { return chosen_.measure_algorithms; }

  /// Copies values of the device to the host. Waits for the work before it.
  template <class T>
  void read(const T* from, std::span<T> to) {
    check(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream().get()), "fetching values");
    stream().synchronize();
  }
  template <class T>
  T read_one(const T* from) {
    T value{};
    read(from, std::span<T>{&value, 1});
    return value;
  }
  void clear(void* at, std::int64_t bytes) {
    check(cudaMemsetAsync(at, 0, static_cast<std::size_t>(bytes), stream().get()), "clearing memory");
  }

  /// The one T of this device, T{*this} when it is first asked for: a library's handle with its caches.
  template <class T>
  T& part() {
    auto& found = parts_[typeid(T)];
    if (!found) found = std::make_shared<T>(*this);
    return *static_cast<T*>(found.get());
  }

 private:
  std::shared_ptr<lifeline> life_;
  settings chosen_;
  std::shared_ptr<memory> scratch_;
  bool in_product_ = false;
  std::unordered_map<std::type_index, std::shared_ptr<void>> parts_;  // gone before the stream that they work on
};

}  // namespace comp::cuda
