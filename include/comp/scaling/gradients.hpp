// SPDX-License-Identifier: Apache-2.0
// What loss scaling asks of a backend's gradients, and what it says of a step.
#pragma once

#include <comp/core/unmet.hpp>
#include <concepts>
#include <string>
#include <vector>

namespace comp::scaling {

// A sentence stays on one line:
// clang-format off
/// True for a Gradients. For another class it does not compile, and the errors say, a sentence each, what is missing.
template <class G, bool Aloud = true>
constexpr bool expect_gradients() {
  COMP_NEEDS("Gradients need: to be copyable (a handle, not the tensors)",
             std::copyable<G>);
  COMP_NEEDS("Gradients need: bool unscale(double factor)",
             requires(G& g, double f) { { g.unscale(f) } -> std::same_as<bool>; });
  COMP_NEEDS("Gradients need: double norm()",
             requires(G& g) { { g.norm() } -> std::convertible_to<double>; });
  COMP_NEEDS("Gradients need: void multiply(double factor)",
             requires(G& g, double f) { g.multiply(f); });
  COMP_NEEDS("Gradients need: std::vector<std::string> not_finite()",
             requires(G& g) { { g.not_finite() } -> std::same_as<std::vector<std::string>>; });
  return true;
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
