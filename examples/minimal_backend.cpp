// SPDX-License-Identifier: Apache-2.0
// A trainer of one's own in under 60 lines: logistic regression that keeps its data in FP32 or, rounded, in BF16.
#include <bit>
#include <chrono>
#include <comp/comp.hpp>
#include <random>

class logistic_regression {  // models comp::Backend; save() and restore() are optional and make candidates comparable
 public:
  logistic_regression() : fp32_(rows * width), bf16_(rows * width), labels_(rows), weights_(width) {
    std::mt19937 generator{1};
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      fp32_[i] = normal(generator);
      bf16_[i] = static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(fp32_[i]) + 0x8000u) >> 16);
    }
    for (std::size_t r = 0; r < rows; ++r) labels_[r] = fp32_[r * width] + fp32_[r * width + 1] > 0;
  }
  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const comp::plan& p) { plan_ = p; }
  comp::sample run_epoch() { return run(0, rows); }
  comp::sample run_batch() { return run(next_batch_++ % (rows / batch) * batch, batch); }
  std::vector<float> save() const { return weights_; }
  void restore(const std::vector<float>& weights) { weights_ = weights; }
  std::vector<comp::precision> supported_precisions() const { return {comp::precision::fp32, comp::precision::bf16}; }

 private:
  static constexpr std::size_t rows = 8192, width = 1024, batch = 512;
  comp::sample run(std::size_t first, std::size_t count) {
    const auto begin = std::chrono::steady_clock::now();
    const bool low = plan_[0] == comp::precision::bf16;
    comp::sample got{.loss = 0};
    for (std::size_t r = first; r < first + count; ++r) {
      got.loss += (low ? step(&bf16_[r * width], labels_[r]) : step(&fp32_[r * width], labels_[r])) / double(count);
    }
    got.batches = static_cast<std::int64_t>(count / batch);
    got.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return got;
  }
  static float value(float x) { return x; }
  static float value(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }
  double step(const auto* x, bool label) {  // one step of gradient descent; returns the loss before it
    float sums[16] = {};
    for (std::size_t i = 0; i < width; ++i) sums[i % 16] += weights_[i] * value(x[i]);
    const float z = std::accumulate(sums, sums + 16, 0.0f), slope = 1 / (1 + std::exp(-z)) - float(label);
    for (std::size_t i = 0; i < width; ++i) weights_[i] -= 0.01f * slope * value(x[i]);
    return std::log1p(std::exp(label ? -z : z));
  }
  comp::op_graph graph_{
      {{.name = "linear", .kind = "linear"}, {.name = "loss", .kind = "binary_cross_entropy", .choosable = false}}};
  std::vector<float> fp32_;
  std::vector<std::uint16_t> bf16_;
  std::vector<bool> labels_;
  std::vector<float> weights_;
  std::size_t next_batch_ = 0;
  comp::plan plan_{graph_.size()};
};

int main() {
  logistic_regression trainer;
  const comp::outcome best = comp::two_stage{comp::policy::pytorch{}}.run(trainer, comp::progress_bar{});
  fmt::print("{} is {:.2f}x as fast as FP32\n", best.plan.str(), best.speedup);
}
