// SPDX-License-Identifier: Apache-2.0
// Watches the operators of a program while steps are trained: which there are, their times, what a low precision does
// to each, and what LibTorch's autocast gives them. `train` trains the next step. The caller puts the state of the
// training and the plan back (trainer.hpp).
#pragma once

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/error.hpp>
#include <comp/core/plan.hpp>
#include <comp_libtorch/plan/exchange.hpp>
#include <comp_libtorch/plan/layer_products.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/plan/sensitivity.hpp>
#include <cstddef>
#include <vector>

namespace comp::libtorch::detail {

/// Records the operators of a step. Throws: `graph_error` when none was in a region, or none is left to a plan.
template <class Train>
void record_step(program& p, Train train) {
  p.record(true);
  try {
    train();
  } catch (...) {
    p.record(true);  // half a step is no graph: the next recording begins anew
    p.record(false);
    throw;
  }
  p.record(false);
  require<graph_error>(!p.graph().empty(),
                       "a step without operators of the plan's (nothing was in a region): call the model inside {}",
                       by_language("step.forward([&] { ... })", "`with plan:`"));
  const auto fixed =
      std::ranges::find_if(p.graph(), [](const op_info& op) { return op.author != author_choice::none; });
  require<graph_error>(
      fixed == p.graph().end() || std::ranges::any_of(p.graph(), &op_info::choosable),
      "every operator of the step is in an autocast block of its own, first \"{}\" ({}; a plan leaves those alone): put "
      "the plan where that autocast is, or {}",
      fixed == p.graph().end() ? std::string{} : fixed->name,
      fixed == p.graph().end() ? std::string_view{} : reason(fixed->author),
      by_language("set protect_blocks to false", "give protect_blocks=False"));
}

/// Returns: the seconds of each operator under the current plan, medians of `steps` after one that pays for what is
/// made once.
template <class Train>
std::vector<op_time> operator_times(program& p, int steps, Train train) {
  train();
  p.profile(true);
  const auto off = c10::make_scope_exit([&] { p.profile(false); });
  for (int i = 0; i < steps; ++i) train();
  return p.times();
}

/// Returns: the error of each operator in `low`, measured while a step is trained in FP32.
template <class Train>
std::vector<op_error> lowering_errors(program& p, precision low, Train train) {
  operator_errors errors{p.graph().size(), p.products().gradients(), low, p.settings().device};
  p.set_plan(as_written(p.graph()));
  p.compare(&errors);
  const auto off = c10::make_scope_exit([&] { p.compare(nullptr); });
  train();
  std::vector<op_error> all = errors.errors();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (p.graph()[i].is_state && type_of_state(low)) all[i].gradient = rounding_error(low);
  }
  if (const std::size_t last = all.size() - 1; is_exchange(p.graph()[last])) all[last].gradient = rounding_error(low);
  return all;
}

/// Returns: what LibTorch's autocast to `low` gives each operator in a step under it, marked as that autocast's plan.
template <class Train>
plan autocast_plan(program& p, precision low, Train train) {
  plan chosen{p.graph().size()};
  p.set_plan(chosen);
  p.watch_autocast(&chosen, low);
  const auto off = c10::make_scope_exit([&] { p.watch_autocast(nullptr); });
  train();
  for (std::size_t i = 0; i < p.products().gradients().size(); ++i) {
    const auto& [input, weight] = p.products().gradients()[i];
    if (input) chosen[input] = chosen[i];
    if (weight) chosen[weight] = chosen[i];
  }
  return chosen.as_autocast();
}

/// Throws: `plan_error` if `p`, which autocast is to run, differs from `real`, which it was seen to give.
inline void require_same(const plan& p, const plan& real, const op_graph& graph) {
  const auto [at, chosen] = std::ranges::mismatch(p, real);
  if (at == p.end()) return;
  const auto i = static_cast<std::size_t>(at - p.begin());
  throw plan_error{fmt::format(
      "plan \"...{}\" gives operator {} (\"{}\") {}, LibTorch's autocast {} (it is run by that autocast, so they "
      "must agree): delete \"{}\" from the plan to run it operator by operator, or search again",
      autocast_mark, i, graph[i].name, name(*at), name(*chosen), autocast_mark)};
}

}  // namespace comp::libtorch::detail
