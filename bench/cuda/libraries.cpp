// SPDX-License-Identifier: Apache-2.0
// Matrix products and convolutions as the backend gives them to cuBLASLt and cuDNN, beside the fastest of all
// algorithms that these offer for the shape: every one that cuBLASLt's heuristics propose, whatever order it sums in,
// and every one that cuDNN measures in either order of the tensors, deterministic or not, both with up to 1 GiB of
// workspace. Forward, gradient of x and gradient of the weights, in turns with the best.
//   bench_cuda_libraries [--small] [file.json]
#include <cctype>
#include <cmath>
#include <comp_cuda/conv2d.hpp>
#include <comp_cuda/linear.hpp>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

#include "measure.hpp"

namespace comp::cuda::bench {
namespace {

/// [bytes] of workspace for the libraries' best.
std::int64_t ample(const context& c) { return std::min(std::int64_t{1} << 30, c.card().memory_bytes / 16); }
std::string upper(std::string_view name) {
  std::string all{name};
  std::ranges::transform(all, all.begin(),
                         [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return all;
}

/// Two ways to do the same, in turns.
nlohmann::json in_turns(context& c, const std::function<void()>& own, const std::function<void()>& best, int rounds) {
  const stopwatch clock;
  const cudaStream_t on = c.stream().get();
  const int repeats = clock.repeats_for(own, on);
  std::vector<double> here, there;
  for (int i = 0; i < rounds; ++i) {
    here.push_back(clock.seconds(repeats, own, on));
    there.push_back(clock.seconds(repeats, best, on));
  }
  return {{"own_seconds", median(here)},
          {"own_quartiles", quartiles(here)},
          {"best_seconds", median(there)},
          {"best_quartiles", quartiles(there)}};
}

tensor random(context& c, const shape& s, precision p, unsigned seed, order places = order::row_major) {
  const tensor made = c.make(s, p, places);
  with_storage(p, [&]<class T>(std::type_identity<T>) {
    const array<T> values = noise<T>(static_cast<std::size_t>(made.size()), seed);
    check(cudaMemcpyAsync(made.materialize(), values.data(), values.size() * sizeof(T), cudaMemcpyDeviceToDevice,
                          c.stream().get()),
          "filling a tensor");
    c.synchronize();
  });
  return made;
}

/// A product with every algorithm that cuBLASLt's heuristics know for it.
class blas_contest {
 public:
  blas_contest(context& c, const matrix_product& job)
      : c_{c},
        job_{job},
        library_{c.part<blas>()},
        how_{job.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F},
        a_{job.b.type, job.b.columns, job.b.rows, job.b.columns, 1, 0},
        b_{job.a.type, job.a.columns, job.a.rows, job.a.columns, 1, 0},
        to_{job.type, job.n(), job.m(), job.n(), 1, 0},
        workspace_{c.allocate(ample(c))} {
    how_.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{job.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N});
    how_.set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{job.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N});
    if (job.bias) {
      how_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_BIAS});
      how_.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{job.type});
      how_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, job.bias);
    }
    search_preference wish;
    wish.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_->bytes()));
    int count = 0;
    all_.resize(256);
    check(cublasLtMatmulAlgoGetHeuristic(library_.get(), how_.get(), a_.get(), b_.get(), to_.get(), to_.get(),
                                         wish.get(), static_cast<int>(all_.size()), all_.data(), &count),
          "listing cuBLASLt's algorithms");
    all_.resize(static_cast<std::size_t>(count));
    const stopwatch clock;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& one : all_) {
      if (one.state != CUBLAS_STATUS_SUCCESS || give(one) != CUBLAS_STATUS_SUCCESS) continue;
      const double time = clock.seconds(
          5, [&] { (void)give(one); }, c.stream().get());
      if (time < least) least = time, best_ = one;
    }
    require<error>(std::isfinite(least), "cuBLASLt ran none of {} algorithms (a product of {} x {} x {}): look why",
                   count, job.m(), job.n(), job.k());
  }
  std::size_t algorithms() const { return all_.size(); }
  void operator()() const { check(give(best_), "multiplying by cuBLASLt's best"); }

 private:
  cublasStatus_t give(const cublasLtMatmulHeuristicResult_t& by) const {
    return cublasLtMatmul(library_.get(), how_.get(), &job_.alpha, job_.b.at, a_.get(), job_.a.at, b_.get(), &job_.beta,
                          job_.to, to_.get(), job_.to, to_.get(), &by.algo, workspace_->materialize(),
                          static_cast<std::size_t>(workspace_->bytes()), c_.stream().get());
  }
  context& c_;
  matrix_product job_;
  blas& library_;
  product_description how_;
  matrix_layout a_, b_, to_;
  std::shared_ptr<memory> workspace_;
  std::vector<cublasLtMatmulHeuristicResult_t> all_;
  cublasLtMatmulHeuristicResult_t best_{};
};

struct linear_shape {
  index rows, inputs, outputs;
};
void measure_linear(context& c, const linear_shape& s, precision p, int rounds, nlohmann::json& rows) {
  const tensor x = random(c, {s.rows, s.inputs}, p, 1), w = random(c, {s.outputs, s.inputs}, p, 2),
               y = random(c, {s.rows, s.outputs}, p, 3), bias = random(c, {s.outputs}, p, 4);
  const tensor d_w = c.make({s.outputs, s.inputs}, precision::fp32);
  const auto type = data_type(storage_of(p));
  const bool tf32 = p == precision::tf32;
  const auto of = [&](const tensor& t, bool transposed) {
    return matrix{t.materialize(), type, t.shape()[0], t.shape()[1], transposed};
  };
  const std::pair<const char*, matrix_product> passes[] = {
      {"forward",
       {.a = of(x, false),
        .b = of(w, true),
        .to = y.materialize(),
        .type = type,
        .tf32 = tf32,
        .bias = bias.materialize()}},
      {"gradient of x", {.a = of(y, false), .b = of(w, false), .to = x.materialize(), .type = type, .tf32 = tf32}},
      {"gradient of w",
       {.a = of(y, true), .b = of(x, false), .to = d_w.materialize(), .type = CUDA_R_32F, .tf32 = tf32}}};
  for (const auto& [direction, job] : passes) {
    const blas_contest best{c, job};
    nlohmann::json row = in_turns(
        c, [&c, &product = job] { multiply(c, product); }, [&best] { best(); }, rounds);
    row.update({{"operator", "linear"},
                {"direction", direction},
                {"shape", fmt::format("{} x {} to {}", s.rows, s.inputs, s.outputs)},
                {"precision", upper(name(p))},
                {"library", "cuBLASLt"},
                {"algorithms", best.algorithms()}});
    rows.push_back(std::move(row));
  }
}

struct conv_shape {
  shape x, w;
  conv2d_options options;
  shape y() const {
    const auto side = [&](std::size_t axis) {
      return (x[axis] + 2 * options.padding[axis - 2] - w[axis]) / options.stride[axis - 2] + 1;
    };
    return {x[0], w[0], side(2), side(3)};
  }
};

/// A pass of a convolution with every algorithm that cuDNN finds, for tensors in one order.
template <conv_pass Pass>
class dnn_contest {
 public:
  dnn_contest(context& c, const conv_shape& s, precision p, order places)
      : c_{c},
        handle_{c.part<dnn>().handle()},
        x_{describe(s.x, storage_of(p), places)},
        y_{describe(s.y(), storage_of(p), places)},
        a_{random(c, Pass == conv_pass::data ? s.w : s.x, p, 1, places)},
        b_{random(c, Pass == conv_pass::forward ? s.w : s.y(), p, 2, places)},
        to_{random(c,
                   Pass == conv_pass::forward ? s.y()
                   : Pass == conv_pass::data  ? s.x
                                              : s.w,
                   p, 3, places)},
        workspace_{c.allocate(ample(c))} {
    check(cudnnSetConvolution2dDescriptor(how_.get(), dnn_size(s.options.padding[0]), dnn_size(s.options.padding[1]),
                                          dnn_size(s.options.stride[0]), dnn_size(s.options.stride[1]), 1, 1,
                                          CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
          "describing a convolution to cuDNN");
    use(p == precision::fp32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH);
    check(cudnnSetFilter4dDescriptor(w_.get(), dnn_type(storage_of(p)), dnn_format(places), dnn_size(s.w[0]),
                                     dnn_size(s.w[1]), dnn_size(s.w[2]), dnn_size(s.w[3])),
          "describing weights to cuDNN");
    int count = 0;
    check(functions::most(handle_, &count), "counting cuDNN's algorithms");
    std::vector<result> all(static_cast<std::size_t>(count));
    const auto [a, b, to] = operands();
    c.synchronize();  // cuDNN may measure on another stream
    const cudnnStatus_t status = functions::measure(
        handle_, a, a_.materialize(), b, b_.materialize(), how_.get(), to, to_.materialize(), count, &count, all.data(),
        workspace_->materialize(), static_cast<std::size_t>(workspace_->bytes()));
    if (!is_refusal(status)) check(status, "measuring cuDNN's algorithms");
    for (int i = 0; i < count && !is_refusal(status); ++i) {
      const result& one = all[static_cast<std::size_t>(i)];
      if (one.status != CUDNN_STATUS_SUCCESS || (p == precision::fp32 && one.mathType != CUDNN_FMA_MATH)) continue;
      ++algorithms_;
      if (!best_) best_ = one;  // they come sorted by time
    }
    if (best_) use(best_->mathType);
  }
  std::size_t algorithms() const { return algorithms_; }
  double found_seconds() const {
    return best_ ? static_cast<double>(best_->time) / 1e3 : std::numeric_limits<double>::infinity();
  }
  void operator()() const {
    const auto [a, b, to] = operands();
    check(functions::run(handle_, &dnn_one, a, a_.materialize(), b, b_.materialize(), how_.get(), best_->algo,
                         workspace_->materialize(), static_cast<std::size_t>(workspace_->bytes()), &dnn_zero, to,
                         to_.materialize()),
          "running cuDNN's best");
  }

 private:
  using functions = pass_functions<Pass>;
  using result = typename functions::result;
  void use(cudnnMathType_t math) const {
    check(cudnnSetConvolutionMathType(how_.get(), math), "choosing a convolution's arithmetic");
  }
  auto operands() const {
    if constexpr (Pass == conv_pass::forward) {
      return std::tuple{x_.get(), w_.get(), y_.get()};
    } else if constexpr (Pass == conv_pass::data) {
      return std::tuple{w_.get(), y_.get(), x_.get()};
    } else {
      return std::tuple{x_.get(), y_.get(), w_.get()};
    }
  }
  context& c_;
  cudnnHandle_t handle_;
  tensor_descriptor x_, y_;
  filter_descriptor w_;
  convolution_descriptor how_;
  tensor a_, b_, to_;
  std::shared_ptr<memory> workspace_;
  std::optional<result> best_;
  std::size_t algorithms_ = 0;
};

template <conv_pass Pass>
void measure_pass(context& c, const conv_shape& s, precision p, const char* direction, int rounds,
                  const std::function<void()>& own, nlohmann::json& rows) {
  const dnn_contest<Pass> plain{c, s, p, order::row_major}, last{c, s, p, order::channels_last};
  const bool by_last = last.found_seconds() < plain.found_seconds();
  require<error>(plain.algorithms() + last.algorithms() > 0,
                 "cuDNN found no algorithm (a convolution of {} by {}): look why", text(s.x), text(s.w));
  nlohmann::json row = in_turns(
      c, own, [&] { by_last ? last() : plain(); }, rounds);
  row.update({{"operator", "conv2d"},
              {"direction", direction},
              {"shape", fmt::format("{} by {}, stride {}", text(s.x), text(s.w), s.options.stride[0])},
              {"precision", upper(name(p))},
              {"library", "cuDNN"},
              {"best_order", by_last ? "channels last" : "row-major"},
              {"algorithms", plain.algorithms() + last.algorithms()}});
  rows.push_back(std::move(row));
}
void measure_conv(context& c, const conv_shape& s, precision p, int rounds, nlohmann::json& rows) {
  const order places = p == precision::fp32 ? order::row_major : order::channels_last;
  const tensor x = random(c, s.x, p, 1, places), dy = random(c, s.y(), p, 2, places);
  parameter w{s.w, random(c, s.w, precision::fp32, 3), true}, fixed{s.w, random(c, s.w, precision::fp32, 3), false};
  measure_pass<conv_pass::forward>(
      c, s, p, "forward", rounds, [&] { (void)conv2d(c, x, w, nullptr, s.options); }, rows);
  measure_pass<conv_pass::data>(
      c, s, p, "gradient of x", rounds, [&] { (void)conv2d_backward(c, dy, x, fixed, nullptr, s.options, true); },
      rows);
  measure_pass<conv_pass::weights>(
      c, s, p, "gradient of w", rounds,
      [&] {
        w.fresh = true;
        (void)conv2d_backward(c, dy, x, w, nullptr, s.options, false);
      },
      rows);
}

const std::vector<linear_shape> linears = {{8192, 768, 3072},  {8192, 3072, 768},  {8192, 768, 768},
                                           {8192, 768, 50304}, {4096, 4096, 4096}, {64, 25088, 4096}};
const std::vector<conv_shape> convolutions_measured = {
    {{64, 64, 224, 224}, {64, 64, 3, 3}, {.padding = {1, 1}}},
    {{64, 128, 112, 112}, {128, 128, 3, 3}, {.padding = {1, 1}}},
    {{64, 256, 56, 56}, {256, 256, 3, 3}, {.padding = {1, 1}}},
    {{64, 512, 28, 28}, {512, 512, 3, 3}, {.padding = {1, 1}}},
    {{1024, 64, 16, 16}, {192, 64, 3, 3}, {.padding = {1, 1}}},
    {{128, 3, 224, 224}, {64, 3, 11, 11}, {.stride = {4, 4}, .padding = {2, 2}}}};

void print(const nlohmann::json& rows, std::size_t from) {
  for (std::size_t i = from; i < rows.size(); ++i) {
    const auto& r = rows[i];
    const double own = r["own_seconds"], best = r["best_seconds"];
    fmt::print("{:<7} {:<14} {:<44} {} {:>9.1f} us, best of {:>3}: {:>9.1f} us, {:.0f}%\n",
               r["operator"].get<std::string>(), r["direction"].get<std::string>(), r["shape"].get<std::string>(),
               r["precision"].get<std::string>(), own * 1e6, r["algorithms"].get<int>(), best * 1e6, best / own * 100);
  }
}

}  // namespace
}  // namespace comp::cuda::bench

int main(int argc, char** argv) {
  using namespace comp::cuda;
  using namespace comp::cuda::bench;
  return run_main(argc, argv, "bench_cuda_libraries", [](bool small, const auto& keep) {
    context c{probe(), settings{}};
    nlohmann::json figures;
    auto& rows = figures["rows"] = nlohmann::json::array();
    failures failed;
    if (!small) warm_up();
    const int rounds = small ? 1 : 9;
    const std::vector<linear_shape> products = small ? std::vector<linear_shape>{{16, 8, 24}} : linears;
    const std::vector<conv_shape> images =
        small ? std::vector<conv_shape>{{{2, 8, 6, 6}, {16, 8, 3, 3}, {.padding = {1, 1}}}} : convolutions_measured;
    for (const comp::precision p : c.card().supported()) {
      if (comp::is_fp8(p)) continue;
      const std::size_t before = rows.size();
      for (const auto& s : products) {
        failed.hold(fmt::format("linear of {} x {} to {} in {}", s.rows, s.inputs, s.outputs, name(p)),
                    [&] { measure_linear(c, s, p, rounds, rows); });
        keep(figures);
      }
      for (const auto& s : images) {
        failed.hold(fmt::format("conv2d of {} by {} in {}", text(s.x), text(s.w), name(p)),
                    [&] { measure_conv(c, s, p, rounds, rows); });
        keep(figures);
      }
      if (!small) print(rows, before);
    }
    failed.tell();
  });
}
