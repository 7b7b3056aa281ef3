// SPDX-License-Identifier: Apache-2.0
// Says in sentences what is wrong with a trainer or a policy, each from what was seen; nothing if all is well. A
// sentence is only given for what a sound trainer never does, so some faults stay unnoticed. Who runs these checks, and
// when: search/check.hpp.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/core/statistics.hpp>
#include <comp/policy/nearest.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace comp::detail {

using problem = std::optional<std::string>;

inline problem problem_of_names(const op_graph& graph) {
  std::unordered_map<std::string_view, std::size_t> seen;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const auto [at, fresh] = seen.try_emplace(graph[i].name, i);
    if (!fresh)
      return fmt::format(
          "operators {} and {} are both named \"{}\" (plan files, warm starts and reports go by names): "
          "give each operator a name of its own",
          at->second, i, graph[i].name);
  }
  return {};
}

/// Returns: the kind without what is spelt in different ways (case, and separators within): "LayerNorm" and
/// "layer-norm" become "layernorm". Underscores at an end have a meaning in ATen: "exp_" works in place, "_softmax" is
/// not softmax.
inline std::string bare_letters(std::string_view kind) {
  std::string letters;
  kind = policy::without_overload(kind);
  for (std::size_t i = 0; i < kind.size(); ++i) {
    const bool within = i > 0 && i + 1 < kind.size();
    if (within && (kind[i] == '_' || kind[i] == '-' || kind[i] == ' ')) continue;
    letters += static_cast<char>(std::tolower(static_cast<unsigned char>(kind[i])));
  }
  return letters;
}

/// Reports kinds that look misspelt, and a policy that lists none of the kinds. A policy that is not about ATen's kinds
/// is not checked.
inline problem problem_of_kinds(const any_policy& policy, const op_graph& graph) {
  const auto has_opinion = [&](const op_info& op) {
    const decision by_policy = policy.classify(op);
    return by_policy.fixed || by_policy.category != category::follow;
  };
  const auto knows_kind = [&](std::string_view kind) { return has_opinion(op_info{.kind = std::string{kind}}); };
  if (!knows_kind("linear") && !knows_kind("conv2d") && !knows_kind("matmul")) return {};
  std::map<std::string_view, bool> kinds;  // true: the policy has an opinion of an operator of this kind
  for (const op_info& op : graph) {
    if (op.choosable) kinds[op.kind] = kinds[op.kind] || has_opinion(op);
  }
  const bool none_is_known = std::none_of(kinds.begin(), kinds.end(), [](const auto& kind) { return kind.second; });
  std::string unknown;
  for (const auto& [kind, is_known] : kinds) {
    if (is_known) continue;
    policy::nearest_word near{policy::without_overload(kind)};
    for (const auto* table : {&policy::pytorch_lists::cuda(), &policy::pytorch_lists::cpu()}) {
      for (const auto& entry : table->entries()) {
        const std::string_view known = policy::without_overload(entry.kind);
        const bool same_letters = bare_letters(known) == bare_letters(kind);
        if (same_letters && knows_kind(known))
          return fmt::format("operator kind \"{}\" is on no list of the policy (\"{}\" is): call it that", kind, known);
        if (none_is_known) near.offer(known);
      }
    }
    if (unknown.size() > 120) continue;
    const std::string hint =
        !near.word().empty() && knows_kind(near.word()) ? fmt::format(", near \"{}\"", near.word()) : "";
    unknown += fmt::format("{}\"{}\"{}", unknown.empty() ? "" : "; ", kind, hint);
  }
  if (!none_is_known || kinds.empty()) return {};
  return fmt::format(
      "no operator kind is on a list of the policy: {} (its rules would lower nothing): name kinds as ATen "
      "does, \"linear\" or \"conv2d\", or give a policy that knows these",
      unknown);
}

/// Checks what run_batch() gave, before anything is filled in.
inline problem problem_of_sample(const sample& got) {
  const auto bad_time = [](double seconds) { return !(seconds > 0) || !std::isfinite(seconds); };
  if (got.seconds < 0 || !std::isfinite(got.seconds))
    return fmt::format(
        "run_batch() gave {} as its seconds (times decide which plan wins): give the wall time of the "
        "batch, end - begin, or leave 0 and comp takes the time itself",
        got.seconds);
  if (const auto at = std::find_if(got.batch_seconds.begin(), got.batch_seconds.end(), bad_time);
      at != got.batch_seconds.end())
    return fmt::format(
        "run_batch() gave {} as batch_seconds[{}] (times decide which plan wins): give the wall time of the "
        "batch, or leave batch_seconds empty",
        *at, at - got.batch_seconds.begin());
  if (got.batches > 1)
    return fmt::format("run_batch() says that it trained {} batches (it is asked for the next one): set batches to 1",
                       got.batches);
  if (got.curve.size() > 1 || got.batch_seconds.size() > 1)
    return fmt::format(
        "run_batch() gave {} losses and {} times (a batch has one of each): give those of this batch alone",
        got.curve.size(), got.batch_seconds.size());
  return {};
}

/// Returns: the sentence about an epoch of another length. `had`: its batches, "12" or "more than 7". `declared`: what
/// batches_per_epoch() says.
inline std::string sentence_of_wrong_length(std::string_view had, std::size_t declared) {
  return fmt::format(
      "an epoch had {} batches (batches_per_epoch() says {}, by which the search's batches count as epochs): give the number "
      "that run_epoch() trains",
      had, declared);
}

/// Checks restore(). `first`, `again`: losses of the same batches from a state, and after that state was put back; at
/// least one of each, and two of one. The amount by which a batch moves the loss tells a state that was not put back
/// from mere roundings.
inline problem problem_of_restore(std::span<const double> first, std::span<const double> again) {
  const std::span<const double> longer = first.size() < 2 ? again : first;
  if (first.empty() || again.empty() || longer.size() < 2) return {};
  if (!std::isfinite(first[0]) || !std::isfinite(again[0]) || !std::isfinite(longer[1])) return {};
  const double difference = std::abs(again[0] - first[0]), moved_by_training = std::abs(longer[1] - longer[0]);
  const double scale = std::max({std::abs(first[0]), std::abs(longer[1]), std::abs(again[0])});
  if (difference <= std::max(1e-5 * scale, moved_by_training / 10)) return {};
  return fmt::format(
      "after restore() the same batch in FP32 gave loss {:.8g}, before it {:.8g} (plans are compared on the "
      "same batches from the same state, or every plan would seem to train): save and restore weights, "
      "optimizer, random generators and the place in the data",
      again[0], first[0]);
}

/// Returns: true if batches under a plan with operators in `low` have the same losses as FP32's, to the last bit, and
/// take the same time, so that set_precision() seems to be ignored.
inline bool changes_nothing(const sample& fp32, const sample& low) {
  const std::size_t n = std::min(fp32.curve.size(), low.curve.size());
  if (n < 2 || !low.ok() ||
      !std::equal(low.curve.begin(), low.curve.begin() + static_cast<std::ptrdiff_t>(n), fp32.curve.begin()))
    return false;
  const std::size_t timed = std::min(fp32.batch_seconds.size(), low.batch_seconds.size());
  if (timed < 2) return true;  // the first batch pays for what is made once, and is left out
  const std::span<const double> a{fp32.batch_seconds}, b{low.batch_seconds};
  const paired_speedup times = compare_paired(a.subspan(1, timed - 1), b.subspan(1, timed - 1));
  return !times.clearly_faster() && !times.clearly_slower() && times.ratio > 0.8 && times.ratio < 1.25;
}
inline std::string sentence_of_ignored(precision low) {
  return fmt::format(
      "plans in {} changed neither a loss, to the last bit, nor the time (so set_precision() has no effect in "
      "it): look at what it does with plan[i], or leave {} out of supported_precisions()",
      name(low), name(low));
}

}  // namespace comp::detail
