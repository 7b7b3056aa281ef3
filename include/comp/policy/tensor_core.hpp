// SPDX-License-Identifier: Apache-2.0
// Decides whether an operator's sizes suit the matrix units of a machine in a precision. The paper's stage 1 lowers an
// operator of the whitelist without trying it if it can use Tensor Cores; this is that check.
// On NVIDIA GPUs each size of a matrix product (m, n, k), or both channel counts of a convolution, has to be a multiple
// of 16 bytes: of 8 elements in FP16 and BF16, 4 in TF32, 16 in FP8. On a CPU the instruction set alone decides,
// because oneDNN pads sizes by itself. On unknown hardware NVIDIA's multiples are asked for.
// Source: Paddle's guide to automatic mixed precision, section 4; NVIDIA, Matrix Multiplication Background User's Guide
// (Tensor Core requirements) and Convolutional Layers User's Guide (channels in and out).
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

/// Returns the number of elements of which each size must be a multiple; 1 for formats without a matrix unit.
constexpr std::int64_t required_multiple(precision p) {
  return !is_low(p) ? 1 : static_cast<std::int64_t>(16 / traits(p).bytes);
}

/// Returns the multiple that runs fastest: 16 for FP16 and BF16 from compute capability 8.0, by Paddle's guide
/// (NVIDIA's recommends up to 64, a cache line of 128 bytes); else the required multiple.
constexpr std::int64_t preferred_multiple(precision p, const hardware& machine) {
  const bool ampere = machine.kind == device_kind::cuda && machine.compute_capability >= 80;
  return ampere && traits(p).bytes == 2 ? 16 : required_multiple(p);
}

inline bool is_convolution(const op_info& op) { return op.channels_in != 0 || op.channels_out != 0; }
/// True for a matrix product or a convolution with known sizes.
inline bool is_contraction(const op_info& op) { return op.m != 0 || op.n != 0 || op.k != 0 || is_convolution(op); }

namespace detail {

struct named_size {
  std::string_view name;
  std::int64_t value;
};

/// True for a model's first convolution: over 4 channels cuDNN has kernels of its own for it.
inline bool is_stem(const op_info& op, precision p) {
  return is_convolution(op) && op.producers.empty() && traits(p).bytes == 2;
}

/// Returns the sizes that must be multiples: the channels if they are known, else m, n and k; 0 for one that fits.
inline std::array<named_size, 3> checked_sizes(const op_info& op, precision p) {
  if (!is_convolution(op)) return {{{"m", op.m}, {"n", op.n}, {"k", op.k}}};
  const bool fits = op.channels_in == 4 && is_stem(op, p);
  return {{{"channels_in", fits ? 0 : op.channels_in}, {"channels_out", op.channels_out}, {"", 0}}};
}

/// Returns: which sizes of `op` are no multiples, and what they should be padded to; empty if all are multiples.
inline std::string unfit_sizes(const op_info& op, precision p) {
  const std::int64_t multiple = required_multiple(p);
  std::string unfit;
  for (const auto& [name, value] : checked_sizes(op, p)) {
    if (value % multiple == 0) continue;
    const std::int64_t padded = (value / multiple + 1) * multiple;
    unfit += fmt::format("{}{} = {} (pad to {})", unfit.empty() ? "" : ", ", name, value, padded);
  }
  return unfit.empty() ? unfit : fmt::format("{}: no multiple of {}, which {} needs", unfit, multiple, name(p));
}

}  // namespace detail

/// Returns: why `machine` has no matrix unit for `p`; empty if it has one.
inline std::string no_unit(precision p, const hardware& machine) {
  if (!is_low(p)) return fmt::format("{} has no matrix unit", name(p));
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

/// Returns: why `op` cannot use the matrix units of `machine` in `p`, as a clause without a full stop; empty if it can.
/// A size of 0 is unknown and counts as suitable. An operator without sizes and without shapes counts as suitable too,
/// since nothing is known about it; one with shapes but without sizes is no contraction.
inline std::string why_not(const op_info& op, precision p, const hardware& machine) {
  if (std::string missing = no_unit(p, machine); !missing.empty()) return missing;
  if (!is_contraction(op) && !(op.inputs.empty() && op.outputs.empty()))
    return "it is no contraction: matrix units do not speed it up";
  if (machine.kind == device_kind::cpu) return {};
  return detail::unfit_sizes(op, p);
}

/// True if a matrix unit of `machine` can run `op` in `p`; if not, why_not() gives the reason.
inline bool suits_tensor_cores(const op_info& op, precision p, const hardware& machine) {
  return why_not(op, p, machine).empty();
}

}  // namespace comp::policy
