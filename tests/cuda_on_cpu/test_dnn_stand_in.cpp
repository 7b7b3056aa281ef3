// SPDX-License-Identifier: Apache-2.0
// How strict the stand-in for cuDNN is: it refuses what the real library would refuse, and faults if the real one would
// read or write what is not there.
#include "dnn_test.hpp"

namespace comp::cuda::test {
namespace {

constexpr auto refused = [](cudnnStatus_t s) { return s != CUDNN_STATUS_SUCCESS && !is_unsupported(s); };

/// x (1,4,6,6) with weights (2,4,3,3) gives y (1,2,4,4), in FP32 unless it is said otherwise.
struct small_convolution {
  dnn_handle handle;
  tensor_descriptor x, y;
  filter_descriptor w;
  convolution_descriptor how;
  buffer<float> x_at{coarse(144, 1)}, w_at{coarse(72, 2)}, y_at{std::size_t{32}}, workspace{std::size_t{1} << 16};

  explicit small_convolution(cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW) {
    describe(format);
    CHECK(cudnnSetConvolution2dDescriptor(how.get(), 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT) ==
          CUDNN_STATUS_SUCCESS);
    CHECK(cudnnSetConvolutionMathType(how.get(), CUDNN_FMA_MATH) == CUDNN_STATUS_SUCCESS);
  }
  void describe(cudnnTensorFormat_t format, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    CHECK(cudnnSetTensor4dDescriptor(x.get(), format, type, 1, 4, 6, 6) == CUDNN_STATUS_SUCCESS);
    CHECK(cudnnSetTensor4dDescriptor(y.get(), format, type, 1, 2, 4, 4) == CUDNN_STATUS_SUCCESS);
    CHECK(cudnnSetFilter4dDescriptor(w.get(), type, format, 2, 4, 3, 3) == CUDNN_STATUS_SUCCESS);
  }
  cudnnStatus_t run(int algorithm = 0, std::size_t bytes = 1 << 16, const void* from = nullptr) {
    return cudnnConvolutionForward(handle.get(), &dnn_one, x.get(), from ? from : x_at.data(), w.get(), w_at.data(),
                                   how.get(), static_cast<cudnnConvolutionFwdAlgo_t>(algorithm),
                                   bytes ? workspace.data() : nullptr, bytes, &dnn_zero, y.get(), y_at.data());
  }
};

}  // namespace

TEST_CASE_FIXTURE(fresh_dnn, "a convolution is refused where its descriptors do not fit") {
  const auto after = [](auto change) {  // what a convolution is answered whose descriptors were changed
    small_convolution c;
    CHECK(change(c) == CUDNN_STATUS_SUCCESS);
    return c.run();
  };
  const auto rows = CUDNN_TENSOR_NCHW;
  CHECK(after([](auto&) { return CUDNN_STATUS_SUCCESS; }) == CUDNN_STATUS_SUCCESS);
  CHECK(after([=](auto& c) { return cudnnSetTensor4dDescriptor(c.y.get(), rows, CUDNN_DATA_FLOAT, 1, 2, 5, 4); }) ==
        CUDNN_STATUS_BAD_PARAM);
  const auto half_the_channels = [=](auto& c) {
    return cudnnSetFilter4dDescriptor(c.w.get(), CUDNN_DATA_FLOAT, rows, 2, 2, 3, 3);
  };
  CHECK(after(half_the_channels) == CUDNN_STATUS_BAD_PARAM);
  CHECK(after([=](auto& c) {
          CHECK(half_the_channels(c) == CUDNN_STATUS_SUCCESS);
          return cudnnSetConvolutionGroupCount(c.how.get(), 2);
        }) == CUDNN_STATUS_SUCCESS);
  CHECK(is_unsupported(
      after([=](auto& c) { return cudnnSetFilter4dDescriptor(c.w.get(), CUDNN_DATA_HALF, rows, 2, 4, 3, 3); })));
  CHECK(is_unsupported(after(
      [](auto& c) { return cudnnSetFilter4dDescriptor(c.w.get(), CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, 2, 4, 3, 3); })));
  CHECK(is_unsupported(after([](auto& c) {  // a true convolution, which nobody asked for
    return cudnnSetConvolution2dDescriptor(c.how.get(), 0, 0, 1, 1, 1, 1, CUDNN_CONVOLUTION, CUDNN_DATA_FLOAT);
  })));
  small_convolution c;
  CHECK(cudnnConvolutionForward(c.handle.get(), &dnn_one, tensor_descriptor{}.get(), c.x_at.data(), c.w.get(),
                                c.w_at.data(), c.how.get(), CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, nullptr, 0,
                                &dnn_zero, c.y.get(), c.y_at.data()) == CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  const auto steps = [&](int pad, int stride) {
    return cudnnSetConvolution2dDescriptor(c.how.get(), pad, 0, stride, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                           CUDNN_DATA_FLOAT);
  };
  CHECK(refused(cudnnSetTensor4dDescriptor(c.x.get(), rows, CUDNN_DATA_FLOAT, 0, 4, 6, 6)));
  CHECK(is_unsupported(cudnnSetTensor4dDescriptor(c.x.get(), rows, CUDNN_DATA_FLOAT, 70000, 4, 100, 100)));
  CHECK(refused(steps(0, 0)));
  CHECK(refused(steps(-1, 1)));
  CHECK(refused(cudnnSetConvolutionGroupCount(c.how.get(), 0)));
  CHECK(is_unsupported(after([=](auto& of) {
    of.describe(rows, CUDNN_DATA_BFLOAT16);
    simt::device.properties.major = 7;  // which has none
    return CUDNN_STATUS_SUCCESS;
  })));
}

TEST_CASE_FIXTURE(
    fresh_dnn, "a convolution is refused without its workspace, at odd addresses and by algorithms that do not do it") {
  small_convolution c;
  std::size_t needed = 0;
  CHECK(cudnnGetConvolutionForwardWorkspaceSize(c.handle.get(), c.x.get(), c.w.get(), c.how.get(), c.y.get(),
                                                CUDNN_CONVOLUTION_FWD_ALGO_GEMM, &needed) == CUDNN_STATUS_SUCCESS);
  REQUIRE(needed > 0);
  CHECK(c.run(2, needed) == CUDNN_STATUS_SUCCESS);
  CHECK(c.run(2, needed - 1) == CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
  CHECK(c.run(2, 0) == CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
  CHECK(c.run(3) == CUDNN_STATUS_BAD_PARAM);  // it is listed, and not implemented
  CHECK(is_unsupported(c.run(7)));
  CHECK(c.run(8) == CUDNN_STATUS_BAD_PARAM);
  CHECK(c.run(0, 0, c.x_at.data() + 1) == CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  c.describe(CUDNN_TENSOR_NHWC);
  CHECK(is_unsupported(c.run(2)));
}

TEST_CASE_FIXTURE(fresh_dnn, "memory that is too small, not written, or not the device's is a fault") {
  small_convolution c;
  const buffer<float> less{coarse(140, 1)}, empty{std::size_t{144}}, little{std::size_t{4}};
  alignas(16) static float host[144] = {};
  for (const float* from : {less.data(), empty.data(), static_cast<float*>(host)})
    CHECK_THROWS_AS((void)c.run(0, 0, from), simt::fault);
  CHECK_THROWS_AS((void)cudnnConvolutionForward(c.handle.get(), &dnn_one, c.x.get(), c.x_at.data(), c.w.get(),
                                                c.w_at.data(), c.how.get(), CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
                                                little.data(), 1 << 16, &dnn_zero, c.y.get(), c.y_at.data()),
                  simt::fault);
}

TEST_CASE_FIXTURE(fresh_dnn, "a descriptor or a handle that was destroyed is a fault") {
  small_convolution c;
  cudnnTensorDescriptor_t gone = nullptr;
  CHECK(cudnnCreateTensorDescriptor(&gone) == CUDNN_STATUS_SUCCESS);
  CHECK(cudnnDestroyTensorDescriptor(gone) == CUDNN_STATUS_SUCCESS);
  CHECK_THROWS_AS((void)cudnnSetTensor4dDescriptor(gone, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 1, 1), simt::fault);
  CHECK_THROWS_AS((void)cudnnDestroyTensorDescriptor(gone), simt::fault);
  CHECK(cudnnSetTensor4dDescriptor(nullptr, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 1, 1) ==
        CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
}

TEST_CASE_FIXTURE(fresh_dnn, "a measurement sorts by time, tells what is deterministic, and overwrites the result") {
  small_convolution c;
  std::vector<cudnnConvolutionBwdDataAlgoPerf_t> all(12);
  int count = 0;
  const buffer<float> dy{coarse(32, 3)}, dx{coarse(144, 4)};
  const auto before = dx.values();
  CHECK(cudnnFindConvolutionBackwardDataAlgorithmEx(c.handle.get(), c.w.get(), c.w_at.data(), c.y.get(), dy.data(),
                                                    c.how.get(), c.x.get(), dx.data(), 12, &count, all.data(),
                                                    c.workspace.data(), 64) == CUDNN_STATUS_SUCCESS);
  CHECK(count == 12);
  CHECK(dx.values() != before);
  CHECK(all[0].determinism == CUDNN_NON_DETERMINISTIC);
  bool ordinary = false, too_large = false;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i + 1].status == CUDNN_STATUS_SUCCESS) CHECK(all[i].time <= all[i + 1].time);
    ordinary = ordinary || (all[i].status == CUDNN_STATUS_SUCCESS && all[i].mathType != CUDNN_FMA_MATH);
    too_large = too_large || (all[i].memory > 64 && all[i].status != CUDNN_STATUS_SUCCESS);
  }
  CHECK(ordinary);  // the default arithmetic, with tensor cores, is tried beside the one that was set
  CHECK(too_large);
  CHECK(cudnnGetConvolutionBackwardDataAlgorithm_v7(c.handle.get(), c.w.get(), c.y.get(), c.how.get(), c.x.get(), 1,
                                                    &count, all.data()) == CUDNN_STATUS_SUCCESS);
  CHECK(count == 1);
}

TEST_CASE_FIXTURE(fresh_dnn, "a measurement does not wait for what the handle's stream has still to do") {
  small_convolution c;
  const owned_stream on;
  CHECK(cudnnSetStream(c.handle.get(), on.get()) == CUDNN_STATUS_SUCCESS);
  const buffer<float> x{std::size_t{144}};
  check(cudaMemcpyAsync(x.data(), c.x_at.data(), 144 * sizeof(float), cudaMemcpyDeviceToDevice, on.get()), "copying");
  std::vector<cudnnConvolutionFwdAlgoPerf_t> all(16);
  int count = 0;
  const auto measure = [&] {
    return cudnnFindConvolutionForwardAlgorithmEx(c.handle.get(), c.x.get(), x.data(), c.w.get(), c.w_at.data(),
                                                  c.how.get(), c.y.get(), c.y_at.data(), 16, &count, all.data(),
                                                  nullptr, 0);
  };
  CHECK_THROWS_AS((void)measure(), simt::fault);
  on.synchronize();
  CHECK(measure() == CUDNN_STATUS_SUCCESS);
}

TEST_CASE("batch norm is refused where its parts do not fit, and a backward that finds another reserve is a fault") {
  const fresh_dnn machine;
  const dnn_handle handle;
  const auto x = describe({2, 3, 2, 2}, storage::fp32, order::channels_last);
  const tensor_descriptor vectors;
  const auto spatial = CUDNN_BATCHNORM_SPATIAL, persistent = CUDNN_BATCHNORM_SPATIAL_PERSISTENT;
  CHECK(cudnnDeriveBNTensorDescriptor(vectors.get(), x.get(), spatial) == CUDNN_STATUS_SUCCESS);
  const buffer<float> in{coarse(24, 1)}, one{coarse(3, 2)}, mean{std::size_t{3}}, inverse{std::size_t{3}},
      reserve{std::size_t{3}}, out{std::size_t{24}}, d_scale{std::size_t{3}}, d_shift{std::size_t{3}};
  const buffer<float> workspace{std::size_t{64}};
  const auto train = [&](std::size_t bytes, std::size_t kept, const void* saved_inverse) {
    return cudnnBatchNormalizationForwardTrainingEx(
        handle.get(), persistent, CUDNN_BATCHNORM_OPS_BN, &dnn_one, &dnn_zero, x.get(), in.data(), nullptr, nullptr,
        x.get(), out.data(), vectors.get(), one.data(), one.data(), 1, nullptr, nullptr, 1e-5, mean.data(),
        const_cast<void*>(saved_inverse), nullptr, workspace.data(), bytes, reserve.data(), kept);
  };
  const auto back = [&] {
    return cudnnBatchNormalizationBackwardEx(handle.get(), persistent, CUDNN_BATCHNORM_OPS_BN, &dnn_one, &dnn_zero,
                                             &dnn_one, &dnn_zero, x.get(), in.data(), nullptr, nullptr, x.get(),
                                             in.data(), nullptr, nullptr, x.get(), out.data(), vectors.get(),
                                             one.data(), nullptr, d_scale.data(), d_shift.data(), 1e-5, mean.data(),
                                             inverse.data(), nullptr, workspace.data(), 192, reserve.data(), 12);
  };
  CHECK(is_unsupported(cudnnBatchNormalizationForwardTraining(
      handle.get(), spatial, &dnn_one, &dnn_zero, x.get(), in.data(), x.get(), out.data(), vectors.get(), one.data(),
      one.data(), 1, nullptr, nullptr, 1e-5, mean.data(), inverse.data())));
  CHECK(train(191, 12, inverse.data()) == CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
  CHECK(train(192, 11, inverse.data()) == CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
  CHECK(train(192, 12, nullptr) == CUDNN_STATUS_BAD_PARAM);
  CHECK(train(192, 12, inverse.data()) == CUDNN_STATUS_SUCCESS);
  CHECK(back() == CUDNN_STATUS_SUCCESS);
  reserve.data()[1] += 1;
  CHECK_THROWS_AS((void)back(), simt::fault);
  CHECK(cudnnDeriveBNTensorDescriptor(vectors.get(), x.get(), CUDNN_BATCHNORM_PER_ACTIVATION) == CUDNN_STATUS_SUCCESS);
  CHECK(train(192, 12, inverse.data()) == CUDNN_STATUS_BAD_PARAM);
}

TEST_CASE_FIXTURE(fresh_dnn, "pooling is refused where sizes do not fit, and a y that is not the maximum is a fault") {
  const dnn_handle handle;
  const pooling_descriptor windows;
  const auto set = [&](int pad) {
    return cudnnSetPooling2dDescriptor(windows.get(), CUDNN_POOLING_MAX_DETERMINISTIC, CUDNN_PROPAGATE_NAN, 2, 2, pad,
                                       pad, 2, 2);
  };
  CHECK(set(2) == CUDNN_STATUS_BAD_PARAM);
  CHECK(set(0) == CUDNN_STATUS_SUCCESS);
  const auto x = describe({1, 1, 4, 4}, storage::fp32, order::row_major),
             y = describe({1, 1, 2, 2}, storage::fp32, order::row_major);
  const buffer<float> in{coarse(16, 1)}, wrong{std::vector<float>{9, 9, 9, 9}}, out{std::size_t{16}};
  CHECK(cudnnPoolingForward(handle.get(), windows.get(), &dnn_one, x.get(), in.data(), &dnn_zero, x.get(),
                            out.data()) == CUDNN_STATUS_BAD_PARAM);
  CHECK_THROWS_AS((void)cudnnPoolingBackward(handle.get(), windows.get(), &dnn_one, y.get(), wrong.data(), y.get(),
                                             wrong.data(), x.get(), in.data(), &dnn_zero, x.get(), out.data()),
                  simt::fault);
}

TEST_CASE_FIXTURE(fresh_dnn,
                  "a tensor is added where its sizes are those of the other or 1, and its type is the same") {
  const dnn_handle handle;
  const auto y = describe({2, 3, 1, 1}, storage::fp32, order::row_major);
  const buffer<float> bias{std::vector<float>{1, 2, 3}}, to{std::vector<float>{1, 1, 1, 2, 2, 2}};
  const auto add = [&](const tensor_descriptor& of) {
    return cudnnAddTensor(handle.get(), &dnn_one, of.get(), bias.data(), &dnn_one, y.get(), to.data());
  };
  CHECK(add(describe({1, 3}, storage::fp32, order::row_major)) == CUDNN_STATUS_SUCCESS);
  CHECK(to.values() == std::vector<float>{2, 3, 4, 3, 4, 5});
  CHECK(add(describe({1, 2}, storage::fp32, order::row_major)) == CUDNN_STATUS_BAD_PARAM);
  CHECK(add(describe({1, 3}, storage::fp16, order::row_major)) == CUDNN_STATUS_BAD_PARAM);
}

TEST_CASE_FIXTURE(fresh_dnn, "a bias takes its gradient from FP32 and FP16, and not from BF16") {
  const dnn_handle handle;
  const buffer<float> dy{std::vector<float>{1, 2, 3, 4, 5, 6}}, db{std::size_t{3}};
  const auto sums = [&](storage as) {
    return cudnnConvolutionBackwardBias(handle.get(), &dnn_one, describe({2, 3, 1, 1}, as, order::row_major).get(),
                                        dy.data(), &dnn_zero, describe({1, 3}, as, order::row_major).get(), db.data());
  };
  CHECK(is_unsupported(sums(storage::bf16)));
  CHECK(sums(storage::fp32) == CUDNN_STATUS_SUCCESS);
  CHECK(db.values() == std::vector<float>{5, 7, 9});
  CHECK(sums(storage::fp16) == CUDNN_STATUS_SUCCESS);
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
