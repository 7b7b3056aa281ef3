// SPDX-License-Identifier: Apache-2.0
// Finds what is wrong in an examined step. Each fault is named once, at the operator whose inputs are sound and whose
// results are not; operators behind it only pass it on.
// In FP32, NaN and infinity are faults. For FP16, faults are values out of its range, a whole tensor that vanishes, and
// a constant that FP16 cannot hold. The -inf of a mask, a share of small values that vanish, and small gradients that
// loss scaling saves are no faults: healthy trainings have all three.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/names.hpp>
#include <comp/doctor/examination.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

enum class fault_kind : std::uint8_t {
  nan,
  infinity,
  overflow,
  underflow,
  constant,
  // Of many steps (history.hpp):
  dead,
  small_gradient,
  large_gradient,
  no_gradient,
  no_optimizer,
  old_gradient,
  lost_update,
  no_update,
  zero_rate,
  evaluation_mode,
  dropout,
  same_batch,
  same_loss,
  evaluation_scale,
  rank_difference,
  broadcast
};

constexpr std::string_view name(fault_kind k) {
  constexpr std::string_view names[] = {"nan",         "infinity",     "overflow",         "underflow",
                                        "constant",    "dead",         "small_gradient",   "large_gradient",
                                        "no_gradient", "no_optimizer", "old_gradient",     "lost_update",
                                        "no_update",   "zero_rate",    "evaluation_mode",  "dropout",
                                        "same_batch",  "same_loss",    "evaluation_scale", "rank_difference",
                                        "broadcast"};
  return names[static_cast<std::size_t>(k)];
}

/// One fault of a step.
struct fault {
  std::size_t entry = 0;  // the index of the examination's entry at which it begins
  std::string name = {};  // the name of that entry
  fault_kind kind = fault_kind::nan;
  bool backward = false;  // true: it is in the gradients that the operator's backward made
  std::string text = {};  // a sentence that says what is wrong, why, and what to do
  std::size_t step = 0;   // of many steps: the first that has it, from 0
};

namespace detail {

/// Returns the loss scale that a scaler would arrive at: PyTorch's initial one, halved until the largest gradient fits
/// FP16. Gradients that this scale saves from vanishing are no fault.
inline double usable_loss_scale(const examination& e) {
  float largest = 0;
  for (const examined& each : e.entries) largest = std::max(largest, each.gradients.largest);
  double scale = 65536;
  while (scale > 1 && scale * static_cast<double>(largest) >= overflows_from(precision::fp16)) scale /= 2;
  return scale;
}

/// Finds the faults of one examination.
class fault_finder {
 public:
  explicit fault_finder(const examination& e) : all_{e.entries}, scale_{usable_loss_scale(e)}, readers_(all_.size()) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      for (const std::size_t from : all_[i].inputs) readers_[from].push_back(i);
    }
  }

  /// Returns all faults: those in FP32 first, since a step that fails in FP32 has to be corrected before any precision
  /// is chosen, then those that FP16 would cause.
  std::vector<fault> find() {
    for (std::size_t i = 0; i < all_.size(); ++i) forward(i);
    // Gradients of a forward that is not finite are not finite either, which would say nothing new.
    const bool sound = std::ranges::none_of(faults_, [](const fault& f) { return f.kind <= fault_kind::infinity; });
    if (sound) not_finite_backward();
    for (std::size_t i = all_.size(); i-- > 0;) backward(i);
    std::vector<fault> all;
    for (const bool in_fp16 : {false, true}) {
      for (fault& f : faults_) {
        if ((f.kind > fault_kind::infinity) == in_fp16) all.push_back(std::move(f));
      }
    }
    return all;
  }

 private:
  static constexpr auto half = precision::fp16;

  /// True if `is` holds for an entry that entry `i` read.
  bool any_input(std::size_t i, auto is) const {
    return std::ranges::any_of(all_[i].inputs, [&](std::size_t from) { return is(all_[from]); });
  }
  void add(std::size_t i, fault_kind kind, bool backward, std::string text) {
    faults_.push_back({i, all_[i].name, kind, backward, fmt::format("\"{}\" {}", all_[i].name, text)});
  }

  /// Looks for faults of an operator's results that none of its inputs had.
  void forward(std::size_t i) {
    const examined& e = all_[i];
    if (!e.is_operator()) return read(i);
    const value_counts& v = e.values;
    const bool nan_came = any_input(i, [](const examined& from) { return from.values.nans > 0; });
    const bool inf_came = any_input(i, [](const examined& from) { return from.values.infinities > 0; });
    if (v.nans > 0 && !nan_came) {
      add(i, fault_kind::nan, false,
          fmt::format("makes {} NaN of {} values, of inputs without one ({}): {}", v.nans, v.values,
                      inf_came ? "some are infinite" : "all finite", remedy(e)));
    } else if (v.infinities > 0 && !nan_came && !inf_came && !e.fills_in_infinity()) {
      add(i, fault_kind::infinity, false,
          fmt::format("makes {} infinite of {} values, of finite inputs: {}", v.infinities, v.values, remedy(e)));
    }
    if (v.overflow(half) > 0 && !any_input(i, [](const examined& from) { return from.values.overflow(half) > 0; })) {
      add(i, fault_kind::overflow, false,
          fmt::format("makes {} of {} values that FP16 cannot hold, up to {:.3g} (its largest is 65504): keep it in "
                      "FP32 or BF16, or scale what it reads",
                      v.overflow(half), v.values, v.largest));
    }
    if (lost(v, 1) && !any_input(i, [](const examined& from) { return lost(from.values, 1); })) {
      add(i, fault_kind::underflow, false,
          fmt::format("makes values that vanish in FP16: {} of {} are 0 there, the largest is {:.3g}: keep it in FP32 "
                      "or BF16, or scale what it reads",
                      v.vanish(half), v.counted(), v.largest));
    }
    constants(i);
  }

  /// Looks for faults of a parameter or an input, which no operator made.
  void read(std::size_t i) {
    const value_counts& v = all_[i].values;
    const bool parameter = all_[i].kind == "parameter";
    if (v.nans > 0 || (parameter && v.infinities > 0)) {
      add(i, v.nans > 0 ? fault_kind::nan : fault_kind::infinity, false,
          fmt::format("holds {} NaN and {} infinite of {} values before anything is computed: {}", v.nans, v.infinities,
                      v.values,
                      parameter ? "go back to a checkpoint before it, and look at the update that made it"
                                : "look at where the batch comes from"));
    }
    if (parameter && (v.overflow(half) > 0 || lost(v, 1))) {
      add(i, v.overflow(half) > 0 ? fault_kind::overflow : fault_kind::underflow, false,
          fmt::format("does not fit FP16: its values go from {:.3g} to {:.3g}: keep what reads it in FP32 or BF16, or "
                      "scale it",
                      v.smallest, v.largest));
    }
  }

  /// Looks for a constant that FP16 makes 0 or infinite, as an epsilon of 1e-8. A constant 0 or infinity is intended.
  void constants(std::size_t i) {
    for (const double c : all_[i].constants) {
      const double size = std::abs(c);
      if (c == 0 || !std::isfinite(c)) continue;
      const bool vanishes = size <= smallest_subnormal(half) / 2, overflows = size >= overflows_from(half);
      if (!vanishes && !overflows) continue;
      return add(i, fault_kind::constant, false,
                 fmt::format("has the number {:.3g}, which is {} in FP16: {}", c, vanishes ? "0" : "infinite",
                             vanishes ? "use 1e-6 or more, or keep it in FP32 or BF16"
                                      : "use one of at most 65504, or keep it in FP32 or BF16"));
    }
  }

  /// Names the backward that ran first of those whose gradients are not finite. Later ones read its gradients, so
  /// theirs follow from it.
  void not_finite_backward() {
    std::size_t first = all_.size();
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].gradients.finite() || all_[i].backward == 0) continue;
      if (first == all_.size() || all_[i].backward < all_[first].backward) first = i;
    }
    if (first == all_.size()) return;
    const value_counts& g = all_[first].gradients;
    add(first, g.nans > 0 ? fault_kind::nan : fault_kind::infinity, true,
        fmt::format("makes {} NaN and {} infinite of {} gradients, while all results are finite: {}", g.nans,
                    g.infinities, g.values, remedy(all_[first])));
  }

  /// Looks for gradients that FP16 cannot hold and that this operator's backward made.
  void backward(std::size_t i) {
    const value_counts& g = all_[i].gradients;
    if (g.overflow(half) > 0 && !came(i, [](const value_counts& c) { return c.overflow(half) > 0; })) {
      add(i, fault_kind::overflow, true,
          fmt::format("makes gradients up to {:.3g}, which FP16 cannot hold (its largest is 65504): keep it in FP32 or "
                      "BF16, or scale the loss down",
                      g.largest));
    }
    if (lost(g, scale_) && !came(i, [&](const value_counts& c) { return lost(c, scale_); })) {
      add(i, fault_kind::underflow, true,
          fmt::format("makes gradients that vanish in FP16: the largest is {:.3g}, {} of {} are 0 there with a loss "
                      "scale of {:.0f}, which the others allow: keep it in FP32 or BF16",
                      g.largest, g.below(lowest(scale_)), g.counted(), scale_));
    }
  }
  /// True if `is` holds for the gradients of all operators that read this one's results, so it is not the cause.
  bool came(std::size_t i, auto is) const {
    bool any = false;
    for (const std::size_t reader : readers_[i]) {
      if (all_[reader].gradients.values == 0) continue;
      if (!is(all_[reader].gradients)) return false;
      any = true;
    }
    return any;
  }

  /// Returns the exponent below which values become 0 in FP16 once they were multiplied by `scale`.
  static int lowest(double scale) { return std::ilogb(smallest_subnormal(half) / scale) - 1; }
  /// True if a tensor vanishes in FP16 as a whole: more than half of its values become 0, and none is a normal number.
  static bool lost(const value_counts& v, double scale) {
    return v.counted() > 0 && 2 * v.below(lowest(scale)) > v.counted() &&
           static_cast<double>(v.largest) * scale < smallest_normal(half);
  }

  /// Returns what usually helps if this kind of operator makes NaN or infinities from finite inputs.
  static std::string_view remedy(const examined& e) {
    const std::string_view word = word_of(e.kind);
    const auto is = [&](std::string_view words) { return has_name(words, word); };
    if (is("log log2 log10 log1p xlogy")) return "keep what it reads above 0: clamp it, or use log_softmax";
    if (is("div true_divide reciprocal rsqrt"))
      return "something is divided by 0: clamp the divisor, or see that a mask leaves something";
    if (is("softmax _softmax log_softmax _log_softmax scaled_dot_product_attention"))
      return "a row is -inf throughout: let a mask leave one place in each";
    if (is("exp exp2 expm1 pow square")) return "take the largest off before, or clamp what it reads";
    if (is("sqrt norm linalg_vector_norm std acos asin"))
      return "its slope is infinite at the edge of what it takes: add a small number before";
    return "look at what it reads, with worst() and the table";
  }

  const std::vector<examined>& all_;
  double scale_;
  std::vector<std::vector<std::size_t>> readers_;
  std::vector<fault> faults_;
};

}  // namespace detail

/// Returns the faults in FP32 first, then those for FP16, each in the order of the step.
inline std::vector<fault> faults(const examination& e) { return detail::fault_finder{e}.find(); }

}  // namespace comp
