// SPDX-License-Identifier: Apache-2.0
// Convolutions in BF16, FP16 and TF32 as graphs of cuDNN: each pass is one call, and a forward computes its bias, and
// the ReLU behind it, before the result is rounded and written.
// The first call of a case runs some of the plans that cuDNN proposes, and the fastest is kept. Without
// settings::measure_algorithms it is the first one that runs. cuDNN proposes only plans whose sums have a fixed order
// and whose workspace is within the limit.
// If cuDNN has no such plan, and in a capture that is the first to meet a case, callers use the calls of
// convolution_passes.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convolutions.hpp"

namespace comp::cuda {

/// The addresses of a pass, which computes `to` from a and b: y from x and w, dx from w and dy, dw from x and dy.
struct convolution_places {
  const void *a, *b;
  const float* bias = nullptr;
  void* to = nullptr;
};
/// A graph for which cuDNN has plans. Plan 0 is the first one by its heuristics.
class convolution_graph {
 public:
  virtual ~convolution_graph() = default;
  virtual std::int64_t plans() const = 0;
  /// Makes the code of a plan. Returns: the workspace that it needs [bytes]; nothing if cuDNN cannot make it.
  virtual std::optional<std::int64_t> make(std::int64_t plan) = 0;
  /// Launches a plan that was made on the handle's stream. Returns: cuDNN's reason if it cannot; else nothing.
  virtual std::string run(cudnnHandle_t, std::int64_t plan, const convolution_places&, void* workspace) const = 0;
};
/// The reason in a build without the front end.
inline constexpr std::string_view no_frontend = "this build is without cuDNN's C++ front end";
/// most: the largest workspace [bytes] that a plan may need. Returns: null if cuDNN has no plan; why_not is its reason
/// then.
std::unique_ptr<convolution_graph> make_convolution_graph(cudnnHandle_t, const convolution_case&, std::int64_t most,
                                                          std::string& why_not);

/// The part of a context that keeps a plan for each case, or that there is none.
class convolution_plans {
 public:
  explicit convolution_plans(context& c) : library_{c.part<dnn>()} {}

  /// Returns: a sentence for each pass that is an older call; one alone if the build has no graphs.
  std::vector<std::string> why() const {
    constexpr const char *passes[] = {"forward", "gradient of data", "gradient of weights"},
                         *stored[] = {"tf32", "bf16", "fp16"};
    const auto listed = [](const std::array<std::int64_t, 4>& s) { return text(shape{s[0], s[1], s[2], s[3]}); };
    std::vector<std::string> all;
    for (const auto& [of, one] : known_) {
      if (one.graph || of.bias || of.relu) continue;  // without these it may be a graph
      if (one.why_not == no_frontend) return {fmt::format("no convolution is a graph of cuDNN ({})", no_frontend)};
      all.push_back(fmt::format("the {} of x {} with weights {} in {} is no graph of cuDNN ({})",
                                passes[static_cast<std::size_t>(of.pass)], listed(of.x), listed(of.w),
                                stored[static_cast<std::size_t>(of.in)], one.why_not));
    }
    return all;
  }
  /// Returns: whether there is a plan for the case, which is chosen at the first call. at: the operands; the results
  /// of trials go to other memory.
  bool has(context& c, const convolution_case& of, const convolution_places& at) { return find(c, of, at) != nullptr; }
  /// Returns: whether there is a plan for the case that is not slower than the one for `than`, within the margin.
  bool as_fast(context& c, const convolution_case& of, const convolution_case& than, const convolution_places& at) {
    const chosen *one = find(c, of, at), *other = of == than ? one : find(c, than, at);
    return one && (!other || one->seconds <= other->seconds * (1 + margin));
  }
  /// Runs the plan of the case. Returns: false if there is none.
  /// Throws: library_error if a plan fails that ran before.
  bool run(context& c, const convolution_case& of, const convolution_places& at) {
    const chosen* by = find(c, of, at);
    if (!by) return false;
    const std::string why = by->graph->run(library_.handle(), by->plan, at, c.scratch(by->workspace));
    if (!why.empty()) check(library_status{"cuDNN", why.c_str(), -1, verdict::failed}, "a convolution as a graph");
    return true;
  }

 private:
  static constexpr std::int64_t most_tried = 4;  // each may have to be compiled
  static constexpr int repeats = 3;              // runs in a measurement
  static constexpr double margin = 0.02;         // differences of times that count as none: noise
  struct chosen {
    std::unique_ptr<convolution_graph> graph;  // null: cuDNN has no plan
    std::int64_t plan = 0, workspace = 0;
    double seconds = std::numeric_limits<double>::infinity();  // of a run; 0 if nothing is measured
    std::string why_not = {};                                  // why there is no graph
  };

  const chosen* find(context& c, const convolution_case& of, const convolution_places& at) {
    auto found = known_.find(of);
    if (found == known_.end()) {
      if (c.capturing()) return nullptr;
      const std::int64_t peak = c.pool().peak_bytes();
      std::optional<chosen> one = choose(c, of, at);
      c.pool().forget_peak_since(peak);
      if (!one) return nullptr;
      found = known_.emplace(of, std::move(*one)).first;
    }
    return found->second.graph ? &found->second : nullptr;
  }
  /// Returns: the plan for the case; nothing if it is not known, because there was too little memory to try one.
  std::optional<chosen> choose(context& c, const convolution_case& of, const convolution_places& at) {
    chosen best;
    best.graph = make_convolution_graph(library_.handle(), of, c.workspace_limit(), best.why_not);
    if (!best.graph) return best;
    best.why_not = "none of its plans can be made";
    bool short_of_memory = false;
    for (std::int64_t plan = 0, tried = 0; plan < best.graph->plans() && tried < most_tried; ++plan) {
      const auto workspace = best.graph->make(plan);
      if (!workspace) continue;
      ++tried;
      try {
        const auto time = seconds(c, best, plan, *workspace, of, at);
        if (!time || *time >= best.seconds * (1 - margin)) continue;
        best.plan = plan;
        best.workspace = *workspace;
        best.seconds = *time;
        if (!library_.measures) break;
      } catch (const out_of_memory&) {
        short_of_memory = true;
      }
    }
    if (best.seconds < std::numeric_limits<double>::infinity()) return best;
    if (short_of_memory) return std::nullopt;
    best.graph = nullptr;
    return best;
  }
  /// Returns: the time of a run [s], 0 if nothing is measured; nothing for a plan that does not run, and by.why_not
  /// says why.
  std::optional<double> seconds(context& c, chosen& by, std::int64_t plan, std::int64_t workspace,
                                const convolution_case& of, convolution_places at) const {
    const auto& sizes = of.pass == conv_pass::forward ? of.y : of.pass == conv_pass::data ? of.x : of.w;
    const auto to = c.allocate(sizes[0] * sizes[1] * sizes[2] * sizes[3] * bytes_of(of.in)),
               scratch = c.allocate(workspace);
    at.to = to->materialize();
    const auto run = [&] { return by.graph->run(library_.handle(), plan, at, scratch->materialize()); };
    if (std::string why = run(); !why.empty()) return by.why_not = std::move(why), std::nullopt;
    return library_.measures ? time_of(c.stream(), repeats, run) : 0;
  }

  dnn& library_;
  std::map<convolution_case, chosen> known_;
};

}  // namespace comp::cuda
