// SPDX-License-Identifier: Apache-2.0
// Collects what takes part in the contest besides the search's plans: the rivals that can run. Each distinct plan takes
// part once.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/core/rival.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/search/space/candidate_space.hpp>
#include <comp/search/timing/race.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

/// Throws: `plan_error`, naming the rival, for a plan that does not fit the graph, has a precision that is not among
/// `supported`, or has an operator in a precision that the backend does not run it in.
inline void require_runs(const rival& r, const op_graph& graph, std::span<const precision> supported,
                         const op_support& support) {
  try {
    require_fits(r.plan, graph);
  } catch (const plan_error& e) {
    throw plan_error{fmt::format("rival \"{}\": {}", r.label, e.what())};
  }
  for (const precision p : r.plan) {
    require<plan_error>(std::find(supported.begin(), supported.end(), p) != supported.end(),
                        "rival \"{}\" has {} (the backend supports {}): leave it out", r.label, name(p),
                        names_of(supported));
  }
  for (std::size_t i = 0; i < r.plan.size(); ++i) {
    require<plan_error>(support.supports(i, r.plan[i]),
                        "rival \"{}\" has operator {} (\"{}\") in {} (the backend does not run {} in it): change it",
                        r.label, i, graph[i].name, name(r.plan[i]), graph[i].kind);
  }
}

/// Returns: the rivals that `source` makes, without those of systems that refuse the model or whose plans do not run:
/// `warnings` says why. Throws: `settings_error` for a rival without a label, or with a label that the search itself
/// uses; `plan_error` as require_runs does, for a rival that is not rule-based.
inline std::vector<rival> rivals_of(const rival_source& source, const op_graph& graph, std::span<const precision> lows,
                                    std::span<const precision> supported, const op_support& support,
                                    std::vector<std::string>& warnings) {
  if (!source) return {};
  std::vector<rival> all;
  for (rival& r : source(graph, lows)) {
    require<settings_error>(!r.label.empty() && r.label != "fp32" && r.label != "comp" && !r.label.starts_with("comp:"),
                            "rival labelled \"{}\" (a label tells it apart from fp32 and comp): give it another",
                            r.label);
    try {
      if (r.refusal.empty()) require_runs(r, graph, supported, support);
    } catch (const plan_error& e) {
      if (!r.rule_based) throw;
      r.refusal = e.what();
    }
    if (r.refusal.empty()) {
      all.push_back(std::move(r));
    } else {
      warnings.push_back(fmt::format("\"{}\" was no rival: {}", r.label, r.refusal));
    }
  }
  return all;
}

/// Returns: the label of a plan that the search found, as in "comp: all but head.softmax in bf16". `others`: those that
/// have labels already, as labels are unique.
template <class Labelled>
std::string label_of_found(const plan& p, const op_graph& graph, const std::vector<Labelled>& others) {
  const std::string words = "comp: " + name(p, graph);
  std::string label = words;
  const auto taken = [&](const Labelled& other) { return other.label == label; };
  for (int n = 2; std::any_of(others.begin(), others.end(), taken); ++n) label = fmt::format("{} ({})", words, n);
  return label;
}

/// Enters a plan. Equal plans share a row and are timed once; their labels are joined, and name their family once:
/// "rule-based bf16 = tvm bf16".
inline void enter(std::vector<racer>& racers, const plan& p, std::string_view label, bool rule_based = false) {
  const auto known = std::find_if(racers.begin(), racers.end(), [&](const racer& r) { return r.plan == p; });
  if (known == racers.end()) {
    racers.push_back({.plan = p, .label = std::string{label}, .rule_based = rule_based});
    return;
  }
  known->rule_based = known->rule_based || rule_based;
  if (known->label == label) return;
  constexpr std::string_view family = "rule-based ";
  if (label.starts_with(family) && known->label.find(family) != std::string::npos) label.remove_prefix(family.size());
  known->label += " = ";
  known->label += label;
}

/// Enters a plan that the search found, once. FP32 is not entered again, as it is there first.
inline void enter_found(std::vector<racer>& racers, const plan& p, const op_graph& graph) {
  const auto is_entered = [&](const racer& r) {
    return r.plan == p && (&r == &racers.front() || r.label.find("comp: ") != std::string::npos);
  };
  if (std::none_of(racers.begin(), racers.end(), is_entered)) enter(racers, p, label_of_found(p, graph, racers));
}

}  // namespace comp
