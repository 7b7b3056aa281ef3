// SPDX-License-Identifier: Apache-2.0
// Does an operator's size suit the matrix units of this hardware at this precision? What decides, without a search,
// that an allow-operator runs low. NVIDIA: each size of a matrix product (m, n, k), or both channel counts of a
// convolution, a multiple of 16 bytes: 8 for FP16 and BF16, 4 for TF32, 16 for FP8. CPUs: the instruction set decides,
// not the size: oneDNN blocks any size. Unknown hardware: NVIDIA's multiples. Not here: whether lowering converges (the
// search's question), which machine has a unit (core/hardware.hpp). Source: Paddle's guide to automatic mixed
// precision, section 4; NVIDIA, Matrix Multiplication Background User's Guide (Tensor Core requirements) and
// Convolutional Layers User's Guide (channels in and out).
#pragma once

#include <fmt/core.h>

#include <array>
#include <comp/core/hardware.hpp>
#include <comp/core/op_info.hpp>
#include <comp/core/precision.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace comp::policy {

/// The multiple that a size must have; 1: no matrix unit takes the format.
constexpr std::int64_t required_multiple(precision p) { return p == precision::fp32 ? 1 : 16 / traits(p).bytes; }

/// The multiple that runs fastest: 16 for FP16 and BF16 from compute capability 8.0 (Paddle's guide; NVIDIA's goes up
/// to 64, one 128-byte line), else the required one.
constexpr std::int64_t preferred_multiple(precision p, const hardware& machine) {
  const bool ampere = machine.kind == device_kind::cuda && machine.compute_capability >= 80;
  return ampere && traits(p).bytes == 2 ? 16 : required_multiple(p);
}

namespace detail {

struct named_size {
  std::string_view name;
  std::int64_t value;
};

/// What must be a multiple: the channels where they are known, else m, n and k.
constexpr std::array<named_size, 3> checked_sizes(const op_info& op) {
  if (op.channels_in == 0 && op.channels_out == 0) return {{{"m", op.m}, {"n", op.n}, {"k", op.k}}};
  return {{{"channels_in", op.channels_in}, {"channels_out", op.channels_out}, {"", 0}}};
}

/// True for the first convolution over 4 channels, for which cuDNN has kernels of its own.
constexpr bool is_four_channel_stem(const op_info& op, precision p) {
  return op.channels_in == 4 && op.producers.empty() && traits(p).bytes == 2;
}

/// Empty, or which sizes of `op` are no multiples and the padding that would make them so.
inline std::string unfit_sizes(const op_info& op, precision p) {
  const std::int64_t multiple = required_multiple(p);
  std::string unfit;
  for (const auto& [name, value] : checked_sizes(op)) {
    if (value % multiple == 0 || (name == "channels_in" && is_four_channel_stem(op, p))) continue;
    const std::int64_t padded = (value / multiple + 1) * multiple;
    unfit += fmt::format("{}{} = {} (pad to {})", unfit.empty() ? "" : ", ", name, value, padded);
  }
  return unfit.empty() ? unfit : fmt::format("{}: no multiple of {}, which {} needs", unfit, multiple, name(p));
}

}  // namespace detail

/// Empty, or why this machine has no matrix unit for `p`.
inline std::string no_unit(precision p, const hardware& machine) {
  if (p == precision::fp32) return "fp32 has no matrix unit";
  if (has_unit(p, machine)) return {};
  const matrix_unit needed = unit_for(p);
  if (machine.kind == device_kind::cpu) {
    if (needed.cpu_sets[0].empty()) return fmt::format("no CPU computes in {}", name(p));
    if (needed.cpu_sets[1].empty()) return fmt::format("this CPU has no {}", needed.cpu_sets[0]);
    return fmt::format("this CPU has neither {} nor {}", needed.cpu_sets[0], needed.cpu_sets[1]);
  }
  if (needed.capability == 0) return fmt::format("no tensor core takes {}", name(p));
  const int has = machine.compute_capability;
  return fmt::format("tensor cores take {} from compute capability {}.{} (this GPU has {}.{})", name(p),
                     needed.capability / 10, needed.capability % 10, has / 10, has % 10);
}

/// Returns: why `op` does not suit the matrix units of `machine` at `p`, a clause without a full stop; empty when it
/// suits.
/// A size of 0 is unknown and counts as suiting. An operator without any size suits while nothing at all is known of
/// it; once its shapes are known, having no contraction size means that it is no contraction.
inline std::string why_not(const op_info& op, precision p, const hardware& machine) {
  if (std::string missing = no_unit(p, machine); !missing.empty()) return missing;
  const bool sized = op.m != 0 || op.n != 0 || op.k != 0 || op.channels_in != 0 || op.channels_out != 0;
  if (!sized && !(op.inputs.empty() && op.outputs.empty()))
    return "it is no contraction: matrix units do not speed it up";
  if (machine.kind == device_kind::cpu) return {};
  return detail::unfit_sizes(op, p);
}

/// True when a matrix unit of `machine` runs `op` at `p` at full rate; see why_not.
inline bool suits_tensor_cores(const op_info& op, precision p, const hardware& machine) {
  return why_not(op, p, machine).empty();
}

}  // namespace comp::policy
