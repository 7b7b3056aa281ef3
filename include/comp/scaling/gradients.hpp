// SPDX-License-Identifier: Apache-2.0
// What loss scaling asks of a backend's gradients, and what it says of a step.
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

// A sentence stays on one line:
// clang-format off
/// True for a Gradients. For another class it does not compile, and the errors say, a sentence each, what is missing.
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

/// The gradients of one step, as a backend holds them. A cheap handle: it is copied.
///   unscale(f)     multiplies every element by f; true when all of them are finite
///   norm()         the L2 norm of all of them together
///   multiply(f)    multiplies every element by f
///   not_finite()   the names of the tensors that have an element that is not; asked for when a step is skipped
template <class G>
concept Gradients = expect_gradients<G, false>() || unmet<"no Gradients: static_assert(comp::expect_gradients<T>()) says why">();
// clang-format on

struct step_report {
  bool skipped = false;                      // a gradient was not finite: the optimizer did not step
  double scale = 1;                          // that the gradients had
  double norm = 0;                           // before clipping; 0: nobody asked to clip
  std::vector<std::string> not_finite = {};  // tensors, where the step was skipped
  std::string diagnosis = {};                // not empty: skipped although the scale is at its floor
};

}  // namespace comp::scaling
