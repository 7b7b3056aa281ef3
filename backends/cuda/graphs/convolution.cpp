// SPDX-License-Identifier: Apache-2.0
// Makes the graphs of comp_cuda/convolution_graphs.hpp by cuDNN's C++ front end. In a build without the front end there
// are none.
#include <comp_cuda/convolution_graphs.hpp>

#ifdef COMP_CUDNN_FRONTEND
#include <unordered_map>

#include "convolution_nodes.hpp"
#endif

namespace comp::cuda {

#ifdef COMP_CUDNN_FRONTEND

namespace {

/// A graph of the front end, and cuDNN's plans for it.
class planned_convolution final : public convolution_graph {
 public:
  explicit planned_convolution(const convolution_case& of) : graph_{graphs::described(of)}, bias_{of.bias} {}

  /// Plans the graph within `most` bytes of workspace. Returns: the reason if cuDNN has no plan; else nothing.
  std::string plan(cudnnHandle_t handle, std::int64_t most) {
    return graphs::planned(*graph_, most, [&] { return graph_->build_operation_graph(handle); });
  }
  std::int64_t plans() const override { return graph_->get_execution_plan_count(); }
  std::optional<std::int64_t> make(std::int64_t plan) override {
    std::int64_t workspace = 0;
    try {
      if (graph_->build_plan_at_index(plan).is_bad()) return std::nullopt;
      if (graph_->get_workspace_size_plan_at_index(plan, workspace).is_bad()) return std::nullopt;
    } catch (const std::exception&) {  // the front end also throws
      return std::nullopt;
    }
    return workspace;
  }
  std::string run(cudnnHandle_t handle, std::int64_t plan, const convolution_places& at,
                  void* workspace) const override {
    const auto place = [](const void* p) { return const_cast<void*>(p); };  // cuDNN takes no pointers to const
    std::unordered_map<std::int64_t, void*> all{
        {graphs::of_first, place(at.a)}, {graphs::of_second, place(at.b)}, {graphs::of_result, at.to}};
    if (bias_) all.insert({graphs::of_bias, place(at.bias)});
    auto given = graph_->execute_plan_at_index(handle, all, workspace, plan);
    return given.is_bad() ? graphs::first_line(given.get_message()) : std::string{};
  }

 private:
  std::shared_ptr<graphs::fe::graph::Graph> graph_;
  bool bias_;
};

}  // namespace

std::unique_ptr<convolution_graph> make_convolution_graph(cudnnHandle_t handle, const convolution_case& of,
                                                          std::int64_t most, std::string& why_not) {
  try {
    auto result = std::make_unique<planned_convolution>(of);
    const std::string why = result->plan(handle, most);
    if (why.empty()) return result;
    why_not = graphs::first_line(why);
  } catch (const std::exception& e) {  // the front end also throws
    why_not = graphs::first_line(e.what());
  }
  return nullptr;
}

#else

std::unique_ptr<convolution_graph> make_convolution_graph(cudnnHandle_t, const convolution_case&, std::int64_t,
                                                          std::string& why_not) {
  why_not = no_frontend;
  return nullptr;
}

#endif

}  // namespace comp::cuda
