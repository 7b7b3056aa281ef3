// SPDX-License-Identifier: Apache-2.0
// The shim itself: of each kind of mistake one is planted, and caught with a sentence that names its place. That what
// CUDA promises holds is what the kernels' own tests need.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

namespace {

using simt::buffer;
using simt::pointer;

template <class... P, class... A>
void run(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared, const A&... a) {
  simt::launch(kernel, grid, block, shared, nullptr, simt::place::current(), a...);
}
template <class... P, class... A>
std::string fault_of(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared, const A&... a) {
  try {
    run(kernel, grid, block, shared, a...);
  } catch (const simt::fault& f) {
    return f.what();
  }
  return "no fault";
}
bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }
std::vector<int> counting(int n) {
  std::vector<int> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

__global__ void reverse_without_barrier(pointer<int> x) {
  __shared__ simt::shared_array<int, 64> kept;
  kept[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x > 31) x[threadIdx.x] = kept[63 - threadIdx.x];
}
__global__ void half_warps_synchronise(pointer<int> x, int offset) {
  __shared__ simt::shared_array<int, 32> kept;
  kept[threadIdx.x] = x[threadIdx.x];
  __syncwarp(threadIdx.x < 16 ? 0xffffU : 0xffff0000U);
  x[threadIdx.x] = kept[threadIdx.x ^ static_cast<unsigned>(offset)];
}
__global__ void reads_unwritten_shared(pointer<int> x) {
  __shared__ simt::shared_array<int, 32> kept;
  if (threadIdx.x != 3) kept[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = kept[threadIdx.x];
}
__global__ void shared_beyond_the_end(pointer<int> x) {
  __shared__ simt::shared_array<int, 31> kept;
  kept[threadIdx.x] = x[threadIdx.x];
}
__global__ void marks_its_block(pointer<unsigned> x) {
  x[static_cast<std::ptrdiff_t>(blockIdx.y) * gridDim.x + blockIdx.x] = 1U;
}
__global__ void barrier_in_a_branch() {
  if (threadIdx.x < 7) __syncthreads();
}
__global__ void shuffle_without_all() {
  if (threadIdx.x < 16) (void)__shfl_xor_sync(0xffffffffU, 1, 1);
}
__global__ void copies(pointer<const int> from, pointer<int> to, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) to[i] = from[i];
}
__global__ void all_write_one(pointer<int> to) { to[0] = static_cast<int>(blockIdx.x); }
#if !COMP_SIMT_ASAN
__global__ void raw_overrun(int* to) { to[4] = 1; }
#endif
__global__ void loads_a_pair(pointer<const float> x, int at) {
  float pair[2];
  (x + at).read_to(pair, 2, 8);
}

}  // namespace

TEST_CASE("races, reads of what nobody wrote and ends of shared memory are told with threads and places") {
  buffer<int> x{counting(64)};
  const std::string race = fault_of(reverse_without_barrier, 1, 64, 0, x.data());
  CHECK(contains(race, "race: shared element 31 is read here and written by thread (31,0,0)"));
  CHECK(contains(race, "test_shim.cpp"));
  CHECK(contains(race, "block (0,0,0), thread (32,0,0)"));
  CHECK(fault_of(half_warps_synchronise, 1, 32, 0, x.data(), 1) == "no fault");
  CHECK(contains(fault_of(half_warps_synchronise, 1, 32, 0, x.data(), 16), "race: shared element"));
  CHECK(contains(fault_of(reads_unwritten_shared, 1, 32, 0, x.data()),
                 "shared element 3 is read before this block has written it"));
  CHECK(contains(fault_of(shared_beyond_the_end, 1, 32, 0, x.data()),
                 "out of bounds: shared element 31 of 31 is written"));
}
TEST_CASE("what would hang a device is an error that names threads and lines") {
  CHECK(contains(fault_of(barrier_in_a_branch, 1, 32, 0),
                 "barrier not reached by all: thread (0,0,0) waits in __syncthreads at test_shim.cpp:"));
  CHECK(contains(fault_of(shuffle_without_all, 1, 32, 0),
                 "warp-wide call not reached by all in its mask: thread (0,0,0) waits in __shfl_xor_sync"));
  CHECK(contains(fault_of(barrier_in_a_branch, 1, 1025, 0), "invalid configuration"));
}
TEST_CASE("global memory is watched: bounds, what nobody wrote, races, alignment") {
  buffer<int> from{counting(70)}, to{70};
  run(copies, 2, 64, 0, from.data(), to.data(), 70);
  CHECK(to.values()[69] == 69);
  CHECK(contains(fault_of(copies, 2, 64, 0, from.data(), to.data(), 71),
                 "block (1,0,0), thread (6,0,0): out of bounds: global element 70 of 70 is read"));
  buffer<int> unwritten{70};
  CHECK(contains(fault_of(copies, 2, 64, 0, unwritten.data(), to.data(), 70),
                 "global element 0 is read, but nobody has written it"));
  CHECK(contains(fault_of(copies, 2, 64, 0, from.data(), static_cast<int*>(nullptr), 70), "a null pointer is written"));
  CHECK(contains(fault_of(all_write_one, 2, 1, 0, to.data()),
                 "race: global element 0 is written here and written by a thread of another block"));
  buffer<float> floats{std::vector<float>(8)};
  CHECK(fault_of(loads_a_pair, 1, 1, 0, floats.data(), 2) == "no fault");
  CHECK(contains(fault_of(loads_a_pair, 1, 1, 0, floats.data(), 3),
                 "misaligned: an address is read that is no multiple of 8"));
  int on_the_stack = 0;
  CHECK(contains(fault_of(all_write_one, 1, 1, 0, &on_the_stack), "not device memory"));
}
TEST_CASE("memory is found freed by a pointer that has used it before") {
  auto& four = simt::memory_map::common().make(4 * sizeof(int), sizeof(int));
  const simt::pointer<int> kept{reinterpret_cast<int*>(four.data())};
  CHECK(fault_of(all_write_one, 1, 1, 0, kept) == "no fault");
  simt::memory_map::common().free(four.data());
  CHECK(contains(fault_of(all_write_one, 1, 1, 0, kept), "memory is written after it was freed"));
}
#if !COMP_SIMT_ASAN  // which stops the program at this, with a report of its own
TEST_CASE("a raw pointer that runs over its allocation is caught when the launch ends") {
  auto& four = simt::memory_map::common().make(4 * sizeof(int), sizeof(int));
  auto* data = reinterpret_cast<int*>(four.data());
  CHECK(contains(fault_of(raw_overrun, 1, 1, 0, data),
                 "the guard zone of a global allocation of 16 bytes was written over"));
  CHECK_THROWS_WITH_AS(simt::memory_map::common().free(data), "the guard zone of a global allocation was written over",
                       simt::fault);
}
#endif
TEST_CASE("of a grid that is too large only the corners run, on memory that is too large") {
  const std::size_t across = (std::size_t{1} << 31) - 1, n = 3 * across;
  const simt::vast_buffer<unsigned> x{n};
  {
    const simt::only_corners_run corners;
    run(marks_its_block, dim3(static_cast<unsigned>(across), 3), 1, 0, x.data());
    CHECK(x.data()[0] == 1);
    CHECK(x.data()[1] == 0);
    CHECK(x.data()[across - 1] == 1);
    CHECK(x.data()[across] == 0);  // of the row between
    CHECK(x.data()[3 * across - 1] == 1);
  }
  CHECK(contains(fault_of(marks_its_block, dim3(1, 2), 1, 0, x.data() + n - 1), "out of bounds"));
}
