// SPDX-License-Identifier: Apache-2.0
// What the operators of one device share: its stream, its memory pool, scratch memory, and the libraries' handles, each
// of which is made when it is first used. All work goes to one stream, in order. Only read() and synchronize() wait for
// the device.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_native/arguments.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <typeindex>
#include <unordered_map>
#include <utility>

#include "kernels.hpp"
#include "prefetch.hpp"
#include "ranges.hpp"
#include "tensor.hpp"

namespace comp::cuda {

using native::require_same;
using native::require_some;
using native::text;

struct settings {
  int gpu = 0;  // the GPU's number, as CUDA counts
  /// [bytes] that one library call may ask for beside its tensors. The fastest convolutions of cuDNN trade memory for
  /// time, and their workspace counts in the peak of a plan. 256 MiB is small beside the activations of a batch that
  /// fills a GPU.
  std::int64_t workspace_limit = std::int64_t{256} << 20;
  bool measure_algorithms = true;  // false: the first one that the heuristics propose, the same in every run
  bool fuse = true;                // neighbouring element-wise operators share a launch; see docs/how-to/cuda.md
  /// With `fuse`: the product of a linear layer, and the graph of a convolution, also compute the ReLU behind them.
  /// This is off because cuBLASLt's ReLU is reported to turn NaN into 0, and cuDNN's may: weights that are not finite
  /// then show neither in the loss nor in the gradients.
  bool fuse_relu = false;
  bool graph_convolutions = true;  // convolutions in low precision are graphs of cuDNN if it has plans for them
  bool fuse_attention = true;      // attention is one call if cuDNN has it, which rounds less often than its parts do
  /// The backward of such attention may add in another order each time: cuDNN then has plans in more cases
  /// (docs/how-to/cuda.md), and the same state no longer gives the same bits.
  bool attention_in_any_order = false;
  /// [bytes] of each of the eight blocks of pinned memory for uploads. The host waits for an upload that is larger.
  std::int64_t pinned_limit = std::int64_t{64} << 20;
  bool ranges = false;  // operators and phases carry their names in Nsight Systems (NVTX)
};

/// Throws: settings_error for a negative workspace or pinned limit, and for ranges if NVTX was not built in.
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
  /// Makes this GPU the calling thread's current one, since the runtime launches only on that.
  void be_current() const { check(cudaSetDevice(card().device), "choosing a GPU"); }
  const owned_stream& stream() const { return life_->stream; }
  memory_pool& pool() { return life_->pool; }
  const memory_pool& pool() const { return life_->pool; }
  /// Launches all pending work: operators whose result nobody has read yet (pending.hpp). The newest goes first,
  /// because its launch includes the older operators that it fuses with.
  void flush() {
    while (!life_->waiting.empty()) life_->waiting.rbegin()->second->materialize();
  }
  /// Must be called before parameters change in place. Pending work that reads parameters would otherwise see the new
  /// values; if there is such work, everything pending is launched.
  void finish_reads() {
    const auto reads = [](const auto& one) { return one.second->pending()->reads_parameters(); };
    if (!in_product_ && std::ranges::any_of(life_->waiting, reads)) flush();
  }
  /// Runs f, which launches a pending product. finish_reads(), which f may call for scratch memory, does nothing
  /// meanwhile: it would launch the same product again.
  void give_product(auto f) {
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

  /// True while the stream is captured: work then becomes part of a graph, and nothing may wait for it.
  bool capturing() const {
    cudaStreamCaptureStatus status{};
    check(cudaStreamIsCapturing(stream().get(), &status), "asking whether a graph is captured");
    return status != cudaStreamCaptureStatusNone;
  }

  /// Returns: memory whose contents are undefined.
  std::shared_ptr<memory> allocate(std::int64_t bytes) { return std::make_shared<memory>(life_, bytes); }
  std::shared_ptr<memory> adopt(device_block block) { return std::make_shared<memory>(life_, std::move(block)); }
  /// Returns: memory that `fill` allocates and writes when somebody first asks for its address.
  std::shared_ptr<memory> promise(std::int64_t bytes, std::unique_ptr<pending_work> fill) {
    return std::make_shared<memory>(life_, bytes, std::move(fill));
  }
  const fusion_counts& fused() const { return life_->fused; }
  /// Returns: a tensor whose values are undefined.
  tensor make(shape extents, precision p, order places = order::row_major) {
    const std::int64_t bytes = elements(extents) * bytes_of(storage_of(p));
    return {std::move(extents), p, places, allocate(bytes)};
  }
  tensor make_like(const tensor& t) { return make(t.shape(), t.precision(), t.order()); }

  /// Returns: memory for the next call alone, since the call after it gets the same memory. Pending products are
  /// launched first: they take scratch memory as well.
  void* scratch(std::int64_t bytes) {
    finish_reads();
    if (!scratch_ || scratch_->bytes() < bytes) scratch_ = allocate(bytes);
    return scratch_->materialize();
  }
  template <class T>
  T* scratch_of(std::int64_t count) {
    return static_cast<T*>(scratch(count * static_cast<std::int64_t>(sizeof(T))));
  }
  /// Returns: the scratch memory, for a captured graph to keep: the graph uses it again at each launch.
  std::shared_ptr<memory> scratch_memory() const { return scratch_; }
  void drop_scratch() { scratch_ = nullptr; }
  const settings& chosen() const { return chosen_; }
  std::int64_t workspace_limit() const { return chosen_.workspace_limit; }
  bool measures_algorithms() const { return chosen_.measure_algorithms; }

  /// Copies values from the device to the host, and waits for the work before it.
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

  /// Returns: the device's only T, made as T{*this} at the first call. A T is a library's handle with its caches, or
  /// state of one header that the context need not know.
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
  std::unordered_map<std::type_index, std::shared_ptr<void>> parts_;  // last, so destroyed before their stream
};

}  // namespace comp::cuda
