// SPDX-License-Identifier: Apache-2.0
// How strict the stand-in for cuDNN is: it refuses what the real library would refuse, and faults if the real one would
// read or write what is not there.
#include "dnn_test.hpp"

namespace comp::cuda::test {
namespace {

/// x (1,4,6,6) with weights (2,4,3,3) gives y (1,2,4,4), in FP32.
struct small_convolution {
  dnn_handle handle;
  tensor_descriptor x, y;
  filter_descriptor w;
  convolution_descriptor how;
  buffer<float> x_at{coarse(144, 1)}, w_at{coarse(72, 2)}, y_at{std::size_t{32}};

  small_convolution() {
    constexpr cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
    constexpr cudnnDataType_t type = CUDNN_DATA_FLOAT;
    CHECK(cudnnSetTensor4dDescriptor(x.get(), format, type, 1, 4, 6, 6) == CUDNN_STATUS_SUCCESS);
    CHECK(cudnnSetTensor4dDescriptor(y.get(), format, type, 1, 2, 4, 4) == CUDNN_STATUS_SUCCESS);
    CHECK(cudnnSetFilter4dDescriptor(w.get(), type, format, 2, 4, 3, 3) == CUDNN_STATUS_SUCCESS);
    CHECK(cudnnSetConvolution2dDescriptor(how.get(), 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT) ==
          CUDNN_STATUS_SUCCESS);
    CHECK(cudnnSetConvolutionMathType(how.get(), CUDNN_FMA_MATH) == CUDNN_STATUS_SUCCESS);
  }
  cudnnStatus_t run(const float* from, void* workspace = nullptr, std::size_t bytes = 0) {
    return cudnnConvolutionForward(handle.get(), &dnn_one, x.get(), from, w.get(), w_at.data(), how.get(),
                                   bytes ? CUDNN_CONVOLUTION_FWD_ALGO_GEMM : CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                                   workspace, bytes, &dnn_zero, y.get(), y_at.data());
  }
};

}  // namespace

TEST_CASE_FIXTURE(fresh_dnn, "memory that is too small, not written, or not the device's is a fault") {
  small_convolution c;
  const buffer<float> less{coarse(140, 1)}, empty{std::size_t{144}}, little{std::size_t{4}};
  alignas(16) static float host[144] = {};
  for (const float* from : {less.data(), empty.data(), static_cast<float*>(host)})
    CHECK_THROWS_AS((void)c.run(from), simt::fault);
  CHECK_THROWS_AS((void)c.run(c.x_at.data(), little.data(), 1 << 16), simt::fault);
}

TEST_CASE_FIXTURE(fresh_dnn, "a descriptor or a handle that was destroyed is a fault") {
  cudnnTensorDescriptor_t gone = nullptr;
  CHECK(cudnnCreateTensorDescriptor(&gone) == CUDNN_STATUS_SUCCESS);
  CHECK(cudnnDestroyTensorDescriptor(gone) == CUDNN_STATUS_SUCCESS);
  CHECK_THROWS_AS((void)cudnnSetTensor4dDescriptor(gone, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 1, 1), simt::fault);
  CHECK_THROWS_AS((void)cudnnDestroyTensorDescriptor(gone), simt::fault);
  CHECK(cudnnSetTensor4dDescriptor(nullptr, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 1, 1) ==
        CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
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
