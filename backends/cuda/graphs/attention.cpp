// SPDX-License-Identifier: Apache-2.0
// Makes the graphs of comp_cuda/attention.hpp by cuDNN's C++ front end. In a build without the front end there are no
// graphs, and the reason says so.
#include <comp_cuda/attention.hpp>

#ifdef COMP_CUDNN_FRONTEND
#include <unordered_map>

#include "attention_nodes.hpp"
#endif

namespace comp::cuda {

#ifdef COMP_CUDNN_FRONTEND

namespace {

/// A graph of the front end, and cuDNN's plan for it.
class planned_graph final : public attention_graph {
 public:
  planned_graph(const attention_case& of, bool backward) : of_{of}, graph_{graphs::described(of, backward)} {}

  /// Plans the graph within `most` bytes of workspace. Returns: the reason if cuDNN has no plan; else nothing.
  std::string plan(cudnnHandle_t handle, std::int64_t most) {
    std::string why = graphs::planned(
        *graph_, most, [&] { return graph_->build_operation_graph(handle); }, of_.any_order);
    if (!why.empty()) return why;
    if (auto built = graph_->build_plans(); built.is_bad()) return built.get_message();
    auto known = graph_->get_workspace_size(workspace_);
    return known.is_bad() ? known.get_message() : workspace_ > most ? "its plan needs more workspace" : std::string{};
  }
  std::int64_t workspace_bytes() const override { return workspace_; }
  std::string run(cudnnHandle_t handle, const attention_places& at, void* workspace) const override {
    const auto place = [](const void* p) { return const_cast<void*>(p); };  // cuDNN takes no pointers to const
    std::unordered_map<std::int64_t, void*> all{{graphs::of_q, place(at.q)},
                                                {graphs::of_k, place(at.k)},
                                                {graphs::of_v, place(at.v)},
                                                {graphs::of_y, at.y},
                                                {graphs::of_log_sums, at.log_sums},
                                                {graphs::of_queries_seen, place(at.queries_seen)},
                                                {graphs::of_keys_seen, place(at.keys_seen)}};
    if (at.dy) {
      all.insert(
          {{graphs::of_dy, place(at.dy)}, {graphs::of_dq, at.dq}, {graphs::of_dk, at.dk}, {graphs::of_dv, at.dv}});
    }
    if (of_.dropout > 0) all.insert({{graphs::of_seed, place(at.seed)}, {graphs::of_offset, place(at.seed + 1)}});
    auto given = graph_->execute(handle, all, workspace);
    return given.is_bad() ? graphs::first_line(given.get_message()) : std::string{};
  }

 private:
  attention_case of_;
  std::shared_ptr<graphs::fe::graph::Graph> graph_;
  std::int64_t workspace_ = 0;
};

}  // namespace

attention_graphs make_attention_graphs(cudnnHandle_t handle, const attention_case& of, std::int64_t most) {
  try {
    attention_graphs result;
    for (const bool backward : {false, true}) {
      auto one = std::make_unique<planned_graph>(of, backward);
      if (const std::string why = one->plan(handle, most); !why.empty()) return {.why_not = graphs::first_line(why)};
      (backward ? result.backward : result.forward) = std::move(one);
    }
    return result;
  } catch (const std::exception& e) {  // the front end also throws
    return {.why_not = graphs::first_line(e.what())};
  }
}

#else

attention_graphs make_attention_graphs(cudnnHandle_t, const attention_case&, std::int64_t) {
  return {.why_not = "this build is without cuDNN's C++ front end"};
}

#endif

}  // namespace comp::cuda
