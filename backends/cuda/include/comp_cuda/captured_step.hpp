// SPDX-License-Identifier: Apache-2.0
// Forward and backward of a step as a CUDA graph: given with one launch, where the host would make hundreds of calls.
// Captured are the operators' own calls, in their order, on one stream and with the algorithms that the calls before
// have chosen, so the bits are those of the calls. A graph fixes addresses: of parameters, gradients and low copies
// (looked at before each launch), of scratch memory and the places of losses (kept by it), and of what is allocated
// inside, which belongs to it and is gone between launches. Refused, in a sentence, is work that waits for the device,
// that keeps memory which it has allocated, or that does not fit; parameters are then as before, and the work can be
// given call by call. Not here: what is captured, and when (comp_native/passes.hpp). The optimizer's update is no part
// of it: its learning rate and step number change.
#pragma once

#include <fmt/format.h>

#include <comp_native/passes.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "draw_counter.hpp"
#include "executable_graph.hpp"
#include "refills.hpp"
#include "step_report.hpp"

namespace comp::cuda {

class captured_step {
 public:
  /// What captured work does with a parameter, and where.
  struct use {
    parameter* of;
    bool makes_gradient, reads_low;
    const void *value, *gradient, *low;
    std::shared_ptr<fp8_weights> in_fp8;

    bool holds() const {
      return of->value.materialize() == value && of->gradient.materialize() == gradient &&
             (!reads_low || of->low.materialize() == low) && of->in_fp8 == in_fp8;
    }
  };

  executable_graph graph;
  std::vector<use> uses;
  std::shared_ptr<memory> scratch, losses;
  std::int64_t bytes = 0;  // in use in its middle, beside what is there before
  bool first = true;       // of the micro-batches of a step
  bool draws = false;
};

namespace detail {

/// Parameters as they are, to be put back where a capture fails: what it has made of them has not happened.
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
      ++p.version;  // what was derived from the values in the capture was not
    }
    if (c_.scratch_memory() != scratch_) c_.drop_scratch();
  }
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

/// From the beginning of a capture to its end, which comes with the end of its life at the latest.
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
    (void)cudaGetLastError();  // of calls that the capture refused
  }

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

template <class F>
captured_step recorded(context& c, std::span<parameter* const> all, std::uint64_t draws, F& work) {
  const kept_parameters before{c, all};
  captured_step made;
  made.first = c.part<step_report>().first();
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
  for (parameter* p : all) ++p->version;  // what was derived from the values is made when the graph runs, if it does
  made.scratch = c.scratch_memory();
  made.losses = c.part<step_report>().place_of_graphs();
  return made;
}

}  // namespace detail

/// Keeps what `work` gives to the stream instead of doing it. draws: of dropouts before it.
/// Throws: capture_refused; device_lost.
template <class F>
captured_step capture(context& c, std::span<parameter* const> all, std::uint64_t draws, F&& work) {
  (void)c.part<draw_counter>();  // what stays is not allocated by the capture
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

/// False where something that it reads or writes is in another place by now.
inline bool usable(context& c, const captured_step& work) {
  for (const auto& use : work.uses) {
    if (!use.holds()) return false;
  }
  return work.losses == c.part<step_report>().place_of_graphs();
}

/// Does the work with the inputs and values of now, and the dropouts that follow `draws`. Requires: usable().
/// Throws: capture_refused where there is no memory for it by now.
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
  c.part<step_report>().replayed(work.first, loss);
}

}  // namespace comp::cuda
