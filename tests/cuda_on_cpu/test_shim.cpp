// SPDX-License-Identifier: Apache-2.0
// The shim itself: what CUDA promises holds, and each planted mistake is caught with a sentence that names its place.
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

__global__ void reverse(pointer<int> x) {
  __shared__ simt::shared_array<int, 64> kept;
  kept[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  x[blockIdx.x * blockDim.x + threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}
__global__ void reverse_without_barrier(pointer<int> x) {
  __shared__ simt::shared_array<int, 64> kept;
  kept[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x > 31) x[threadIdx.x] = kept[63 - threadIdx.x];
}
__global__ void reused_too_early(pointer<int> x) {
  __shared__ simt::shared_array<int, 1> slot;
  int sum = 0;
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x == 0) slot[0] = i;
    __syncthreads();
    sum += slot[0];  // a second barrier is missing: the next round overwrites what others still read
  }
  x[threadIdx.x] = sum;
}
__global__ void warp_rotates(pointer<int> x) {
  __shared__ simt::shared_array<int, 32> kept;
  kept[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  x[threadIdx.x] = kept[(threadIdx.x + 1) % 32];
}
__global__ void warp_rotates_on_a_shuffle(pointer<int> x) {
  __shared__ simt::shared_array<int, 32> kept;
  kept[threadIdx.x] = x[threadIdx.x];
  (void)__shfl_sync(0xffffffffU, 0, 0);  // orders no memory
  x[threadIdx.x] = kept[(threadIdx.x + 1) % 32];
}
__global__ void half_warps_synchronise(pointer<int> x, int offset) {
  __shared__ simt::shared_array<int, 32> kept;
  kept[threadIdx.x] = x[threadIdx.x];
  __syncwarp(threadIdx.x < 16 ? 0xffffU : 0xffff0000U);
  x[threadIdx.x] = kept[threadIdx.x ^ static_cast<unsigned>(offset)];
}
__global__ void two_warps_on_syncwarp(pointer<int> x) {
  __shared__ simt::shared_array<int, 64> kept;
  kept[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  x[threadIdx.x] = kept[threadIdx.x ^ 32U];
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
__global__ void two_barriers() {
  if (threadIdx.x < 7) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void shuffle_without_all() {
  if (threadIdx.x < 16) (void)__shfl_xor_sync(0xffffffffU, 1, 1);
}
__global__ void barrier_against_shuffle() {
  if (threadIdx.x < 16) {
    (void)__shfl_xor_sync(0xffffffffU, 1, 1);
  } else {
    __syncthreads();
  }
}
__global__ void shuffle_from_an_absent_lane() {
  if (threadIdx.x < 8) (void)__shfl_sync(0xffU, 1, 9);
}
__global__ void shuffle_by_an_outsider() { (void)__shfl_sync(0xffU, 1, 0); }
__global__ void copies(pointer<const int> from, pointer<int> to, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) to[i] = from[i];
}
__global__ void all_write_one(pointer<int> to) { to[0] = static_cast<int>(blockIdx.x); }
__global__ void reads_what_the_next_block_writes(pointer<int> x) {
  if (threadIdx.x == 0) x[blockIdx.x] = x[(blockIdx.x + 1) % gridDim.x] + 1;
}
__global__ void adds_atomically(pointer<float> to) { atomicAdd(to, 0.5F); }
#if !COMP_SIMT_ASAN
__global__ void raw_overrun(int* to) { to[4] = 1; }
#endif
__global__ void loads_a_pair(pointer<const float> x, int at) {
  float pair[2];
  (x + at).read_to(pair, 2, 8);
}
__global__ void votes(pointer<int> out) {
  const int even = threadIdx.x % 2 == 0;
  out[threadIdx.x] = static_cast<int>(__ballot_sync(0xffffffffU, even));
}
__global__ void shuffles(pointer<int> out) {
  const int me = static_cast<int>(threadIdx.x);
  out[threadIdx.x * 4] = __shfl_sync(0xffffffffU, me, 5);
  out[threadIdx.x * 4 + 1] = __shfl_up_sync(0xffffffffU, me, 1);
  out[threadIdx.x * 4 + 2] = __shfl_xor_sync(0xffffffffU, me, 16);
  out[threadIdx.x * 4 + 3] = static_cast<int>(__shfl_sync(0xffffffffU, static_cast<double>(me) + 0.5, 3, 8) * 2);
}
__global__ void throws_something() {
  if (threadIdx.x == 3) throw std::invalid_argument{"from a kernel"};
  __syncthreads();
}

}  // namespace

TEST_CASE("votes and shuffles give what CUDA's guide says, for segments too") {
  buffer<int> v{64}, s{32 * 4};
  run(votes, 1, 64, 0, v.data());
  for (const int vote : v.values()) CHECK(static_cast<unsigned>(vote) == 0x55555555U);
  run(shuffles, 1, 32, 0, s.data());
  for (int t = 0; t < 32; ++t) {
    const auto at = static_cast<std::size_t>(t) * 4;
    CHECK(s.values()[at] == 5);
    CHECK(s.values()[at + 1] == (t == 0 ? 0 : t - 1));
    CHECK(s.values()[at + 2] == (t ^ 16));
    CHECK(s.values()[at + 3] == (t / 8 * 8 + 3) * 2 + 1);
  }
}
TEST_CASE("atomics are added up") {
  const buffer<float> sum{std::vector<float>{1}};
  run(adds_atomically, 3, 32, 0, sum.data());
  CHECK(sum.values()[0] == 49.0F);
}
TEST_CASE("a race on shared memory is found and told with both threads") {
  buffer<int> x{counting(64)};
  SUBCASE("no barrier at all") {
    const std::string f = fault_of(reverse_without_barrier, 1, 64, 0, x.data());
    CHECK(contains(f, "race: shared element 31 is read here and written by thread (31,0,0)"));
    CHECK(contains(f, "test_shim.cpp"));
    CHECK(contains(f, "block (0,0,0), thread (32,0,0)"));
  }
  SUBCASE("the barrier that protects the next round is missing") {
    const std::string f = fault_of(reused_too_early, 1, 64, 0, x.data());
    CHECK(contains(f, "race: shared element 0 is"));
    CHECK(contains(f, "after the barrier at test_shim.cpp:"));
  }
  SUBCASE("__syncwarp orders a warp") {
    run(warp_rotates, 1, 32, 0, x.data());
    CHECK(x.values()[0] == 1);
  }
  SUBCASE("a shuffle orders no memory") {
    CHECK(contains(fault_of(warp_rotates_on_a_shuffle, 1, 32, 0, x.data()), "race: shared element"));
  }
  SUBCASE("a mask orders its lanes only") {
    CHECK(fault_of(half_warps_synchronise, 1, 32, 0, x.data(), 1) == "no fault");
    CHECK(contains(fault_of(half_warps_synchronise, 1, 32, 0, x.data(), 16), "race: shared element"));
  }
  SUBCASE("__syncwarp does not order two warps") {
    CHECK(contains(fault_of(two_warps_on_syncwarp, 1, 64, 0, x.data()), "race: shared element"));
  }
}
TEST_CASE("shared memory is undefined until its block has written it, and ends where it ends") {
  buffer<int> x{counting(32)};
  CHECK(contains(fault_of(reads_unwritten_shared, 2, 32, 0, x.data()),
                 "thread (3,0,0), after the barrier at test_shim.cpp:"));
  CHECK(contains(fault_of(reads_unwritten_shared, 1, 32, 0, x.data()),
                 "shared element 3 is read before this block has written it"));
  CHECK(contains(fault_of(shared_beyond_the_end, 1, 32, 0, x.data()),
                 "out of bounds: shared element 31 of 31 is written"));
}
TEST_CASE("what would hang a device is an error that names threads and lines") {
  CHECK(contains(fault_of(barrier_in_a_branch, 1, 32, 0),
                 "barrier not reached by all: thread (0,0,0) waits in __syncthreads at test_shim.cpp:"));
  CHECK(contains(fault_of(barrier_in_a_branch, 1, 32, 0), "but thread (7,0,0) has ended"));
  CHECK(contains(fault_of(two_barriers, 1, 32, 0), "threads of one block at different barriers: thread (0,0,0)"));
  CHECK(contains(fault_of(shuffle_without_all, 1, 32, 0),
                 "warp-wide call not reached by all in its mask: thread (0,0,0) waits in __shfl_xor_sync"));
  CHECK(contains(fault_of(barrier_against_shuffle, 1, 32, 0), "deadlock: thread (0,0,0) waits in __shfl_xor_sync"));
  CHECK(contains(fault_of(shuffle_from_an_absent_lane, 1, 32, 0), "reads lane 9, which takes no part"));
  CHECK(contains(fault_of(shuffle_by_an_outsider, 1, 32, 0), "with a mask that leaves out the caller"));
  CHECK(contains(fault_of(barrier_in_a_branch, 0, 32, 0), "invalid configuration: grid (0,1,1)"));
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
  CHECK(contains(fault_of(all_write_one, 1, 2, 0, to.data()),
                 "race: global element 0 is written here and written by thread (0,0,0)"));
  CHECK(contains(fault_of(reads_what_the_next_block_writes, 3, 32, 0, to.data()),
                 "race: global element 1 is written here and read by"));
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
TEST_CASE("a kernel's own exception comes through, and the next launch is whole") {
  CHECK_THROWS_WITH_AS(run(throws_something, 2, 64, 0), "from a kernel", std::invalid_argument);
  buffer<int> x{counting(64)};
  run(reverse, 1, 64, 0, x.data());
  CHECK(x.values()[0] == 63);
}
