// SPDX-License-Identifier: Apache-2.0
// Convolution, pooling and batch norm of the cuda Device against FP64, in every precision and both orders, and when
// cuDNN refuses an order or a type; how algorithms are chosen.
#include "dnn_test.hpp"

namespace comp::cuda::test {
namespace {

namespace contract = native::contract;

struct conv_case {
  shape x, w;
  conv2d_options options{};
};
const std::vector<conv_case> conv_cases{
    {{2, 3, 7, 7}, {4, 3, 3, 3}, {.padding = {1, 1}}},
    {{3, 1, 12, 12}, {6, 1, 5, 5}},
    {{1, 5, 6, 9}, {7, 5, 1, 1}},
    {{2, 4, 9, 8}, {6, 2, 3, 2}, {.stride = {2, 1}, .padding = {1, 0}, .groups = 2}},
    {{2, 6, 8, 8}, {6, 1, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}, .groups = 6}},
    {{2, 3, 11, 10}, {2, 3, 3, 3}, {.padding = {2, 1}, .dilation = {2, 3}}},
    {{2, 8, 3, 3}, {5, 8, 3, 3}},
    {{2, 3, 5, 7}, {4, 3, 3, 3}, {.stride = {3, 4}, .padding = {2, 2}}},
};

const settings calls_alone{.graph_convolutions = false};

/// One convolution with its backward, twice: gradients are overwritten first and then added to.
void check_convolution(device& d, const conv_case& k, precision p, order places) {
  CAPTURE(text(k.x));
  CAPTURE(text(k.w));
  CAPTURE(name(p));
  CAPTURE(static_cast<int>(places));
  contract::agree_on(d, [&](auto& on, contract::results& r) {
    auto w = contract::parameter_of(on, k.w, 2, p), b = contract::parameter_of(on, {k.w[0]}, 3, p);
    const double terms = static_cast<double>(elements(k.w) / k.w[0]);
    for (unsigned step = 0; step < 2; ++step) {
      const auto x = laid(on, k.x, 4 + step, p, places);
      const auto y = on.conv2d(x, w, &b, k.options);
      const double sums = (1 + step) * static_cast<double>(elements(y.shape()) / k.w[0]);
      r.keep(on, "y", y, terms, 1);
      const auto dy = laid(on, y.shape(), 8 + step, p, places);
      const auto dx = on.conv2d_backward(dy, x, w, &b, k.options, true);
      r.keep(on, "dx", dx, terms * static_cast<double>(k.w[0]));
      r.keep_gradient(on, "dw", w, sums, p, step * std::sqrt(sums));  // the first step's was rounded, too
      r.keep_gradient(on, "db", b, sums);
    }
  });
}

}  // namespace

TEST_CASE_FIXTURE(fresh_dnn, "low precision and TF32 run channels_last on tensor cores, FP32 row-major and without") {
  device d{calls_alone};
  const conv_case& k = conv_cases[0];
  for (const precision p : precisions) {
    CAPTURE(name(p));
    simt::dnn.runs.clear();
    check_convolution(d, k, p, order::row_major);
    REQUIRE(simt::dnn.runs.size() == 6);
    for (const auto& run : simt::dnn.runs) {
      CHECK(run.nhwc == (p != precision::fp32));
      CHECK((run.math == CUDNN_FMA_MATH) == (p == precision::fp32));
    }
  }
  // 1 + 2^-12 is 1 in TF32, and itself in FP32.
  auto w = d.make_parameter(std::vector<float>{1}, {1, 1, 1, 1});
  const tensor x = d.upload(std::vector<float>{1.000244140625F, 2}, {1, 1, 1, 2}, precision::fp32);
  CHECK(d.download(d.conv2d(x, w, nullptr, {})) == std::vector<float>{1.000244140625F, 2});
  CHECK(d.download(d.conv2d(d.cast(x, precision::tf32), w, nullptr, {})) == std::vector<float>{1, 2});
}

TEST_CASE_FIXTURE(fresh_dnn, "what a backward is not asked for is not computed") {
  device d{calls_alone};
  const conv_case& k = conv_cases[0];
  auto w = d.make_parameter(coarse(elements(k.w), 2), k.w, false), b = d.make_parameter(coarse(4, 3), {4}, false);
  const tensor x = d.upload(coarse(elements(k.x), 4), k.x, precision::bf16);
  const tensor y = d.conv2d(x, w, &b, k.options);
  simt::dnn.runs.clear();
  CHECK_FALSE(d.conv2d_backward(y, x, w, &b, k.options, false));
  CHECK(simt::dnn.runs.empty());
  CHECK_FALSE(w.gradient);
  CHECK_FALSE(b.gradient);
  CHECK(d.conv2d_backward(y, x, w, &b, k.options, true).shape() == k.x);
  REQUIRE(simt::dnn.runs.size() == 1);
  CHECK(simt::dnn.runs[0].pass == 1);
}

TEST_CASE_FIXTURE(fresh_dnn, "an algorithm is measured once for a shape and a precision") {
  device d{calls_alone};
  conv_case k = conv_cases[0];
  check_convolution(d, k, precision::bf16, order::row_major);
  CHECK(simt::dnn.measured == 3);
  check_convolution(d, k, precision::bf16, order::channels_last);
  CHECK(simt::dnn.measured == 3);
  check_convolution(d, k, precision::fp16, order::row_major);
  CHECK(simt::dnn.measured == 6);
  k.x[0] = 5;
  check_convolution(d, k, precision::fp16, order::row_major);
  CHECK(simt::dnn.measured == 9);
  k.options.padding = {0, 0};
  check_convolution(d, k, precision::fp16, order::row_major);
  CHECK(simt::dnn.measured == 12);
  CHECK(simt::dnn.guessed == 0);
}

TEST_CASE("the fastest deterministic algorithm within the workspace is taken") {
  const conv_case& k = conv_cases[0];
  const auto taken = [&](std::int64_t limit) {
    const fresh_dnn machine;
    device d{{.workspace_limit = limit}};
    check_convolution(d, k, precision::fp32, order::row_major);
    for (const auto& run : simt::dnn.runs) CHECK(static_cast<std::int64_t>(run.workspace) <= limit);
    CHECK(static_cast<std::int64_t>(simt::dnn.measured_in) <= limit);
    return std::array{simt::dnn.runs[0].algorithm, simt::dnn.runs[2].algorithm, simt::dnn.runs[1].algorithm};
  };
  // y and dx are 7x7, x has 3 channels: im2col is 2 * 27 * 49 * 4 bytes, the spectra four times that.
  const std::array much{5, 3, 5}, some{6, 4, 5}, little{6, 4, 1}, none{6, 4, 1};
  CHECK(taken(1 << 20) == much);
  CHECK(taken(2 * 27 * 49 * 4) == some);
  CHECK(taken(49 * 4) == little);
  CHECK(taken(0) == none);
}

TEST_CASE("where an algorithm that is listed does not run the next one does, from then on") {
  for (const auto& [measures, refusal] : {std::pair{true, CUDNN_STATUS_NOT_SUPPORTED},
                                          {false, CUDNN_STATUS_NOT_SUPPORTED},
                                          {false, CUDNN_STATUS_BAD_PARAM}}) {
    CAPTURE(measures);
    const auto taken = [measures = measures, refusal = refusal](std::array<int, 3> refused) {
      const fresh_dnn machine;
      simt::dnn.refused = refused;
      simt::dnn.refusal = refusal;
      device d{{.measure_algorithms = measures}};
      check_convolution(d, conv_cases[0], precision::fp32, order::row_major);
      CHECK(simt::dnn.measured + simt::dnn.guessed == 3);
      std::array<int, 3> all{};
      for (const auto& run : simt::dnn.runs) {
        CHECK_FALSE(run.nhwc);
        all[static_cast<std::size_t>(run.pass)] = run.algorithm;
      }
      CHECK(simt::dnn.runs.size() == 6);
      return all;
    };
    const auto best = taken({-1, -1, -1}), next = taken(best);
    for (std::size_t pass = 0; pass < 3; ++pass) CHECK(best[pass] != next[pass]);
  }
}

TEST_CASE_FIXTURE(fresh_dnn, "heuristics choose where measuring is switched off, and FP32 stays FP32") {
  device d{{.measure_algorithms = false, .graph_convolutions = false}};
  for (const conv_case& k : conv_cases) {
    for (const precision p : precisions) check_convolution(d, k, p, order::row_major);
  }
  CHECK(simt::dnn.measured == 0);
  CHECK(simt::dnn.guessed == 3 * 4 * static_cast<int>(conv_cases.size()));
  for (const auto& run : simt::dnn.runs) {
    CHECK(simt::algorithms_of(run.pass)[static_cast<std::size_t>(run.algorithm)].deterministic);
    if (!run.nhwc) CHECK(run.math == CUDNN_FMA_MATH);
  }
}

TEST_CASE_FIXTURE(fresh_dnn,
                  "a convolution that is first met in a capture is guessed, and measured when it comes outside") {
  device d;
  context& c = d.shared();
  const conv_case& k = conv_cases[1];
  auto w = d.make_parameter(coarse(elements(k.w), 2), k.w);
  const tensor x = d.upload(coarse(elements(k.x), 4), k.x, precision::fp32);
  (void)c.part<dnn>();
  (void)c.scratch(1 << 20);  // memory that is freed in a capture would have to be made in it
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(c.stream().get(), cudaStreamCaptureModeThreadLocal), "beginning");
  { const tensor y = d.conv2d(x, w, nullptr, k.options); }
  check(cudaStreamEndCapture(c.stream().get(), &graph), "ending");
  CHECK(simt::dnn.guessed == 1);
  CHECK(simt::dnn.measured == 0);
  const tensor y = d.conv2d(x, w, nullptr, k.options);
  CHECK(simt::dnn.measured == 1);
  (void)d.conv2d(x, w, nullptr, k.options);
  CHECK(simt::dnn.measured == 1);
  check(cudaGraphDestroy(graph), "destroying");
}

TEST_CASE("where there is little memory to measure in, or none, what needs no more is measured") {
  for (const std::size_t left : {8192, 2048}) {  // y takes 1568
    CAPTURE(left);
    const fresh_dnn machine;
    device d;
    const conv_case& k = conv_cases[0];
    auto w = d.make_parameter(coarse(elements(k.w), 2), k.w);
    const tensor x = d.upload(coarse(elements(k.x), 4), k.x, precision::fp32);
    d.synchronize();
    simt::device.properties.totalGlobalMem = simt::device.used + left;
    const tensor y = d.conv2d(x, w, nullptr, k.options);
    CHECK(simt::dnn.measured == 1);
    CHECK((simt::dnn.measured_in > 0) == (left > 2048));
    CHECK(simt::dnn.measured_in < left);
    CHECK(simt::dnn.runs.back().workspace == 0);
    native::reference::device exact;
    auto exact_w = exact.make_parameter(coarse(elements(k.w), 2), k.w);
    const auto want =
        exact.conv2d(exact.upload(coarse(elements(k.x), 4), k.x, precision::fp32), exact_w, nullptr, k.options);
    check_near(d.download(y), want.values(), precision::fp32);
  }
}

TEST_CASE_FIXTURE(fresh_dnn,
                  "the memory that algorithms are measured in does not count in the peak, and what they run in does") {
  device d{{.workspace_limit = 2 * 27 * 49 * 4}};  // im2col is measured, and Winograd taken
  const conv_case& k = conv_cases[0];
  auto w = d.make_parameter(coarse(elements(k.w), 2), k.w);
  const tensor x = d.upload(coarse(elements(k.x), 4), k.x, precision::fp32);
  d.shared().pool().reset_peak();
  const std::int64_t before = d.shared().pool().live_bytes();
  const tensor y = d.conv2d(x, w, nullptr, k.options);
  CHECK(simt::dnn.measured_in > 8192);
  CHECK(d.shared().pool().peak_bytes() == before + 2048);  // y
}

TEST_CASE_FIXTURE(fresh_dnn,
                  "a pass that finds no algorithm for want of memory says so, and is looked for again with more") {
  device d{calls_alone};
  const conv_case& k = conv_cases[0];
  auto w = d.make_parameter(coarse(elements(k.w), 2), k.w, false);
  const tensor x = d.upload(coarse(elements(k.x), 4), k.x, precision::bf16);
  const tensor y = in_order(d.shared(), d.conv2d(x, w, nullptr, k.options), order::channels_last);
  d.shared().drop_scratch();
  d.synchronize();
  d.shared().pool().give_back();
  const std::size_t all = std::exchange(simt::device.properties.totalGlobalMem, simt::device.used + 1100);  // dx: 1024
  CHECK_THROWS_AS((void)d.conv2d_backward(y, x, w, nullptr, k.options, true), out_of_memory);
  simt::device.properties.totalGlobalMem = all;
  CHECK(d.conv2d_backward(y, x, w, nullptr, k.options, true).order() == order::channels_last);
}

TEST_CASE("where cuDNN refuses channels_last a convolution runs row-major from then on") {
  for (const std::size_t refused : {0U, 1U, 2U}) {  // of the passes
    CAPTURE(refused);
    const fresh_dnn machine;
    simt::dnn.nhwc_convolution[refused] = false;
    if (refused == 1) simt::dnn.refusal = CUDNN_STATUS_BAD_PARAM;
    device d;
    for (const conv_case& k : conv_cases) {
      for (const precision p : precisions) {
        for (const order places : {order::row_major, order::channels_last}) {
          check_convolution(d, k, p, places);
          simt::dnn.runs.clear();
          check_convolution(d, k, p, places);
          for (const auto& run : simt::dnn.runs) CHECK_FALSE(run.nhwc);
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(fresh_dnn,
                  "weights follow the precision that they are used in, with their gradient and without losing a bit") {
  device d;
  const conv_case& k = conv_cases[0];
  const auto values = normal(static_cast<std::size_t>(elements(k.w)), 1);
  auto w = d.make_parameter(values, k.w);
  const auto x = coarse(elements(k.x), 2);
  const tensor low = d.upload(x, k.x, precision::bf16), whole = d.upload(x, k.x, precision::fp32);
  const tensor y = d.conv2d(low, w, nullptr, k.options);
  CHECK(w.value.order() == order::channels_last);
  (void)d.conv2d_backward(y, low, w, nullptr, k.options, false);
  const auto gradient = d.gradient(w);
  (void)d.conv2d(whole, w, nullptr, k.options);
  CHECK(w.value.order() == order::row_major);
  CHECK(d.values(w) == values);
  CHECK(d.gradient(w) == gradient);
}

TEST_CASE_FIXTURE(fresh_dnn, "a convolution that cuDNN does not do says what it was and how much workspace it had") {
  device d;
  auto w = d.make_parameter(coarse(4, 1), {1, 4, 1, 1});
  const tensor x = d.upload(coarse(16, 1), {1, 4, 2, 2}, precision::bf16);
  simt::device.properties.major = 7;
  CHECK(refused_with<unsupported>([&] { (void)d.conv2d(x, w, nullptr, {}); }) ==
        "conv2d of x (1,4,2,2) with weights (1,4,1,1), by a deterministic algorithm in 268435456 bytes of workspace, "
        "failed (cuDNN says CUDNN_STATUS_NOT_SUPPORTED): use another precision or size");
}

TEST_CASE_FIXTURE(fresh_dnn, "the codes of cuDNN become errors that a search can tell apart") {
  CHECK_NOTHROW(check(CUDNN_STATUS_SUCCESS, "pooling"));
  CHECK_THROWS_AS(check(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "pooling"), unsupported);
  CHECK_THROWS_AS(check(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "pooling"), out_of_memory);
  CHECK_THROWS_AS(check(CUDNN_STATUS_EXECUTION_FAILED, "pooling"), library_error);
  CHECK(refused_with<library_error>([] { check(CUDNN_STATUS_BAD_PARAM, "pooling"); }) ==
        "pooling failed (cuDNN says CUDNN_STATUS_BAD_PARAM): look up the status in the library's documentation");
  simt::dnn.said = "(n <= 0) || (c <= 0)\nfor more";
  CHECK(refused_with<library_error>([] { check(CUDNN_STATUS_BAD_PARAM, "pooling"); }) ==
        "pooling failed (cuDNN says CUDNN_STATUS_BAD_PARAM for (n <= 0) || (c <= 0)): look up the status in the "
        "library's documentation");
  CHECK(refused_with<unsupported>([] { (void)dnn_size(std::int64_t{1} << 31); }) ==
        "a size of 2147483648 (cuDNN counts in 31 bits): use a smaller batch or image");
}

}  // namespace comp::cuda::test
