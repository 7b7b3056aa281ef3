// SPDX-License-Identifier: Apache-2.0
// In the place of backends/cuda/graphs/convolution.cpp: convolutions as comp_cuda/convolution_graphs.hpp says them,
// with sums in FP32, bias and ReLU (which makes 0 of NaN: cuDNN does not say) before the one rounding. There are three
// plans. The first is not the fastest, the last needs no workspace.
#include <algorithm>
#include <comp_cuda/convolution_graphs.hpp>

namespace comp::cuda {

namespace {

class convolution_on_cpu final : public convolution_graph {
 public:
  convolution_on_cpu(const convolution_case& of, std::int64_t most) : of_{of}, most_{most} {
    const auto laid = [&](const std::array<std::int64_t, 4>& s) {
      return simt::dnn_layout{dnn_type(of.in), s, simt::dnn_layout::strides(s, CUDNN_TENSOR_NHWC)};
    };
    sizes_ = {laid(of.x), laid(of.w), laid(of.y), CUDNN_TENSOR_NHWC, {}};
    sizes_.how = {true,
                  of.padding,
                  of.stride,
                  of.dilation,
                  of.x[1] / of.w[1],
                  CUDNN_CROSS_CORRELATION,
                  CUDNN_DATA_FLOAT,
                  CUDNN_TENSOR_OP_MATH};
  }
  int pass() const { return static_cast<int>(of_.pass); }
  bool there() const {
    const auto& rules = simt::dnn;
    return rules.graphs[static_cast<std::size_t>(pass())] && (rules.relu_graphs || !of_.relu) &&
           simt::convolvable(sizes_, static_cast<std::size_t>(pass())) == CUDNN_STATUS_SUCCESS;
  }
  std::int64_t plans() const override { return 3; }
  std::optional<std::int64_t> make(std::int64_t plan) override {
    ++simt::dnn.plans_made;
    if (workspace(plan) > most_ || std::ranges::count(simt::dnn.plans_unmade, plan)) return std::nullopt;
    return workspace(plan);
  }
  std::string run(cudnnHandle_t handle, std::int64_t plan, const convolution_places& at, void* space) const override {
    if (std::ranges::count(simt::dnn.plans_failing, plan)) return "cuDNN: asked to fail";
    if (simt::addressed(at.a, at.b, at.to) != CUDNN_STATUS_SUCCESS || (of_.bias && !at.bias)) return "cuDNN: address";
    simt::dnn.graph_runs.push_back({pass(), plan, of_.bias, of_.relu});
    const cudnnStatus_t given = simt::give_dnn(handle, [=, *this] { work(plan, at, space); });
    return given == CUDNN_STATUS_SUCCESS ? "" : "cuDNN: no work";
  }

 private:
  std::int64_t workspace(std::int64_t plan) const { return (2 - plan) * 4 * of_.y[2] * of_.y[3]; }
  void work(std::int64_t plan, const convolution_places& at, void* space) const {
    simt::device.pretended += std::chrono::hours{(plan == 1 ? 1 : 2) + (of_.bias ? simt::dnn.bias_takes : 0)};
    (void)simt::library_writes<unsigned char>(space, static_cast<std::size_t>(workspace(plan)));
    const auto &first = pass() == 1 ? sizes_.w : sizes_.x, &second = pass() == 0 ? sizes_.w : sizes_.y,
               &result = pass() == 0   ? sizes_.y
                         : pass() == 1 ? sizes_.x
                                       : sizes_.w;
    auto all = simt::convolved(sizes_, pass(), simt::tf32(simt::gather(first, at.a), sizes_.rounds()),
                               simt::tf32(simt::gather(second, at.b), sizes_.rounds()));
    const auto channels = static_cast<std::size_t>(of_.y[1]), plane = static_cast<std::size_t>(of_.y[2] * of_.y[3]);
    const float* bias = of_.bias ? simt::library_reads<float>(at.bias, channels) : nullptr;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (bias) all[i] += bias[i / plane % channels];
      if (of_.relu && !(all[i] > 0)) all[i] = 0;
    }
    simt::scatter(result, at.to, std::move(all), 1, 0);
  }
  convolution_case of_;
  std::int64_t most_;
  simt::dnn_convolution sizes_;
};

}  // namespace

std::unique_ptr<convolution_graph> make_convolution_graph(cudnnHandle_t, const convolution_case& of, std::int64_t most,
                                                          std::string& why_not) {
  auto graph = std::make_unique<convolution_on_cpu>(of, most);
  if (graph->there()) return graph;
  why_not = "cuDNN: no valid engine configs";
  return nullptr;
}

}  // namespace comp::cuda
