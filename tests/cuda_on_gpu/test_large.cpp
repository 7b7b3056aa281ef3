// SPDX-License-Identifier: Apache-2.0
// Sizes that only a GPU reaches in time: grids that go round more than once, and more elements than 32 bits count.
#include <cstring>

#include "../cuda_on_cpu/kernel_test.hpp"

namespace comp::cuda::test {
namespace {

constexpr stream on{};
constexpr std::size_t billion = std::size_t{1} << 30, past_32_bits = 2 * billion + 4099;

/// Whether `bytes` of device memory are free, beside some for the driver.
bool room_for(std::size_t bytes) {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "asking for free memory");
  if (free > bytes + billion / 4) return true;
  MESSAGE("left out: needs " << bytes << " bytes of device memory, free are " << free);
  return false;
}
void fill(void* to, int byte, std::size_t bytes) { check(cudaMemset(to, byte, bytes), "filling memory"); }
bf16 bits(std::uint16_t b) { return {b}; }
/// Changes one element of device memory.
template <class T>
void put(const buffer<T>& to, std::size_t at, T value) {
  check(cudaMemcpy(to.data() + at, &value, sizeof(T), cudaMemcpyHostToDevice), "writing an element");
  check(cudaStreamSynchronize(nullptr), "writing an element");  // the copy returns when the value is taken, not there
}

/// True when f(i, element) holds for each, fetched in slices.
template <class T, class F>
bool holds_for_all(const buffer<T>& of, F f) {
  constexpr std::size_t slice = std::size_t{1} << 26;
  std::vector<T> part(std::min(slice, of.size()));
  for (std::size_t from = 0; from < of.size(); from += slice) {
    const std::size_t n = std::min(slice, of.size() - from);
    check(cudaMemcpy(part.data(), of.data() + from, n * sizeof(T), cudaMemcpyDeviceToHost), "reading memory");
    for (std::size_t i = 0; i < n; ++i) {
      if (!f(from + i, part[i])) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("a grid with fewer threads than packs goes on until the end, from any address") {
  for (const std::size_t shift : {0, 1}) {
    const std::size_t n = std::size_t{3} * 4096 * 256 * 4 + 5003;  // three rounds of the largest grid, and a rest
    const std::vector<float> from = normal(n, 1);
    const buffer<float> x{from, shift};
    buffer<float> y{n, shift};
    const chain_step<float> half{.kind = step_kind::scale, .number = 0.5F};
    run_chain<float>(on, x.data(), y.data(), static_cast<index>(n), {&half, 1});
    CHECK(holds_for_all(y, [&](std::size_t i, float got) { return got == from[i] * 0.5F; }));
    const cast_job<float, bf16> job{x.data(), reinterpret_cast<bf16*>(y.data()), static_cast<index>(n)};
    cast<float, bf16>(on, {&job, 1});
    std::vector<bf16> got(n);
    check(cudaMemcpy(got.data(), y.data(), n * sizeof(bf16), cudaMemcpyDeviceToHost), "reading memory");
    CHECK(std::memcmp(got.data(), rounded<bf16>(from).data(), n * sizeof(bf16)) == 0);
  }
}

TEST_CASE("element-wise kernels count elements in 64 bits") {
  if (!room_for(past_32_bits * sizeof(bf16))) return;
  const buffer<bf16> x{past_32_bits};
  fill(x.data(), 0x40, past_32_bits * sizeof(bf16));  // 3 each
  put(x, past_32_bits - 1, bits(0xC040));             // -3
  put(x, 2 * billion, bits(0xC040));
  const chain_step<bf16> relu{.kind = step_kind::relu};
  run_chain<bf16>(on, x.data(), x.data(), static_cast<index>(past_32_bits), {&relu, 1});
  CHECK(holds_for_all(x, [&](std::size_t i, bf16 got) {
    return got.bits == (i == 2 * billion || i == past_32_bits - 1 ? 0 : 0x4040);
  }));
}

TEST_CASE("reductions count elements in 64 bits") {
  if (!room_for(2 * past_32_bits * sizeof(bf16))) return;
  const buffer<bf16> x{past_32_bits}, zeros{past_32_bits};
  fill(x.data(), 0, past_32_bits * sizeof(bf16));
  fill(zeros.data(), 0, past_32_bits * sizeof(bf16));
  put(x, 2 * billion + 1, bits(0x4040));
  put(x, past_32_bits - 1, bits(0x3F80));
  buffer<double> whole{1};
  buffer<float> scratch{most_partials};
  mse_loss<bf16>(on, x.data(), zeros.data(), static_cast<index>(past_32_bits), whole.data(), scratch.data());
  CHECK(whole.values()[0] * static_cast<double>(past_32_bits) == doctest::Approx(3 * 3 + 1));
}

TEST_CASE("the step of an optimizer counts elements in 64 bits") {
  const std::size_t n = past_32_bits;
  if (!room_for(2 * n * sizeof(float))) return;
  const buffer<float> value{n}, gradient{n};
  fill(value.data(), 0, n * sizeof(float));
  fill(gradient.data(), 0, n * sizeof(float));
  put(gradient, n - 1, 2.0F);
  put(gradient, 2 * billion, 4.0F);
  const update_job<bf16> job{value.data(), gradient.data(), nullptr, nullptr, nullptr, static_cast<index>(n)};
  sgd_step<bf16>(on, {&job, 1}, {.learning_rate = 0.5});
  CHECK(holds_for_all(value, [&](std::size_t i, float got) {
    return got == (i == n - 1 ? -1 : i == 2 * billion ? -2 : 0);
  }));
}

}  // namespace comp::cuda::test
