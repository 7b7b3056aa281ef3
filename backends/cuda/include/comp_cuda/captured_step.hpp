// SPDX-License-Identifier: Apache-2.0
// A captured step: forward and backward as one CUDA graph, which the host starts with one launch instead of hundreds of
// calls. The graph holds the operators' own calls, in their order, on one stream, with the algorithms that earlier
// steps have chosen. So its results have the bits of the calls.
// A graph fixes addresses. Those of parameters, gradients and low copies are compared before each launch; scratch
// memory and the report of losses are kept alive by the captured step; what the work allocates belongs to the graph and
// does not exist between launches.
// A capture is refused, with a sentence, if the work waits for the device, keeps memory that it allocated, or does not
// fit. Parameters are then as before, and the same work can run call by call.
// The optimizer's update is not captured, because its learning rate and step number change from step to step.
#pragma once

#include <fmt/format.h>

#include <array>
#include <comp_native/passes.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "context.hpp"
#include "draw_counter.hpp"
#include "prefetch.hpp"
#include "step_report.hpp"
#include "transfer.hpp"

namespace comp::cuda {

/// Overwrites device memory that a captured graph reads: a graph reads fixed addresses, so each batch's inputs must be
/// copied to them, in the order of the stream. Values from the host go through pinned memory, so that the host waits
/// only if all blocks of it are still being read, and for values that are larger than a block.
class refills {
 public:
  explicit refills(context& c) : c_{&c} {}
  ~refills() { (void)cudaStreamSynchronize(c_->stream().get()); }  // the stream may still read pinned memory
  refills(const refills&) = delete;
  refills& operator=(const refills&) = delete;

  /// Copies `from` to `to`. Returns when `from` may change again, which is before the copy has arrived.
  void put(void* to, std::span<const std::byte> from) {
    if (std::ssize(from) > c_->chosen().pinned_limit) return copy(to, from);
    slot& s = slots_[next_++ % slots_.size()];
    s.copied.wait();
    if (s.host.bytes() < from.size()) s.host = pinned_block{from.size()};
    std::memcpy(s.host.data(), from.data(), from.size());
    check(cudaMemcpyAsync(to, s.host.data(), from.size(), cudaMemcpyHostToDevice, c_->stream().get()),
          "copying values to the device");
    c_->stream().record(s.copied);
  }

 private:
  /// Copies what is too large for pinned memory, and waits for it, as detail::brought() does.
  void copy(void* to, std::span<const std::byte> from) {
    check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, c_->stream().get()),
          "copying values to the device");
    c_->stream().synchronize();
  }

  struct slot {
    pinned_block host;
    event copied{cudaEventDisableTiming};  // from then on `host` may be written again
  };
  context* c_;
  std::array<slot, 8> slots_;
  std::size_t next_ = 0;
};

namespace detail {
/// Copies from device to device, in the order of the stream.
inline void copy_within(context& c, void* to, const void* from, std::int64_t bytes) {
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, c.stream().get()),
        "copying values to where captured work reads them");
}
}  // namespace detail

/// Overwrites the values of t, whose address stays.
/// Throws: error for another number of values, and for tensors that are not row-major FP32.
inline void refill(context& c, tensor& t, const tensor& from) {
  const auto like = [](const tensor& x) { return x.precision() == precision::fp32 && x.order() == order::row_major; };
  require<error>(from.size() == t.size() && like(t) && like(from),
                 "refill of {} in {} with {} in {} (values go where they lie, as FP32): give as many", text(t.shape()),
                 name(t.precision()), text(from.shape()), name(from.precision()));
  c.flush();  // pending work was asked for with the values from before
  detail::copy_within(c, t.materialize(), from.materialize(), t.size() * 4);
}
/// Overwrites the indices of t, whose address stays.
/// Throws: error for another number of indices.
inline void refill(context& c, indices& t, const indices& from) {
  require<error>(from.size() == t.size(), "refill of {} indices with {} (they go where they lie): give as many",
                 t.size(), from.size());
  detail::copy_within(c, t.held()->materialize(), from.data(), t.size() * 4);
  t = {t.shape(), t.held(), from.range()};
}

/// A graph that can be launched. Its destructor also returns the graph's memory, which the driver would otherwise keep
/// for other graphs alone. If there is no memory for it, the pool gives back the memory that it keeps, since the driver
/// does not share memory between pools and graphs.
class executable_graph {
 public:
  executable_graph() = default;
  /// Also allocates the graph's memory, so that a graph that does not fit fails here and not in a step.
  /// Throws: what check() throws.
  executable_graph(cudaGraph_t graph, context& c) : gpu_{c.card().device} {
    check(cudaGraphInstantiate(&graph_, graph, 0), "making a graph executable");
    try {
      check(with_memory(c, [&] { return cudaGraphUpload(graph_, c.stream().get()); }), "giving memory to a graph");
    } catch (...) {
      (void)cudaGraphExecDestroy(graph_);
      throw;
    }
  }
  executable_graph(executable_graph&& other) noexcept
      : graph_{std::exchange(other.graph_, nullptr)}, gpu_{other.gpu_} {}
  executable_graph& operator=(executable_graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    std::swap(gpu_, other.gpu_);
    return *this;
  }
  ~executable_graph() {
    if (!graph_) return;
    (void)cudaGraphExecDestroy(graph_);
    (void)cudaDeviceGraphMemTrim(gpu_);
  }
  /// Launches the graph, and allocates its memory again if that was given back meanwhile.
  /// Returns: CUDA's code. cudaGetLastError() no longer has it.
  cudaError_t launch(context& c) const {
    return with_memory(c, [&] { return cudaGraphLaunch(graph_, c.stream().get()); });
  }

 private:
  /// Calls `call`; if memory is short, once more after the pool has given back what it keeps.
  static cudaError_t with_memory(context& c, auto call) {
    cudaError_t code = call();
    if (code == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      c.pool().give_back();
      code = call();
    }
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code;
  }

  cudaGraphExec_t graph_ = nullptr;
  int gpu_ = 0;
};

class captured_step {
 public:
  /// What the captured work does with a parameter, and the addresses that it does it at.
  struct use {
    parameter* of;
    bool makes_gradient, reads_low;  // writes the first gradient of the step; reads the copy in low precision
    const void *value, *gradient, *low;
    std::shared_ptr<fp8_weights> in_fp8;  // the FP8 form that it reads, kept alive; null: none

    /// True if the parameter's tensors still have these addresses.
    bool holds() const {
      return of->value.materialize() == value && of->gradient.materialize() == gradient &&
             (!reads_low || of->low.materialize() == low) && of->in_fp8 == in_fp8;
    }
  };

  executable_graph graph;
  std::vector<use> uses;
  std::shared_ptr<memory> scratch, losses;
  std::int64_t bytes = 0;  // the most that its own blocks take at once
  bool first = true;       // of the micro-batches of a step; the later ones add to gradients and are another graph
  bool draws = false;      // it has dropouts, so a launch needs the number of draws before it
};

namespace detail {

/// A copy of the parameters' handles and flags. A capture runs the host's code but not the device's, so a capture that
/// fails has changed flags for work that never ran; put_back() restores them.
class kept_parameters {
 public:
  kept_parameters(context& c, std::span<parameter* const> all) : c_{c}, scratch_{c.scratch_memory()} {
    for (parameter* p : all) {
      kept_.push_back(
          {p, p->value, p->gradient, p->first, p->second, p->low, p->fresh, p->low_current, p->low_read, p->in_fp8});
      p->low_read = false;
    }
  }
  void put_back() const {
    for (const one& k : kept_) {
      parameter& p = *k.of;
      p.value = k.value;
      p.gradient = k.gradient;
      p.first = k.first;
      p.second = k.second;
      p.low = k.low;
      p.fresh = k.fresh;
      p.low_current = k.low_current;
      p.low_read = k.low_read;
      p.in_fp8 = k.in_fp8;
      ++p.version;  // the failed capture seemed to derive copies from the values, which do not exist
    }
    if (c_.scratch_memory() != scratch_) c_.drop_scratch();
  }
  /// Returns: what the capture has done with each parameter, by comparing its flags with those from before.
  std::vector<captured_step::use> uses() const {
    std::vector<captured_step::use> all;
    for (const one& k : kept_) {
      const parameter& p = *k.of;
      all.push_back({k.of, k.fresh && !p.fresh, p.low_read, p.value.materialize(), p.gradient.materialize(),
                     p.low.materialize(), p.in_fp8});
    }
    return all;
  }

 private:
  struct one {
    parameter* of;
    tensor value, gradient, first, second, low;
    bool fresh, low_current, low_read;
    std::shared_ptr<fp8_weights> in_fp8;
  };
  context& c_;
  std::shared_ptr<memory> scratch_;
  std::vector<one> kept_;
};

/// A running capture. It ends with finished(), or with this object's life if an exception comes before.
class recording {
 public:
  recording(context& c, std::uint64_t draws) : c_{c}, left_before_{c.pool().left_of_graphs()} {
    check(cudaStreamBeginCapture(c.stream().get(), cudaStreamCaptureModeThreadLocal), "beginning a capture");
    c.pool().begin_graph(c.stream().get());
    c.part<step_report>().capture(true);
    c.part<draw_counter>().begin(draws);
  }
  recording(const recording&) = delete;
  recording& operator=(const recording&) = delete;
  ~recording() {
    if (!ended_) (void)end();
    if (graph_) (void)cudaGraphDestroy(graph_);
    (void)cudaGetLastError();  // forgets the errors of calls that a capture forbids
  }

  /// Ends the capture. Throws: error if the captured work keeps memory that it allocated.
  executable_graph finished() {
    check(end(), "ending a capture");
    const std::size_t left = c_.pool().left_of_graphs() - left_before_;
    require<error>(left == 0, "{} blocks of memory that it allocates are in use after it", left);
    return {graph_, c_};
  }
  std::int64_t bytes() const { return bytes_; }
  bool draws() const { return draws_; }

 private:
  cudaError_t end() {
    ended_ = true;
    const cudaError_t code = cudaStreamEndCapture(c_.stream().get(), &graph_);
    bytes_ = c_.pool().end_graph();
    draws_ = c_.part<draw_counter>().end();
    c_.part<step_report>().capture(false);
    return code;
  }
  context& c_;
  std::size_t left_before_;
  cudaGraph_t graph_ = nullptr;
  std::int64_t bytes_ = 0;
  bool ended_ = false, draws_ = false;
};

captured_step recorded(context& c, std::span<parameter* const> all, std::uint64_t draws, auto& work) {
  const kept_parameters before{c, all};
  captured_step step;
  step.first = c.part<step_report>().is_first_micro_batch();
  try {
    recording now{c, draws};
    work();
    c.flush();
    step.uses = before.uses();
    step.graph = now.finished();
    step.bytes = now.bytes();
    step.draws = now.draws();
  } catch (...) {
    before.put_back();
    throw;
  }
  for (parameter* p : all) ++p->version;  // copies derived from the values exist only once the graph has run
  step.scratch = c.scratch_memory();
  step.losses = c.part<step_report>().graph_loss_buffer();
  return step;
}

}  // namespace detail

/// Captures what `work` launches instead of running it. draws: how many dropouts came before it in the training.
/// Throws: capture_refused; device_lost.
captured_step capture(context& c, std::span<parameter* const> all, std::uint64_t draws, auto&& work) {
  (void)c.part<draw_counter>();  // allocates its memory now, since memory allocated in the capture would not stay
  c.flush();
  try {
    return detail::recorded(c, all, draws, work);
  } catch (const device_lost&) {
    throw;
  } catch (const error& e) {
    throw native::capture_refused{
        fmt::format("a step as a CUDA graph ({}): its work is given call by call instead", e.what())};
  }
}

/// False if anything that the graph reads or writes has another address by now.
inline bool usable(context& c, const captured_step& work) {
  for (const auto& use : work.uses) {
    if (!use.holds()) return false;
  }
  return work.losses == c.part<step_report>().graph_loss_buffer();
}

/// Launches the graph: on the inputs and parameters as they are now, with the dropouts that follow `draws`.
/// Requires: usable(). Throws: capture_refused if other work has taken the memory that the graph needs.
inline void replay(context& c, captured_step& work, std::uint64_t draws, double* loss) {
  c.flush();
  for (const auto& use : work.uses) {
    if (use.reads_low && !std::exchange(use.of->low_current, true)) convert(c, use.of->value, use.of->low);
  }
  if (work.draws) c.part<refills>().put(c.part<draw_counter>().at(), std::as_bytes(std::span{&draws, 1}));
  const cudaError_t code = work.graph.launch(c);
  if (code == cudaErrorMemoryAllocation) {
    throw native::capture_refused{fmt::format(
        "a step as a CUDA graph (its {} bytes of memory are in use elsewhere): its work is given call by call instead",
        work.bytes)};
  }
  check(code, "launching a graph");
  for (const auto& use : work.uses) {
    if (use.makes_gradient) use.of->fresh = false;
    if (use.reads_low) use.of->low_read = true;
  }
  c.pool().count_run(work.bytes);
  c.part<step_report>().record_graph_loss(work.first, loss);
}

}  // namespace comp::cuda
