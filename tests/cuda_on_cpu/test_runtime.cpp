// SPDX-License-Identifier: Apache-2.0
// Memory, streams, events, prefetch and errors of the CUDA backend, against a stand-in that runs work only when
// somebody waits for it, checks arguments, and fails to order.
#include <comp_cuda/capability.hpp>
#include <comp_cuda/memory_pool.hpp>
#include <comp_cuda/prefetch.hpp>
#include <comp_cuda/streams.hpp>

#include "fresh.hpp"
#include "kernel_test.hpp"
#include "kernels/elementwise.cuh"

namespace comp::cuda::test {
namespace {

void doubled(const device_block& x, index n, cudaStream_t on) {
  const chain_step<float> step{.kind = step_kind::scale, .number = 2};
  run_chain<float>(on, static_cast<float*>(x.data()), static_cast<float*>(x.data()), n, {&step, 1});
}
std::vector<float> fetched(const device_block& x, std::size_t n) {
  std::vector<float> v(n);
  check(cudaMemcpy(v.data(), x.data(), n * sizeof(float), cudaMemcpyDeviceToHost), "fetching");
  return v;
}
/// Of 100 numbers, which the stream has still to send.
device_block sent(memory_pool& pool, const owned_stream& on, const std::vector<float>& values) {
  device_block x = pool.allocate(400, on.get());
  check(cudaMemcpyAsync(x.data(), values.data(), 400, cudaMemcpyHostToDevice, on.get()), "sending");
  return x;
}
std::span<const std::byte> bytes_of(const std::vector<float>& v) { return std::as_bytes(std::span{v}); }

TEST_CASE_FIXTURE(fresh, "a device says what it has, and warns of what it lacks") {
  capability volta{.name = "V100", .major = 7};
  CHECK(volta.supported() == std::vector<precision>{precision::fp32, precision::fp16});
  CHECK(volta.warnings() ==
        std::vector<std::string>{
            "V100 has compute capability 7.0, and BF16 and TF32 need 8.0: use FP16 with loss scaling",
            "V100 has compute capability 7.0, and the FP8 formats need 8.9: they are left out of plans"});
  const capability pascal{.name = "P100", .major = 6};
  CHECK(pascal.supported() == std::vector{precision::fp32});
  CHECK(pascal.warnings().front() ==
        "P100 has compute capability 6.0, and tensor cores for FP16 need 7.0: FP16 may save memory but not time");
  CHECK(capability{.major = 8}.has(precision::tf32));
  CHECK_FALSE(capability{.major = 8}.has(precision::fp8_e4m3));
  CHECK(capability{.major = 8, .minor = 9}.supported().size() == 6);
  CHECK(capability{.major = 10}.supported().size() == 6);  // block scales, which its tensor cores have, are not here
  CHECK(capability{.major = 9}.warnings().empty());
  const capability here = probe();
  CHECK(here.name == "stand-in");
  CHECK(here.memory_bytes == std::int64_t{1} << 30);
}

TEST_CASE_FIXTURE(fresh, "without a GPU or a driver the probe says so and names the alternative") {
  simt::device.count = 0;
  CHECK(devices() == 0);
  CHECK_THROWS_WITH_AS(
      probe(), "GPU 0 asked for (0 found by the CUDA driver): use one that is there, or the host device", error);
  simt::device.has_driver = false;
  CHECK(devices() == 0);
  CHECK_THROWS_WITH_AS(
      probe(), "GPU 0 asked for (0 found by the CUDA driver): use one that is there, or the host device", error);
  simt::device.old_driver = 11040;
  CHECK(devices() == 0);
  CHECK_THROWS_WITH_AS(probe(),
                       "GPU 0 asked for (the driver knows CUDA 11.4, and this program is of CUDA 13): update the "
                       "driver, or use the host device",
                       error);
  simt::device = {};
  CHECK_THROWS_WITH_AS(
      probe(1), "GPU 1 asked for (1 found by the CUDA driver): use one that is there, or the host device", error);
  simt::device.has_pools = false;
  CHECK_THROWS_WITH_AS(memory_pool{probe()}, "a memory pool on stand-in (its driver has none): update the driver",
                       error);
}

struct with_pool : fresh {
  memory_pool pool{probe()};
};

TEST_CASE_FIXTURE(with_pool, "a pool counts live and peak bytes, rounded to 512") {
  const owned_stream on;
  {
    const device_block a = pool.allocate(1, on.get());
    device_block b = pool.allocate(513, on.get());
    CHECK(pool.live_bytes() == 512 + 1024);
    b = {};
    CHECK(pool.live_bytes() == 512);
    CHECK(pool.peak_bytes() == 1536);
    pool.reset_peak();
    const device_block c = std::move(b), none = pool.allocate(0, on.get());
    CHECK(c.data() == nullptr);
    CHECK(none.bytes() == 0);
    CHECK(pool.peak_bytes() == 512);
  }
  CHECK(pool.live_bytes() == 0);
}

TEST_CASE_FIXTURE(fresh, "memory that a pool keeps is given back before it runs out") {
  simt::device.properties.totalGlobalMem = 1 << 20;
  memory_pool pool{probe()};
  const owned_stream on;
  pool.allocate(600 << 10, on.get());                             // freed, and kept by the driver
  const device_block other = pool.allocate(900 << 10, on.get());  // fits only once that is given back
  CHECK(other.bytes() == 900 << 10);
  CHECK_THROWS_AS(pool.allocate(200 << 10, on.get()), out_of_memory);
  try {
    pool.allocate(200 << 10, on.get());
  } catch (const out_of_memory& e) {
    CHECK(std::string{e.what()}.starts_with("allocating 204800 bytes with 921600 of 1048576 in use failed at "));
    CHECK(std::string{e.what()}.ends_with(
        "(CUDA says cudaErrorMemoryAllocation: from the stand-in): use a smaller batch or a plan that keeps less"));
  }
  CHECK(pool.live_bytes() == 900 << 10);
  CHECK(pool.allocate(100 << 10, on.get()).bytes() == 100 << 10);  // it goes on
}

TEST_CASE_FIXTURE(
    fresh, "what work that did not fit has left behind is given back before the next, for the code of libraries") {
  simt::device.properties.totalGlobalMem = 1 << 20;
  memory_pool pool{probe()};
  const owned_stream on;
  {
    const device_block most = pool.allocate(900 << 10, on.get());
    CHECK_THROWS_AS(pool.allocate(200 << 10, on.get()), out_of_memory);
  }
  const device_block next = pool.allocate(512, on.get());
  CHECK(simt::device.used == 512);
  const std::uint64_t waits = simt::device.counts.waits;
  pool.allocate(512, on.get());
  pool.allocate(512, on.get());
  CHECK(simt::device.counts.waits == waits);  // once
}

/// A pool, and a stream whose captures it is told of.
struct capturing_pool {
  memory_pool pool{probe()};
  owned_stream on;
  void begin() {
    check(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeThreadLocal), "beginning a capture");
    pool.begin_graph(on.get());
  }
  /// Returns: what the pool says of the graph, which is dropped.
  std::int64_t end() {
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(on.get(), &graph) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    return pool.end_graph();
  }
};

}  // namespace

TEST_CASE_FIXTURE(fresh, "memory of a capture that has ended goes with its graph, in another capture too") {
  capturing_pool of;
  memory_pool& pool = of.pool;
  const owned_stream& on = of.on;
  device_block before = pool.allocate(512, on.get());
  of.begin();
  device_block left = pool.allocate(512, on.get()), after = pool.allocate(512, on.get());
  of.end();
  CHECK(pool.left_of_graphs() == 2);
  of.begin();
  const device_block inside = pool.allocate(512, on.get());
  left = {};
  before = {};
  of.end();
  after = {};
  CHECK(pool.left_of_graphs() == 1);
  CHECK(pool.live_bytes() == 512);
  on.synchronize();
  CHECK(simt::device.memory.empty());
}

TEST_CASE(
    "captures and what is forgotten move no peak, and a run of a graph counts what it has at once beside the rest") {
  const fresh machine;
  capturing_pool of;
  memory_pool& pool = of.pool;
  const owned_stream& on = of.on;
  std::mt19937 draw{3};
  const auto some = [&] { return pool.allocate(static_cast<std::int64_t>(512 * (1 + draw() % 20)), on.get()); };
  std::vector<device_block> live;
  for (int round = 0; round < 40; ++round) {
    if (draw() % 3 == 0) pool.reset_peak();
    live.push_back(some());
    if (draw() % 2 == 0) live.erase(live.begin());
    const std::int64_t before = pool.live_bytes(), peak = pool.peak_bytes();
    of.begin();
    std::int64_t most = 0;
    {
      std::vector<device_block> own;
      for (int i = 0; i < 8; ++i) {
        if (draw() % 3 == 0 && !own.empty()) own.pop_back();
        own.push_back(some());
        most = std::max(most, pool.live_bytes() - before);
      }
    }
    CHECK(of.end() == most);
    CHECK(pool.live_bytes() == before);
    CHECK(pool.peak_bytes() == peak);
    pool.count_run(most);
    CHECK(pool.live_bytes() == before);
    CHECK(pool.peak_bytes() == std::max(peak, before + most));
    if (draw() % 2 == 0) pool.reset_peak();
    const std::int64_t until_now = pool.peak_bytes();
    some(), live.push_back(some());
    pool.forget_peak_since(until_now);
    CHECK(pool.peak_bytes() == std::max(until_now, pool.live_bytes()));
  }
}

TEST_CASE_FIXTURE(with_pool, "a single failed allocation is tried again, two are not") {
  const owned_stream on;
  simt::device.fail_allocation = 2;
  const device_block a = pool.allocate(100, on.get()), b = pool.allocate(100, on.get());
  CHECK(b.data() != nullptr);
  CHECK(cudaGetLastError() == cudaSuccess);  // nothing is left for the next check to find
}

TEST_CASE_FIXTURE(with_pool, "work of a stream is done in order, and other streams wait by events") {
  const owned_stream first, second;
  const event ready, done;
  const std::vector<float> values(100, 3);
  {
    device_block x = sent(pool, first, values);
    doubled(x, 100, first.get());
    first.record(ready);
    CHECK_FALSE(ready.passed());
    second.wait_for(ready);
    doubled(x, 100, second.get());
    second.record(done);
    done.wait();
    CHECK(ready.passed());
    CHECK(done.seconds_since(ready) >= 0);
    CHECK(fetched(x, 100) == std::vector<float>(100, 12));
    x.hand_to(second.get());
  }
  second.synchronize();
  CHECK(pool.live_bytes() == 0);
}

TEST_CASE_FIXTURE(with_pool, "what the stand-in is for: a forgotten wait is seen, whenever the work happened to run") {
  const std::vector<float> values(100, 3);  // until the streams have sent it
  const owned_stream first, second;
  const event ready;
  const auto expect_fault = [](const char* what, const auto& call) {
    try {
      call();
      FAIL_CHECK("no fault");
    } catch (const simt::fault& e) {
      CHECK(std::string{e.what()}.starts_with(what));
    }
  };
  /// Runs what the stream has, without the host's knowing that it has ended.
  const auto runs = [](const owned_stream& s) { simt::device.run(*s.get()); };
  device_block x = sent(pool, first, values);
  SUBCASE("a kernel beside the copy of what it reads") {
    runs(first);
    doubled(x, 100, second.get());
    expect_fault("no order between streams: memory is read by a kernel launched at ", [&] { second.synchronize(); });
    x.hand_to(first.get());
  }
  SUBCASE("memory that is freed beside its last use") {
    first.record(ready);
    second.wait_for(ready);
    doubled(x, 100, second.get());
    runs(second);
    x = {};
    expect_fault("no order between streams: memory is written by a free and ", [&] { first.synchronize(); });
  }
  SUBCASE("what the host has waited for comes before all that it gives later") {
    first.record(ready);
    ready.wait();
    doubled(x, 100, second.get());
    CHECK_NOTHROW(second.synchronize());
  }
  SUBCASE("an event stands for where it was recorded, not for what came later") {
    first.record(ready);
    doubled(x, 100, first.get());
    runs(first);
    second.wait_for(ready);
    doubled(x, 100, second.get());
    expect_fault("no order between streams: memory is read by a kernel launched at ", [&] { second.synchronize(); });
  }
  SUBCASE("memory that is not pinned is read before it was fetched") {
    std::vector<float> got(100);
    check(cudaMemcpyAsync(got.data(), x.data(), 400, cudaMemcpyDeviceToHost, first.get()), "fetching");
    CHECK(got == std::vector<float>(100));
    first.synchronize();
    CHECK(got == values);
  }
  SUBCASE("pinned memory is written before it was sent") {
    const pinned_block pinned{400};
    std::memcpy(pinned.data(), values.data(), 400);
    check(cudaMemcpyAsync(x.data(), pinned.data(), 400, cudaMemcpyHostToDevice, first.get()), "sending");
    static_cast<float*>(pinned.data())[5] = 9;
    expect_fault("pinned memory is written while a copy reads it", [&] { first.synchronize(); });
  }
}

TEST_CASE_FIXTURE(with_pool, "batches are prefetched in order, each slot only when it is free again") {
  const owned_stream compute;
  {
    prefetcher batches{pool};
    const auto batch = [](int i) {
      return std::vector<float>(static_cast<std::size_t>(10 + i), static_cast<float>(i));
    };
    batches.put(bytes_of(batch(1)));
    batches.put(bytes_of(batch(2)));
    CHECK_THROWS_WITH_AS(batches.put(bytes_of(batch(3))),
                         "one more batch is prefetched (2 wait already): take one first", error);
    for (int i = 1; i < 8; ++i) {
      device_block got = batches.take(compute);
      batches.put(bytes_of(batch(i + 2)));
      doubled(got, 10 + i, compute.get());
      compute.synchronize();
      CHECK(fetched(got, static_cast<std::size_t>(10 + i)) ==
            std::vector<float>(static_cast<std::size_t>(10 + i), static_cast<float>(2 * i)));
    }
    (void)batches.take(compute);
    (void)batches.take(compute);
    CHECK_THROWS_WITH_AS((void)batches.take(compute), "a batch is taken (0 wait): put one first", error);
    batches.put({});
    CHECK(batches.take(compute).bytes() == 0);
  }
  compute.synchronize();
  CHECK(pool.live_bytes() == 0);
}

TEST_CASE_FIXTURE(with_pool, "a batch that is dropped before it was read is freed behind what reads it") {
  const owned_stream compute;
  prefetcher batches{pool};
  batches.put(bytes_of({1, 1}));
  doubled(batches.take(compute), 2, compute.get());  // given to the stream, which has not come to it yet
  for (int i = 0; i < 3; ++i) {                      // the third waits for the second's copy, after the first's end
    batches.put(bytes_of({2, 2}));
    (void)batches.take(compute);
  }
  CHECK_NOTHROW(compute.synchronize());
}

TEST_CASE_FIXTURE(with_pool,
                  "a batch that cannot be taken is lost alone, and memory of other streams is not that of a capture") {
  const owned_stream compute;
  {
    prefetcher batches{pool};
    const owned_stream other;
    batches.put(bytes_of({1, 1}));
    check(cudaStreamBeginCapture(compute.get(), cudaStreamCaptureModeThreadLocal), "beginning a capture");
    pool.begin_graph(compute.get());
    const device_block beside = pool.allocate(8, other.get());
    CHECK_THROWS_AS((void)batches.take(compute), cuda_error);  // its copy is no part of the capture
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(compute.get(), &graph) == cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();
    pool.end_graph();
    CHECK(pool.left_of_graphs() == 0);
    for (const float i : {2.0F, 3.0F}) {
      batches.put(bytes_of({i, i}));
      const device_block got = batches.take(compute);
      compute.synchronize();
      CHECK(fetched(got, 2) == std::vector<float>{i, i});
    }
  }
  compute.synchronize();
  CHECK(pool.live_bytes() == 0);
  CHECK(simt::device.memory.empty());
}

TEST_CASE_FIXTURE(with_pool, "a launch that fails is told where it was made, and the next one runs") {
  const owned_stream on;
  device_block x = pool.allocate(400, on.get());
  check(cudaMemsetAsync(x.data(), 0, 400, on.get()), "clearing");
  simt::device.fail_launch = 1;
  CHECK_THROWS_AS(doubled(x, 100, on.get()), unsupported);
  doubled(x, 100, on.get());
  on.synchronize();
  CHECK(fetched(x, 100) == std::vector<float>(100));
}

TEST_CASE("errors after which CUDA asks for a new process are a lost device, those of code for others unsupported") {
  for (const int code : {46, 214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810}) {
    CAPTURE(code);
    CHECK(loses_device(static_cast<cudaError_t>(code)));
    CHECK_THROWS_AS(check(static_cast<cudaError_t>(code), "x"), device_lost);
  }
  for (const auto code : {cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorNotReady, cudaErrorNotSupported})
    CHECK_FALSE(loses_device(code));
  for (const auto code : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction,
                          cudaErrorUnsupportedPtxVersion, cudaErrorLaunchOutOfResources})
    CHECK_THROWS_AS(check(code, "x"), unsupported);
}

TEST_CASE_FIXTURE(
    fresh, "a library that failed since the device is lost says so, although its errors are not the runtime's last") {
  const owned_stream on;
  const auto report = [](verdict means) { check(library_status{"a library", "FAILED", 1, means}, "x"); };
  CHECK_THROWS_AS(report(verdict::failed), library_error);
  simt::device.lost = cudaErrorIllegalAddress;
  CHECK(cudaGetLastError() == cudaSuccess);  // nobody has met it yet
  CHECK_THROWS_AS(report(verdict::unsupported), unsupported);
  SUBCASE("it has failed") { CHECK_THROWS_AS(report(verdict::failed), device_lost); }
  SUBCASE("it got no memory") { CHECK_THROWS_AS(report(verdict::no_memory), device_lost); }
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
}

TEST_CASE_FIXTURE(fresh, "a lost device is told at the next wait, at every call after it, and destructors stay quiet") {
  {
    memory_pool pool{probe()};
    const owned_stream on;
    device_block x = pool.allocate(400, on.get());
    check(cudaMemsetAsync(x.data(), 0, 400, on.get()), "clearing");
    simt::device.lose_device = 2;
    doubled(x, 100, on.get());  // asynchronous: nothing is known yet
    CHECK_THROWS_AS(on.synchronize(), device_lost);
    CHECK_THROWS_AS(on.synchronize(), device_lost);
    CHECK_THROWS_AS(pool.allocate(8, on.get()), device_lost);
    CHECK_THROWS_AS(doubled(x, 100, on.get()), device_lost);
  }
}

}  // namespace comp::cuda::test
