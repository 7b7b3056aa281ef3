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

#include <comp_native/passes.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "draw_counter.hpp"
#include "executable_graph.hpp"
#include "refills.hpp"
#include "step_report.hpp"

namespace comp::cuda {

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
  captured_step made;
  made.first = c.part<step_report>().is_first_micro_batch();
  try {
    recording now{c, draws};
    work();
    c.flush();
    made.uses = before.uses();
    made.graph = now.finished();
    made.bytes = now.bytes();
    made.draws = now.draws();
  } catch (...) {
    before.put_back();
    throw;
  }
  for (parameter* p : all) ++p->version;  // copies derived from the values exist only once the graph has run
  made.scratch = c.scratch_memory();
  made.losses = c.part<step_report>().graph_loss_buffer();
  return made;
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
