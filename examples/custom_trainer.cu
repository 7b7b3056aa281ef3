// SPDX-License-Identifier: Apache-2.0
// A CUDA trainer of your own in one file: its kernels, its memory, its loop. It takes only the search from comp. Read
// it from the end: main() searches a plan; the class before main() is what comp::Backend asks for; everything before
// that class is there in any trainer.
//
//   nvcc -std=c++20 -O3 -DFMT_USE_CONSTEXPR=1 -Iinclude examples/custom_trainer.cu -lfmt -o custom_trainer
//   ./custom_trainer [hidden units] [plan file]
//
// A perceptron learns ten noisy pictures of 8 x 8. Its kernels are as plain as they can be: a faster matrix product
// would change which plan is found, but not how a trainer meets comp.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <comp/comp.hpp>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using comp::precision;

/// "Out of memory" is an exception of its own, by which the search knows that other plans may fit.
void check(cudaError_t code, const char* doing) {
  if (code == cudaSuccess) return;
  const std::string text = fmt::format("{} failed (CUDA says {})", doing, cudaGetErrorString(code));
  if (code == cudaErrorMemoryAllocation) throw comp::out_of_memory{text};
  throw comp::error{text};
}

// Kernels, written once for the three types that numbers are stored in. All of them compute in FP32.

__device__ inline float load(float x) { return x; }
__device__ inline float load(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float load(__half x) { return __half2float(x); }
__device__ inline void store(float& to, float x) { to = x; }
__device__ inline void store(__nv_bfloat16& to, float x) { to = __float2bfloat16(x); }
__device__ inline void store(__half& to, float x) { to = __float2half(x); }
__device__ inline int my_index() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

template <class From, class To>
__global__ void cast_kernel(const From* from, To* to, int n) {
  if (const int i = my_index(); i < n) store(to[i], load(from[i]));
}

constexpr unsigned tile = 16;

/// to (rows,columns) = a b, tile by tile. Element (r,k) of a is at a[r * a_row + k * a_column], so that a transpose
/// needs no copy.
template <class T, class To>
__global__ void multiply_kernel(const T* a, int a_row, int a_column, const T* b, int b_row, int b_column, To* to,
                                int rows, int columns, int inner) {
  __shared__ float left[tile][tile], right[tile][tile + 1];
  const int y = static_cast<int>(threadIdx.y), x = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * tile) + y, column = static_cast<int>(blockIdx.x * tile) + x;
  float sum = 0;
  for (int first = 0; first < inner; first += static_cast<int>(tile)) {
    left[y][x] = row < rows && first + x < inner ? load(a[row * a_row + (first + x) * a_column]) : 0.0F;
    right[y][x] = column < columns && first + y < inner ? load(b[(first + y) * b_row + column * b_column]) : 0.0F;
    __syncthreads();
    for (unsigned i = 0; i < tile; ++i) sum += left[y][i] * right[i][x];
    __syncthreads();
  }
  if (row < rows && column < columns) store(to[row * columns + column], sum);
}

template <class T>
__global__ void relu_kernel(const T* x, T* y, int n) {
  if (const int i = my_index(); i < n) store(y[i], fmaxf(load(x[i]), 0.0F));
}
template <class T>
__global__ void relu_backward_kernel(const T* dy, const T* y, T* dx, int n) {
  if (const int i = my_index(); i < n) store(dx[i], load(y[i]) > 0 ? load(dy[i]) : 0.0F);
}

/// Writes the loss of each row, and `scale` times its gradient.
__global__ void cross_entropy_kernel(const float* logits, const int* label, float* loss, float* gradient, int rows,
                                     int classes, float scale) {
  const int row = my_index();
  if (row >= rows) return;
  const float* x = logits + row * classes;
  float most = x[0], total = 0;
  for (int k = 1; k < classes; ++k) most = fmaxf(most, x[k]);
  for (int k = 0; k < classes; ++k) total += expf(x[k] - most);
  loss[row] = logf(total) + most - x[label[row]];
  for (int k = 0; k < classes; ++k)
    gradient[row * classes + k] =
        scale / static_cast<float>(rows) * (expf(x[k] - most) / total - (k == label[row] ? 1.0F : 0.0F));
}

__global__ void sgd_kernel(float* weight, const float* gradient, int n, float rate) {
  if (const int i = my_index(); i < n) weight[i] -= rate * gradient[i];
}

// The host's side of the kernels.

/// Launches kernel<<<blocks, threads>>>(arguments...) and checks it.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, const Arguments&... arguments) {
  cudaLaunchConfig_t how = {};
  how.gridDim = blocks;
  how.blockDim = threads;
  check(cudaLaunchKernelEx(&how, kernel, static_cast<Parameters>(arguments)...), "launching a kernel");
}
template <class... Parameters, class... Arguments>
void launch_each(void (*kernel)(Parameters...), int n, const Arguments&... arguments) {
  launch(kernel, dim3(static_cast<unsigned>((n + 127) / 128)), dim3(128), arguments...);
}

/// A matrix in device memory. The memory has room for FP32, whatever precision the matrix is stored in now. Copies
/// share the memory.
struct matrix {
  std::shared_ptr<void> memory = {};
  int rows = 0, columns = 0;
  precision kept = precision::fp32;

  int size() const { return rows * columns; }
  std::size_t bytes() const { return sizeof(float) * static_cast<std::size_t>(size()); }
  template <class T>
  T* at() const {
    return static_cast<T*>(memory.get());
  }
  matrix as(precision p) const { return {memory, rows, columns, p}; }
  /// Returns: `count` rows of the matrix, which share its memory. Requires: it is stored in FP32.
  matrix part(int first, int count) const { return {{memory, at<float>() + first * columns}, count, columns}; }
};
matrix make(int rows, int columns) {
  matrix m{{}, rows, columns};
  void* memory = nullptr;
  check(cudaMalloc(&memory, m.bytes()), "allocating a matrix");
  m.memory = {memory, [](void* p) { (void)cudaFree(p); }};
  return m;
}
void upload(const matrix& to, const std::vector<float>& from) {
  check(cudaMemcpy(to.at<float>(), from.data(), to.bytes(), cudaMemcpyHostToDevice), "copying to the device");
}
std::vector<float> download(const matrix& from) {  // waits for the work before it
  std::vector<float> to(static_cast<std::size_t>(from.size()));
  check(cudaMemcpy(to.data(), from.at<float>(), from.bytes(), cudaMemcpyDeviceToHost), "copying from the device");
  return to;
}

/// Calls f with a number of the type that p is stored in.
template <class F>
void with(precision p, F f) {
  if (p == precision::bf16) return f(__nv_bfloat16{});
  if (p == precision::fp16) return f(__half{});
  f(0.0F);
}

/// Returns: `from` in precision p: itself if it is stored so, else its cast, which is written to `spare`.
matrix in(precision p, const matrix& from, const matrix& spare) {
  if (from.kept == p) return from;
  with(from.kept, [&](auto old) {
    with(p, [&](auto now) {
      using From = decltype(old);
      using To = decltype(now);
      launch_each(cast_kernel<From, To>, from.size(), from.at<From>(), spare.at<To>(), from.size());
    });
  });
  return spare.as(p);
}

/// Writes a b to `to`. a and b are stored in one precision, `to` in its own. a_turned and b_turned transpose.
matrix multiply(const matrix& a, bool a_turned, const matrix& b, bool b_turned, const matrix& to) {
  const int inner = a_turned ? a.rows : a.columns;
  const dim3 blocks((static_cast<unsigned>(to.columns) + tile - 1) / tile,
                    (static_cast<unsigned>(to.rows) + tile - 1) / tile);
  with(a.kept, [&](auto number) {
    with(to.kept, [&](auto result) {
      using T = decltype(number);
      using To = decltype(result);
      launch(multiply_kernel<T, To>, blocks, dim3(tile, tile), a.at<T>(), a_turned ? 1 : a.columns,
             a_turned ? a.columns : 1, b.at<T>(), b_turned ? 1 : b.columns, b_turned ? b.columns : 1, to.at<To>(),
             to.rows, to.columns, inner);
    });
  });
  return to;
}

constexpr int pixels = 64, classes = 10, batch = 64;
constexpr std::size_t epochs = 12;
constexpr float rate = 0.1F, loss_scale = 128;  // keeps small gradients above FP16's smallest number; SGD undoes it

/// x -> hidden = x w1' -> relu -> logits = relu w2' -> loss. The master weights are FP32.
class perceptron {  // models comp::Backend
 public:
  struct state {
    std::vector<float> w1, w2;
    int next = 0;
  };

  perceptron(int hidden, int examples) : hidden_{hidden}, examples_{examples / batch * batch} {
    std::mt19937 random{1};
    std::normal_distribution<float> normal;
    const auto drawn = [&](int n, float deviation) {
      std::vector<float> v(static_cast<std::size_t>(n));
      for (float& x : v) x = deviation * normal(random);
      return v;
    };
    const auto pictures = drawn(classes * pixels, 0.6F);
    auto images = drawn((examples_ + tests) * pixels, 1);
    for (int i = 0; i < examples_ + tests; ++i) {
      labels_.push_back(static_cast<int>(random() % classes));
      for (int k = 0; k < pixels; ++k)
        images[static_cast<std::size_t>(i * pixels + k)] +=
            pictures[static_cast<std::size_t>(labels_.back() * pixels + k)];
    }
    upload(images_, images);
    check(cudaMemcpy(label_.at<int>(), labels_.data(), label_.bytes(), cudaMemcpyHostToDevice), "copying labels");
    upload(w1_, drawn(w1_.size(), 0.125F));
    upload(w2_, drawn(w2_.size(), 1 / std::sqrt(static_cast<float>(hidden))));
  }

  // The members that comp needs.
  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const comp::plan& p) { plan_ = p; }
  comp::sample run_batch() { return run(1, never); }
  comp::sample run_epoch() { return run_epoch(never); }

  // Optional members, which make the search better: it can stop hopeless epochs early, start each candidate from the
  // same state, compare scores, and know the device's precisions.
  comp::sample run_epoch(const comp::stop_predicate& stop) {
    next_ = 0;
    return run(examples_ / batch, stop);
  }
  state save() const { return {download(w1_), download(w2_), next_}; }
  void restore(const state& s) {
    upload(w1_, s.w1);
    upload(w2_, s.w2);
    next_ = s.next;
  }
  /// Returns: the share of the test pictures that the network recognises.
  double validate() {
    int right = 0;
    for (int first = examples_; first < examples_ + tests; first += batch) {
      const auto logits = download(forward(first).logits);
      for (int i = 0; i < batch; ++i) {
        const auto row = logits.begin() + i * classes;
        right += std::max_element(row, row + classes) - row == labels_[static_cast<std::size_t>(first + i)];
      }
    }
    return static_cast<double>(right) / tests;
  }
  comp::hardware hardware() const {
    cudaDeviceProp device;
    check(cudaGetDeviceProperties(&device, 0), "asking what the GPU is");
    return {
        .name = device.name, .kind = comp::device_kind::cuda, .compute_capability = 10 * device.major + device.minor};
  }
  std::vector<precision> supported_precisions() const {
    const bool has_bf16 = hardware().compute_capability >= 80;
    return has_bf16 ? std::vector{precision::fp32, precision::bf16, precision::fp16}
                    : std::vector{precision::fp32, precision::fp16};
  }

 private:
  static constexpr int tests = 4 * batch;
  static bool never(const comp::sample&) { return false; }
  struct activations {
    matrix x, w2, relu, logits;  // operands and results, in the precisions that the operators used
  };

  comp::sample run(int batches, const comp::stop_predicate& stop) {
    const auto begin = std::chrono::steady_clock::now();
    comp::sample got{.loss = 0};
    double total = 0;
    while (got.batches < batches && got.ok()) {
      total += step(next_ * batch);
      next_ = (next_ + 1) % (examples_ / batch);
      got.loss = total / static_cast<double>(++got.batches);
      got.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (!std::isfinite(got.loss)) got.status = comp::status::not_finite;
      if (got.ok() && stop(got)) got.status = comp::status::stopped_early;
    }
    return got;
  }

  /// Runs each operator in its precision of the plan, with a cast between neighbours whose precisions differ.
  activations forward(int first) {
    activations a;
    a.x = in(plan_[0], images_.part(first, batch), x_cast_);
    const matrix h = multiply(a.x, false, in(plan_[0], w1_, w1_cast_), true, h_.as(plan_[0]));
    const matrix before = in(plan_[1], h, h_cast_);
    a.relu = relu_.as(plan_[1]);
    with(plan_[1], [&](auto number) {
      using T = decltype(number);
      launch_each(relu_kernel<T>, h.size(), before.at<T>(), a.relu.at<T>(), h.size());
    });
    a.w2 = in(plan_[2], w2_, w2_cast_);
    const matrix z = multiply(in(plan_[2], a.relu, relu_cast_), false, a.w2, true, logits_.as(plan_[2]));
    a.logits = in(precision::fp32, z, logits_cast_);
    return a;
  }

  /// Trains the batch that begins with example `first`. Returns: its mean loss.
  double step(int first) {
    const activations a = forward(first);
    launch_each(cross_entropy_kernel, batch, a.logits.at<float>(), label_.at<int>() + first, loss_.at<float>(),
                dz_.at<float>(), batch, classes, loss_scale);
    // Backward: a gradient is stored in the precision of its operator, except for weights, whose gradients are FP32.
    const matrix dz = in(plan_[2], dz_, dz_cast_);
    multiply(dz, true, in(plan_[2], a.relu, relu_cast_), false, dw2_);
    const matrix dy = in(plan_[1], multiply(dz, false, a.w2, false, da_.as(plan_[2])), da_cast_), dx = dh_.as(plan_[1]);
    with(plan_[1], [&](auto number) {
      using T = decltype(number);
      launch_each(relu_backward_kernel<T>, dy.size(), dy.at<T>(), a.relu.at<T>(), dx.at<T>(), dy.size());
    });
    multiply(in(plan_[0], dx, dh_cast_), true, a.x, false, dw1_);
    launch_each(sgd_kernel, w1_.size(), w1_.at<float>(), dw1_.at<float>(), w1_.size(), rate / loss_scale);
    launch_each(sgd_kernel, w2_.size(), w2_.at<float>(), dw2_.at<float>(), w2_.size(), rate / loss_scale);
    const auto losses = download(loss_);
    return std::accumulate(losses.begin(), losses.end(), 0.0) / batch;
  }

  int hidden_, examples_, next_ = 0;
  comp::op_graph graph_{{{.name = "hidden", .kind = "linear", .m = batch, .n = hidden_, .k = pixels},
                         {.name = "relu", .kind = "relu"},
                         {.name = "output", .kind = "linear", .m = batch, .n = classes, .k = hidden_},
                         {.name = "loss", .kind = "cross_entropy_loss", .choosable = false}}};
  comp::plan plan_{graph_.size()};
  std::vector<int> labels_;
  matrix images_ = make(examples_ + tests, pixels), label_ = make(examples_ + tests, 1), loss_ = make(batch, 1);
  matrix w1_ = make(hidden_, pixels), w1_cast_ = make(hidden_, pixels), dw1_ = make(hidden_, pixels);
  matrix w2_ = make(classes, hidden_), w2_cast_ = make(classes, hidden_), dw2_ = make(classes, hidden_);
  matrix x_cast_ = make(batch, pixels), h_ = make(batch, hidden_), h_cast_ = make(batch, hidden_);
  matrix relu_ = make(batch, hidden_), relu_cast_ = make(batch, hidden_), logits_ = make(batch, classes);
  matrix logits_cast_ = make(batch, classes), dz_ = make(batch, classes), dz_cast_ = make(batch, classes);
  matrix da_ = make(batch, hidden_), da_cast_ = make(batch, hidden_), dh_ = make(batch, hidden_);
  matrix dh_cast_ = make(batch, hidden_);
};

}  // namespace

int main(int argc, char** argv) try {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    fmt::print(stderr, "custom_trainer needs an NVIDIA GPU (CUDA found none): examples/minimal_backend runs without\n");
    return 1;
  }
  const int hidden = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 1024;
  const std::string file = argc > 2 ? argv[2] : "custom_trainer_plan.json";
  perceptron trainer{hidden, 16 * std::max(hidden, batch)};

  const comp::outcome best = comp::two_stage{comp::policy::pytorch{}}.run(trainer, comp::progress_bar{});
  fmt::print("{:<24}{:<8}{:>12}{:>10}\n", "plan", "", "us a batch", "x fp32");
  for (const comp::contestant& c : best.contest)
    fmt::print("{:<24}{:<8}{:>12.1f}{:>10.2f}\n", c.label, c.plan.str(), 1e6 * comp::median(c.seconds),
               c.over_fp32.ratio);
  for (std::size_t i = 0; i < best.reasons.size(); ++i)
    fmt::print("{}: {}, {}\n", trainer.graph()[i].name, comp::name(best.plan[i]), best.reasons[i].text);

  comp::save(best, file);  // a later run loads the plan and trains with it, without a search
  const comp::hardware here = trainer.hardware();
  trainer.set_precision(comp::load_plan(file, trainer.graph(), &here).plan);
  comp::sample last;
  for (std::size_t epoch = best.trained_epochs(); epoch < epochs; ++epoch) last = trainer.run_epoch();
  const double score = trainer.validate();
  fmt::print("trained with {} of {}: loss {:.4f}, {:.1f}% of the test pictures\n", best.plan.str(), file, last.loss,
             100 * score);
  return score > 0.9 ? 0 : 1;
} catch (const std::exception& problem) {
  fmt::print(stderr, "{}\n", problem.what());
  return 1;
}
