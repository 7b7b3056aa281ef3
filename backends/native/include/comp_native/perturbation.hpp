// SPDX-License-Identifier: Apache-2.0
// Moves weights in their last bits. A training from there differs from the original one as much as two FP32 trainings
// do whose operators sum in another order. By that a search knows how much of a change in the loss is no harm.
#pragma once

#include <bit>
#include <comp_native/device.hpp>
#include <comp_native/random.hpp>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace comp::native {

/// Changes about half of the values, drawn by `seed`, to the next larger or smaller FP32 number, which is half a unit
/// in the last place on average. Zeros, the largest number, and values that are not finite stay.
inline void perturb_values(std::span<float> values, std::uint64_t seed) {
  std::mt19937_64 words{seed};
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    bits = i % 32 == 0 ? words() : bits >> 2;  // two bits for each value: whether it changes, and in which direction
    const auto value = std::bit_cast<std::uint32_t>(values[i]);
    constexpr std::uint32_t magnitude = 0x7fffffff, largest = 0x7f7fffff;  // magnitudes are ordered as integers, too
    const bool moves = (value & magnitude) - 1 < largest - 1 && (bits & 1) != 0;
    const std::uint32_t by = (bits & 2) != 0 ? 1 : ~std::uint32_t{0};
    values[i] = std::bit_cast<float>(value + (moves ? by : 0));
  }
}

/// The same for parameters. The Device's low-precision copies change with them, optimizer slots do not.
template <Device D>
void perturb_weights(D& device, std::span<typename D::parameter* const> weights, std::uint64_t seed) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    std::vector<float> values = device.values(*weights[i]);
    perturb_values(values, mix_seed(seed, i));
    device.set_values(*weights[i], values);
  }
}

}  // namespace comp::native
