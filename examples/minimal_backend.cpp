// SPDX-License-Identifier: Apache-2.0
// A trainer of your own in under 60 lines: logistic regression, whose data is there in FP32 and, rounded, in BF16.
#include <bit>
#include <chrono>
#include <comp/comp.hpp>
#include <numeric>
#include <random>

class logistic_regression {  // models comp::Backend; what comes after run_batch() is optional
 public:
  logistic_regression() : fp32_(rows * width), weights_(width) {
    for (std::mt19937 generator{1}; float& x : fp32_) {
      x = static_cast<float>(generator() % 2001) / 1000 - 1;
      bf16_.push_back(static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) + 0x8000u) >> 16));
    }
  }
  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const comp::plan& p) { plan_ = p; }
  comp::sample run_epoch() { return next_batch_ = 0, run(0, rows); }
  comp::sample run_batch() { return run(next_batch_++ % batches_per_epoch() * batch, batch); }
  auto save() const { return std::pair{weights_, next_batch_}; }  // everything that the next losses depend on
  void restore(const auto& saved) { std::tie(weights_, next_batch_) = saved; }
  std::size_t batches_per_epoch() const { return rows / batch; }
  std::string signature() const { return "8192 rows of mt19937 1, batch 512, rate 0.01"; }
  std::vector<comp::precision> supported_precisions() const { return {comp::precision::fp32, comp::precision::bf16}; }

 private:
  static constexpr std::size_t rows = 8192, width = 1024, batch = 512;
  comp::sample run(std::size_t first, std::size_t count) {
    const auto begin = std::chrono::steady_clock::now();
    comp::sample got{.loss = 0, .batches = static_cast<std::int64_t>(count / batch)};
    for (std::size_t at = first * width; at < (first + count) * width; at += width) {
      const bool label = fp32_[at] + fp32_[at + 1] > 0;
      got.loss += (plan_[0] == comp::precision::bf16 ? step(&bf16_[at], label) : step(&fp32_[at], label)) / count;
    }
    got.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return got;
  }
  static float value(float x) { return x; }
  static float value(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }
  double step(const auto* x, bool label) {  // one step of gradient descent; returns the loss before it
    float sums[16] = {};                    // sixteen independent sums, so that the compiler can use vectors
    for (std::size_t i = 0; i < width; ++i) sums[i % 16] += weights_[i] * value(x[i]);
    const float z = std::accumulate(sums, sums + 16, 0.0F), slope = 1 / (1 + std::exp(-z)) - static_cast<float>(label);
    for (std::size_t i = 0; i < width; ++i) weights_[i] -= 0.01F * slope * value(x[i]);
    return std::log1p(std::exp(label ? -z : z));
  }
  comp::op_graph graph_{{{.name = "linear", .kind = "linear"}, {.name = "loss", .kind = "view", .choosable = false}}};
  std::vector<float> fp32_, weights_;
  std::vector<std::uint16_t> bf16_;
  std::size_t next_batch_ = 0;
  comp::plan plan_{graph_.size()};
};

int main() {
  logistic_regression trainer;
  const comp::outcome best = comp::two_stage{comp::policy::pytorch{}}.run(trainer, comp::progress_bar{});
  fmt::print("{} is {:.2f}x as fast as FP32\n", best.plan.str(), best.speedup);
}
