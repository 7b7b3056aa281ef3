// SPDX-License-Identifier: Apache-2.0
// Explains for reports why each operator has its precision, in one sentence: what its precision gains or would gain in
// a batch, if costs are known, and what decided. "Not accepted" is said of plans that were shown to be worse than the
// tolerance, and of plans whose losses were left undecided.
#pragma once

#include <cmath>
#include <comp/policy/tensor_core.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/space/spaces.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace comp {

namespace detail {

/// What happened to an operator in the plans that were judged by their losses.
struct op_history {
  bool any_plan = false;      // the search judged some plan
  bool any_race = false;      // the search timed some plans in turns
  bool any_low = false;       // some plan with it low was judged
  bool any_accepted = false;  // and some was accepted
};

inline std::vector<op_history> histories_of(const outcome& result, const plan& base) {
  std::vector<op_history> history(result.graph.size());
  for (op_history& each : history) each.any_race = result.cost(stage::times).runs > 0;
  for (const trial& t : result.trials) {
    if (t.stage != stage::losses || t.purpose != purpose::judge || t.plan.size() != history.size()) continue;
    for (std::size_t i = 0; i < history.size(); ++i) {
      history[i].any_plan = true;
      if (t.plan[i] == base[i]) continue;
      history[i].any_low = true;
      history[i].any_accepted = history[i].any_accepted || t.accepted;
    }
  }
  return history;
}

/// Returns: a duration with its unit, as in "12.3 us" or "1.2 ms".
inline std::string short_time(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.3g} us", 1e6 * seconds) : fmt::format("{:.3g} ms", 1e3 * seconds);
}

/// Returns: why an operator that was to be lowered is not, by the plans that were judged.
inline std::string not_lowered(const op_history& history) {
  if (!history.any_plan) return "batches with it low were not faster";
  if (!history.any_low) return "no plan with it low was tried";
  return history.any_accepted ? "plans with it low kept the loss, but the fastest has it not"
                              : "no plan with it low was accepted";
}

inline std::string reason_of(const op_info& op, const decision& by_policy, op_role role, segment_kind segment,
                             const op_history& history, precision chosen, precision low, const hardware& machine) {
  const bool is_fp32 = !is_lowered(op, chosen);
  const auto lowered = [&] {
    return history.any_plan ? fmt::format("the fastest plan that kept the loss has it in {}", name(chosen))
                            : fmt::format("batches were fastest with it in {}; no loss was looked at", name(chosen));
  };
  switch (role) {
    case op_role::view:
      return "moves no data of its own: has its producer's precision";
    case op_role::pinned:
      return by_policy.fixed ? fmt::format("the policy fixes it at {}", name(chosen))
                             : "no low precision was to be searched";
    case op_role::lowered:
      return fmt::format("on the allow list, and its sizes suit the hardware: {}",
                         is_fp32 ? not_lowered(history) : std::string{name(chosen)});
    case op_role::searched:
      if (by_policy.category == category::deny) {
        return is_fp32 ? "on the deny list: " + not_lowered(history) : "on the deny list, but " + lowered();
      }
      return is_fp32
                 ? fmt::format("on the allow list, but {}: {}", policy::why_not(op, low, machine), not_lowered(history))
                 : "on the allow list: " + lowered();
    case op_role::undecided:
      break;
  }
  if (segment == segment_kind::alone) return "no list names it and no decided operator is near: FP32";
  if (segment == segment_kind::follows)
    return fmt::format("the decided operators around it agree: follows them in {}", name(chosen));
  const char* why = segment == segment_kind::decided ? "no list names it" : "the decided operators around it differ";
  return history.any_race ? fmt::format("{}: batches were fastest with {}", why, name(chosen))
                          : fmt::format("{}, and no plans were timed in turns: {}", why, name(chosen));
}

/// Returns: what the precision is worth; empty if costs are not known. For a lowered operator, for example, "bf16
/// saves 12 us of a batch and adds 3 us of casts, fp32 would take 9 us longer"; for another one "bf16 would save 12 us
/// of a batch and add 3 us of casts".
inline std::string worth_of(const op_evidence& f, precision chosen, precision base) {
  if (!std::isfinite(f.saves) || !std::isfinite(f.casts)) return {};
  const bool is_low = chosen == f.low;
  const char* const s = is_low ? "s" : "";  // "saves", or "would save"
  std::string text = fmt::format("{} {}", name(f.low), is_low ? "" : "would ");
  text += f.saves > 0   ? fmt::format("save{} {} of a batch", s, short_time(f.saves))
          : f.saves < 0 ? fmt::format("take{} {} longer itself", s, short_time(-f.saves))
                        : fmt::format("save{} nothing itself", s);
  if (f.casts > 0) text += fmt::format(" and add{} {} of casts", s, short_time(f.casts));
  if (f.casts < 0) text += fmt::format(" and spare{} {} of casts", s, short_time(-f.casts));
  const double gain = f.saves - f.casts;
  if (is_low && gain != 0)
    text += fmt::format(", {} would take {} {}", name(base), short_time(std::abs(gain)), gain > 0 ? "longer" : "less");
  return text;
}

/// Returns: why an operator is not lowered, by what a guided search learned of it.
inline std::string left_high(const op_evidence& f, precision base) {
  using enum op_evidence::kind;
  switch (f.what) {
    case none:
      return "moves no data of its own: has its producer's precision";
    case fixed:
      return fmt::format("the policy fixes it at {}", name(base));
    case unsupported:
      return "the backend runs it in no precision that was searched";
    case dropped:
      return fmt::format("{} was not searched: a batch with all operators in it was too slow", name(f.low));
    case harmful:
      return fmt::format(
          "{} {} was not accepted{}", name(f.low),
          f.others_low == 0   ? "alone"
          : f.others_low == 1 ? "beside one accepted operator"
                              : fmt::format("beside {} accepted operators", f.others_low),
          std::isfinite(f.difference) ? fmt::format(", the loss {:.3g}% worse", 100 * f.difference) : "");
    case undecided:
      return fmt::format(
          "plans with it in {} were not accepted, and it was not tried alone (too little to gain, or the budget spent)",
          name(f.low));
    case unasked:
      return fmt::format("no plan with it in {} was worth a try", name(f.low));
    case accepted:
      break;
  }
  return fmt::format("{} kept the loss, but plans with it were not faster", name(f.low));
}

/// Returns: what the operator's precision gains or would gain, and what decided. `winner`: the label of the winning
/// plan if the search did not find it itself, such as a rule-based plan; else empty.
inline std::string guided_reason(const op_evidence& f, precision chosen, precision base, const std::string& winner) {
  using enum op_evidence::kind;
  std::string reason = left_high(f, base);
  if (chosen != base && winner.empty()) reason = "plans with it kept the loss";
  if (!winner.empty() && (chosen != base || f.what == accepted) && f.what != none && f.what != fixed)
    reason = fmt::format("\"{}\" has it in {}, and was fastest", winner, name(chosen));
  const std::string worth = chosen == f.low || chosen == base ? worth_of(f, chosen, base) : "";
  return worth.empty() ? reason : worth + "; " + reason;
}

}  // namespace detail

/// Returns: one reason per operator for `result.plan`. After a guided search it comes from `result.evidence`, else from
/// the judged plans. `is_own`: false if FP32 or a rule-based plan won the contest. `stage_two`: the plan that stage 2
/// found, if another plan of the search won; else empty.
inline std::vector<op_reason> explain(const outcome& result, const candidate_space& candidates,
                                      const std::vector<segment_kind>& segments, const std::string& winner, bool is_own,
                                      const plan& stage_two = {}) {
  const std::size_t n = result.graph.size();
  const plan base = result.contest.empty() ? as_written(result.graph) : result.contest.front().plan;
  const bool guided = result.evidence.size() == n;
  const auto history = guided ? std::vector<detail::op_history>(n) : detail::histories_of(result, base);
  const precision low = result.precisions.size() > 1 ? result.precisions[1] : precision::fp32;
  std::vector<op_reason> reasons(n);
  for (std::size_t i = 0; i < n; ++i) {
    op_reason& reason = reasons[i];
    reason.category = candidates.decisions[i].category;
    reason.decided_by_losses = decided_by_losses(candidates.roles[i]);
    const bool view = candidates.roles[i] == op_role::view;
    if (const author_choice author = result.graph[i].author; author != author_choice::none) {
      reason.text = comp::reason(author);
    } else if (guided) {
      const bool own_plan = is_own || result.plan == base || winner.find("comp: ") != std::string::npos;
      reason.text = detail::guided_reason(result.evidence[i], result.plan[i], base[i], own_plan ? "" : winner);
    } else if (!stage_two.empty() && stage_two[i] != result.plan[i]) {
      reason.text =
          fmt::format("batches were not clearly faster with it in {}: {}", name(stage_two[i]), name(result.plan[i]));
    } else if (is_own || view) {
      reason.text = detail::reason_of(result.graph[i], candidates.decisions[i], candidates.roles[i], segments[i],
                                      history[i], result.plan[i], low, result.hardware);
    } else {
      reason.text = history[i].any_low && !history[i].any_accepted && result.plan[i] == base[i]
                        ? fmt::format("{}: {}", detail::not_lowered(history[i]), name(base[i]))
                        : fmt::format("\"{}\" has it in {}, and was fastest", winner, name(result.plan[i]));
    }
  }
  return reasons;
}

}  // namespace comp
