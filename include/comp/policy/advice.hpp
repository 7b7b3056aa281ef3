// SPDX-License-Identifier: Apache-2.0
// Advice to a person on what keeps a model from using a machine's matrix units: precisions that the machine lacks,
// sizes to pad, a layout to change, too few matrix products for mixed precision to pay. Nothing is trained.
// Use before a search, or after one that found nothing faster than FP32. A search itself warns of a GPU that computes
// in no precision faster than in FP32. Source: Paddle's guide to automatic mixed precision, sections 1.1, 1.3, 1.4, 4
// and 5; tensor_core.hpp.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/tensor_core.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace comp::policy {

/// Advice on one contraction (a matrix product or a convolution) whose sizes are not the fastest.
struct size_advice {
  std::size_t op = 0;     // its index in the graph
  bool excluded = false;  // true: by the documentation no Tensor Core takes such sizes; false: it runs, but slower
  std::string text = {};  // "channels_in = 3: pad to 4"
};

/// All advice for a model on a machine, in sentences.
struct advice {
  std::vector<std::string> machine = {};  // on what the machine lacks
  std::vector<size_advice> sizes = {};    // on sizes to pad, in the order of execution
  std::vector<std::string> model = {};    // on the layout, and on whether mixed precision pays
  std::size_t contractions = 0;           // how many matrix products and convolutions the model has
  double contraction_bytes = 0;           // their share of the bytes that a forward moves; 0 if bytes are unknown
};

/// Paddle's guide says that models of little computing and much dispatching gain nothing from mixed precision. It gives
/// no number; here a model counts as one if contractions move less than this share of its bytes.
inline constexpr double light_contraction_bytes = 0.2;

/// Returns: a sentence if `machine` has no matrix unit for any precision below FP32; empty if it has one, or may have.
inline std::string no_faster_precision(const hardware& machine) {
  if (std::ranges::any_of(all_precisions, [&](precision p) { return has_unit(p, machine); })) return {};
  const int has = machine.compute_capability;
  const std::string lacks =
      machine.kind == device_kind::cpu
          ? "has none of avx512_bf16, amx_bf16 and amx_fp16, and mixed precision needs one of them"
          : fmt::format("has compute capability {}.{}, and mixed precision needs 7.0 or higher", has / 10, has % 10);
  return fmt::format("{} {}: leave it off, it would save memory but no time", machine.name, lacks);
}

/// Returns: a sentence for each thing that stands in the way of `low` on `machine`; empty if nothing does.
inline std::vector<std::string> machine_advice(const hardware& machine, precision low) {
  std::vector<std::string> all;
  if (std::string none = no_faster_precision(machine); !none.empty()) {
    all.push_back(std::move(none));
  } else if (const std::string missing = no_unit(low, machine); !missing.empty()) {
    const bool fp16_instead = machine.kind == device_kind::cuda && (low == precision::bf16 || low == precision::tf32);
    all.push_back(fmt::format("{}: {}", missing, fp16_instead ? "use fp16, with loss scaling" : "choose another"));
  }
  if (low == precision::fp16) {
    all.push_back("fp16 ends at 65504 and thins out below 2^-14: scale the loss (comp/scaling)");
  }
  return all;
}

/// Returns: which sizes of `op` to pad, and to how much; an empty text if its sizes are the fastest already.
inline size_advice advise_sizes(const op_info& op, precision low, const hardware& machine) {
  size_advice result;
  if (machine.kind == device_kind::cpu || !is_contraction(op)) return result;
  if (machine.compute_capability > 0 && machine.compute_capability < 70) return result;  // no padding helps
  const std::int64_t needed = required_multiple(low), best = preferred_multiple(low, machine);
  for (const auto& [name, value] : detail::checked_sizes(op, low)) {
    if (value % best == 0) continue;
    const bool excluded = value % needed != 0;
    // For convolutions NVIDIA asks for multiples of 8 on every GPU, and promises nothing more for 16.
    if (!excluded && is_convolution(op)) continue;
    const std::int64_t multiple = is_convolution(op) ? needed : best;
    const bool to_four = name == "channels_in" && value < 4 && detail::is_stem(op, low);
    const std::int64_t padded = to_four ? 4 : (value + multiple - 1) / multiple * multiple;
    result.excluded = result.excluded || excluded;
    result.text += fmt::format("{}{} = {}: pad to {}", result.text.empty() ? "" : ", ", name, value, padded);
  }
  return result;
}

/// Gives advice on running `graph` in `low` on `machine`.
/// Throws: `settings_error` for FP32, which needs no advice.
inline advice advise(const op_graph& graph, precision low, const hardware& machine) {
  require<settings_error>(is_low(low), "advice on {} (it is about running below fp32): choose a lower precision",
                          name(low));
  advice result{.machine = machine_advice(machine, low)};
  double moved = 0, by_contractions = 0;
  std::size_t convolutions = 0;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const op_info& op = graph[i];
    moved += static_cast<double>(op.bytes);
    if (!is_contraction(op)) continue;
    ++result.contractions;
    convolutions += is_convolution(op);
    by_contractions += static_cast<double>(op.bytes);
    if (size_advice sizes = advise_sizes(op, low, machine); !sizes.text.empty()) {
      sizes.op = i;
      result.sizes.push_back(std::move(sizes));
    }
  }
  if (moved > 0) result.contraction_bytes = by_contractions / moved;
  if (convolutions > 0 && machine.kind == device_kind::cuda) {
    result.model.push_back(
        fmt::format("{} convolutions: keep their tensors in NHWC (channels last), or each is preceded by a conversion",
                    convolutions));
  }
  if (result.contractions == 0 || (moved > 0 && result.contraction_bytes < light_contraction_bytes)) {
    result.model.push_back(fmt::format(
        "matrix products and convolutions move {:.0f}% of the bytes (the rest gains little and pays for casts): mixed "
        "precision may not pay, measure it",
        100 * result.contraction_bytes));
  }
  return result;
}

}  // namespace comp::policy
