// SPDX-License-Identifier: Apache-2.0
// Graphs: the rules that the stand-in enforces.
#include <comp_cuda/errors.hpp>
#include <comp_cuda/streams.hpp>

#include "fresh.hpp"
#include "kernel_test.hpp"
#include "kernels/elementwise.cuh"

namespace comp::cuda::test {
namespace {

struct test_pool {
  test_pool() {
    const cudaMemPoolProps how{cudaMemAllocationTypePinned, {cudaMemLocationTypeDevice, 0}};
    check(cudaMemPoolCreate(&pool, &how), "making a pool");
  }
  ~test_pool() { (void)cudaMemPoolDestroy(pool); }
  float* take(const owned_stream& on, std::size_t n) const {
    void* p = nullptr;
    check(cudaMallocFromPoolAsync(&p, n * sizeof(float), pool, on.get()), "allocating");
    return static_cast<float*>(p);
  }
  cudaMemPool_t pool = nullptr;
};
void scaled(const float* from, float* to, float by, const owned_stream& on, index n = 4) {
  const chain_step<float> step{.kind = step_kind::scale, .number = by};
  run_chain<float>(on.get(), from, to, n, {&step, 1});
}
void begin(const owned_stream& on) {
  check(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeThreadLocal), "beginning a capture");
}
cudaError_t end(const owned_stream& on) {
  cudaGraph_t graph = nullptr;
  const cudaError_t code = cudaStreamEndCapture(on.get(), &graph);
  CHECK((graph == nullptr) == (code != cudaSuccess));
  if (graph) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
  return code;
}

}  // namespace

TEST_CASE_FIXTURE(
    fresh, "memory of a graph keeps its address, is unwritten in each launch, and is there between its nodes only") {
  const owned_stream on;
  const test_pool pool;
  const buffer<float> x{std::vector<float>{1, 2, 3, 4}}, y{4};
  begin(on);
  float* between = pool.take(on, 4);
  scaled(x.data(), between, 2, on);
  scaled(between, y.data(), 5, on);
  CHECK(cudaFreeAsync(between, on.get()) == cudaSuccess);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(on.get(), &graph) == cudaSuccess);
  cudaGraphExec_t work = nullptr, another = nullptr;
  CHECK(cudaGraphInstantiate(&work, graph, 0) == cudaSuccess);
  CHECK(cudaGraphInstantiate(&another, graph, 0) == cudaErrorNotSupported);  // it has memory: one at a time
  (void)cudaGetLastError();
  CHECK(simt::device.used == 0);
  for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(work, on.get()) == cudaSuccess);
  on.synchronize();
  CHECK(y.values() == std::vector<float>{10, 20, 30, 40});
  CHECK(simt::device.used == 16);
  SUBCASE("used outside its graph, it is a fault") {
    scaled(between, y.data(), 1, on);
    CHECK_THROWS_AS(on.synchronize(), simt::fault);
    std::vector<float> v(4);
    CHECK(cudaMemcpyAsync(v.data(), between, 16, cudaMemcpyDeviceToHost, on.get()) == cudaSuccess);
    CHECK_THROWS_WITH_AS(on.synchronize(), "a copy touches memory of a graph that is not allocated now", simt::fault);
  }
  SUBCASE("it cannot be freed twice, nor outside") { CHECK(cudaFreeAsync(between, on.get()) == cudaErrorInvalidValue); }
  CHECK(cudaGraphExecDestroy(work) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(simt::device.used == 16);  // the driver keeps it for graphs until it is told to give it back
  CHECK(cudaDeviceGraphMemTrim(0) == cudaSuccess);
  CHECK(simt::device.used == 0);
}

TEST_CASE_FIXTURE(fresh, "what waits for the device breaks a capture, and its end says so") {
  const owned_stream on;
  const test_pool pool;
  const buffer<float> x{std::vector<float>{1, 2, 3, 4}};
  const event outside, inside;
  on.record(outside);
  float* before = pool.take(on, 4);
  std::vector<float> pageable(4);
  begin(on);
  on.record(inside);
  SUBCASE("its stream") { CHECK(cudaStreamSynchronize(on.get()) == cudaErrorStreamCaptureUnsupported); }
  SUBCASE("a question to an event of it") { CHECK(cudaEventQuery(inside.get()) == cudaErrorCapturedEvent); }
  SUBCASE("an event of something else") {  // as CUDA: it could be one that the work has to wait for
    CHECK(cudaEventSynchronize(outside.get()) == cudaErrorStreamCaptureUnsupported);
  }
  SUBCASE("a copy from pageable memory") {
    CHECK(cudaMemcpyAsync(x.data(), pageable.data(), 16, cudaMemcpyHostToDevice, on.get()) ==
          cudaErrorStreamCaptureUnsupported);
  }
  SUBCASE("pinned memory") {
    void* p = nullptr;
    CHECK(cudaMallocHost(&p, 4) == cudaErrorStreamCaptureUnsupported);
  }
  SUBCASE("an event from outside") {
    CHECK(cudaStreamWaitEvent(on.get(), outside.get(), 0) == cudaErrorStreamCaptureIsolation);
  }
  SUBCASE("freeing what it has not allocated") { CHECK(cudaFreeAsync(before, on.get()) == cudaErrorInvalidValue); }
  (void)cudaGetLastError();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CHECK(cudaStreamIsCapturing(on.get(), &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusInvalidated);
  CHECK_THROWS_AS(scaled(x.data(), x.data(), 2, on), cuda_error);
  CHECK(cudaMemsetAsync(x.data(), 0, 4, on.get()) == cudaErrorStreamCaptureInvalidated);
  CHECK(end(on) == cudaErrorStreamCaptureInvalidated);
  on.synchronize();
  CHECK(x.values() == std::vector<float>{1, 2, 3, 4});
  scaled(x.data(), x.data(), 2, on);  // the stream is as before
  CHECK(cudaFreeAsync(before, on.get()) == cudaSuccess);
  on.synchronize();
  CHECK(x.values() == std::vector<float>{2, 4, 6, 8});
}

}  // namespace comp::cuda::test
