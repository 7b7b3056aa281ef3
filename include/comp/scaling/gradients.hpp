// SPDX-License-Identifier: Apache-2.0
// What a backend's gradients must offer for loss scaling, and the report of a step.
#pragma once

#include <comp/core/unmet.hpp>
#include <concepts>
#include <string>
#include <vector>

namespace comp::scaling {

namespace detail {
template <class G>
concept unscales = requires(G& g, double f) {
  { g.unscale(f) } -> std::same_as<bool>;
};
template <class G>
concept has_norm = requires(G& g) {
  { g.norm() } -> std::convertible_to<double>;
};
template <class G>
concept multiplies = requires(G& g, double f) {
  g.multiply(f);
};
template <class G>
concept tells_not_finite = requires(G& g) {
  { g.not_finite() } -> std::same_as<std::vector<std::string>>;
};
}  // namespace detail

// Compilers quote one source line of a failed assertion, so each sentence has to stay on one line:
// clang-format off
/// Checks that `G` models Gradients, and says what is missing if it does not: each failed assertion is one sentence.
template <class G, bool Aloud = true>
constexpr bool expect_gradients() {
  using namespace detail;
  static_assert(!Aloud || std::copyable<G>, "Gradients need: to be copyable (a handle, not the tensors)");
  static_assert(!Aloud || unscales<G>, "Gradients need: bool unscale(double factor)");
  static_assert(!Aloud || has_norm<G>, "Gradients need: double norm()");
  static_assert(!Aloud || multiplies<G>, "Gradients need: void multiply(double factor)");
  static_assert(!Aloud || tells_not_finite<G>, "Gradients need: std::vector<std::string> not_finite()");
  return std::copyable<G> && unscales<G> && has_norm<G> && multiplies<G> && tells_not_finite<G>;
}

/// The gradients of one step, as a backend holds them. The type is a handle that is copied, not the tensors themselves.
///   unscale(f)     multiplies every element by f; true when all of them are finite
///   norm()         the L2 norm of all of them together
///   multiply(f)    multiplies every element by f
///   not_finite()   the names of tensors with elements that are not finite; called only when a step is skipped
template <class G>
concept Gradients = expect_gradients<G, false>() || unmet<"no Gradients: static_assert(comp::expect_gradients<T>()) says why">();
// clang-format on

/// What happened in one step.
struct step_report {
  bool skipped = false;                      // true: a gradient was not finite, so the optimizer did not step
  double scale = 1;                          // the scale of the step's gradients
  double norm = 0;                           // the gradients' norm before clipping; 0: clip_norm was not called
  std::vector<std::string> not_finite = {};  // of a skipped step: the tensors that are not finite
  std::string diagnosis = {};                // a sentence on a step that was skipped at the lowest scale; else empty
};

}  // namespace comp::scaling
