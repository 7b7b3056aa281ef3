// SPDX-License-Identifier: Apache-2.0
// Looks for mistakes that make a search's result worth nothing: a loss that nobody sets, a restore() that does nothing,
// a set_precision() that is ignored, kinds that the policy does not know. A search looks at its start, at the price of
// two batches in FP32 (search_settings::self_check), and again at what it sees anyway; `comp::check(trainer)` looks at
// all of it at once and gives a table. Told is only what a sound trainer does not do: a mistake may go unnoticed.
// Use: fmt::print("{}", comp::check(trainer).str());
#pragma once

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/policy/nearest.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/evaluator.hpp>
#include <comp/search/op_support.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/run_samples.hpp>
#include <comp/search/signature.hpp>
#include <cstddef>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace comp {

/// What was looked at, and what was seen.
struct check_report {
  enum class verdict : std::uint8_t {
    ok,
    wrong,
    fatal,       // wrong, and no search can come to a result
    not_checked  // `text` says why
  };
  struct line {
    std::string what = {};  // "graph", "restore", "set_precision bf16"
    verdict how = verdict::ok;
    std::string text = {};  // wrong: <problem> (<why>): <what to do>
  };
  std::vector<line> lines = {};
  std::vector<double> first_losses = {};  // of FP32's batches from where the trainer was; empty: not run
  double seconds = 0;                     // that the batches took

  bool ok() const {
    return std::none_of(lines.begin(), lines.end(), [](const line& l) { return is_wrong(l); });
  }
  /// What is wrong, a sentence each.
  std::vector<std::string> findings() const {
    std::vector<std::string> sentences;
    for (const line& l : lines) {
      if (is_wrong(l)) sentences.push_back(l.text);
    }
    return sentences;
  }
  /// The first fatal one; empty: none.
  std::string why_pointless() const {
    const auto at = std::find_if(lines.begin(), lines.end(), [](const line& l) { return l.how == verdict::fatal; });
    return at == lines.end() ? "" : at->text;
  }
  /// A table with a line for each thing that was looked at.
  std::string str() const {
    constexpr std::string_view words[] = {"ok", "WRONG", "WRONG", "not checked"};
    std::string table;
    for (const line& l : lines)
      table += fmt::format("{:<22} {:<12} {}\n", l.what, words[static_cast<std::size_t>(l.how)], l.text);
    return table;
  }

  void add(std::string what, verdict how, std::string text) {
    lines.push_back({std::move(what), how, std::move(text)});
  }
  /// A line that is "ok" where there is no problem.
  void add(std::string what, const std::optional<std::string>& problem, std::string fine) {
    add(std::move(what), problem ? verdict::wrong : verdict::ok, problem ? *problem : std::move(fine));
  }

 private:
  static bool is_wrong(const line& l) { return l.how == verdict::wrong || l.how == verdict::fatal; }
};

namespace detail {

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

/// The kind as ATen would spell it, as far as case and separators go: "LayerNorm", "layer-norm" -> "layernorm".
inline std::string bare_letters(std::string_view kind) {
  std::string letters;
  for (const char c : policy::without_overload(kind)) {
    if (c != '_' && c != '-' && c != ' ') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

/// Nothing where the policy is not about ATen's kinds, or has an opinion of some operators and no near word for others.
template <OperatorPolicy P>
problem problem_of_kinds(const P& policy, const op_graph& graph) {
  const auto names = [&](const op_info& op) {
    const decision said = policy.classify(op);
    return said.fixed || said.category != category::follow;
  };
  const auto lists = [&](std::string_view kind) { return names(op_info{.kind = std::string{kind}}); };
  if (!lists("linear") && !lists("conv2d") && !lists("matmul")) return {};
  std::map<std::string_view, bool> kinds;  // whether an operator of it is named
  for (const op_info& op : graph) {
    if (op.choosable) kinds[op.kind] = kinds[op.kind] || names(op);
  }
  const bool none = std::none_of(kinds.begin(), kinds.end(), [](const auto& kind) { return kind.second; });
  std::string unknown;
  for (const auto& [kind, named] : kinds) {
    if (named) continue;
    policy::nearest_word near{policy::without_overload(kind)};
    for (const auto* table : {&policy::pytorch_lists::cuda(), &policy::pytorch_lists::cpu()}) {
      for (const auto& entry : table->entries()) {
        const std::string_view known = policy::without_overload(entry.kind);
        const bool same = bare_letters(known) == bare_letters(kind);
        if (same && lists(known))
          return fmt::format("operator kind \"{}\" is on no list of the policy (\"{}\" is): call it that", kind, known);
        if (none) near.offer(known);
      }
    }
    if (unknown.size() > 120) continue;
    const std::string hint = none && lists(near.found()) ? fmt::format(", near \"{}\"", near.found()) : "";
    unknown += fmt::format("{}\"{}\"{}", unknown.empty() ? "" : "; ", kind, hint);
  }
  if (!none || kinds.empty()) return {};
  return fmt::format(
      "no operator kind is on a list of the policy: {} (its rules would lower nothing): name kinds as ATen "
      "does, \"linear\" or \"conv2d\", or give a policy that knows these",
      unknown);
}

/// Of what run_batch() gave, before anything is filled in.
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

/// `first`: losses of batches from a state. `again`: of the first of them, from the same state put back. What a batch
/// moves the loss by is what tells a state that was not put back from roundings.
inline problem problem_of_restore(const std::vector<double>& first, double again) {
  if (first.size() < 2 || !std::isfinite(again)) return {};
  const double off = std::abs(again - first[0]), moved = std::abs(first[1] - first[0]);
  const double scale = std::max({std::abs(first[0]), std::abs(first[1]), std::abs(again)});
  if (off <= std::max(1e-5 * scale, moved / 10)) return {};
  return fmt::format(
      "after restore() the same batch in FP32 gave loss {:.8g}, before it {:.8g} (plans are compared on the "
      "same batches from the same state, or every plan would seem to train): save and restore weights, "
      "optimizer, random generators and the place in the data",
      again, first[0]);
}

/// Batches under a plan with all in `low`, or with some, against FP32's.
inline bool changes_nothing(const sample& fp32, const sample& low) {
  const std::size_t n = std::min(fp32.curve.size(), low.curve.size());
  if (n < 2 || !low.ok() ||
      !std::equal(low.curve.begin(), low.curve.begin() + static_cast<std::ptrdiff_t>(n), fp32.curve.begin()))
    return false;
  const std::size_t timed = std::min(fp32.batch_seconds.size(), low.batch_seconds.size());
  if (timed < 2) return true;  // the first batch pays for what is made once
  const std::span<const double> a{fp32.batch_seconds}, b{low.batch_seconds};
  const paired_speedup times = compare_paired(a.subspan(1, timed - 1), b.subspan(1, timed - 1));
  return !times.clearly_faster() && !times.clearly_slower() && times.ratio > 0.8 && times.ratio < 1.25;
}
inline std::string ignored_sentence(precision low) {
  return fmt::format(
      "plans in {} changed neither a loss, to the last bit, nor the time (so set_precision() has no effect in "
      "it): look at what it does with plan[i], or leave {} out of supported_precisions()",
      name(low), name(low));
}

template <Backend B>
class trainer_check {
 public:
  explicit trainer_check(B& trainer, check_report& into) : trainer_{trainer}, into_{into} {}

  /// The next batches under `p`, up to one that fails. What is wrong with FP32's is told; a low precision may fail.
  sample batches(const plan& p, std::size_t count) {
    const bool fp32 = std::none_of(p.begin(), p.end(), is_low);
    const auto begin = std::chrono::steady_clock::now();
    sample all{.loss = 0};
    problem wrong, fatal;
    try {
      trainer_.set_precision(p);
      while (all.ok() && static_cast<std::size_t>(all.batches) < count) {
        const auto started = std::chrono::steady_clock::now();
        sample next = trainer_.run_batch();
        if (!wrong) wrong = problem_of_sample(next);
        if (next.ok() && !finite(next) && fp32) fatal = lost_loss(all.batches, next.loss);
        complete(next, seconds_since(started));
        append(all, next);
      }
    } catch (const interrupted&) {
      throw;
    } catch (const std::exception& e) {
      all.status = status::failed;
      all.message = e.what();
      if (fp32) wrong = fmt::format("a batch in FP32 ended with an exception: {}", e.what());
    } catch (...) {
      all.status = status::failed;
      wrong =
          "a batch ended with an exception that is no std::exception (what it says is lost): throw comp::error, or what "
          "derives from std::exception";
    }
    into_.seconds += seconds_since(begin);
    if (wrong) into_.add("batch", verdict::wrong, *wrong);
    if (fatal) into_.add("loss", verdict::fatal, *fatal);
    return all;
  }

 private:
  static std::string lost_loss(std::int64_t batch, double loss) {
    return fmt::format(
        "the loss of batch {} in FP32 is {} (a comp::sample's loss is NaN until it is set, and += leaves it NaN; plans are "
        "judged against FP32's losses): begin with loss = 0, or look at the data and the learning rate",
        batch, loss);
  }

  using verdict = check_report::verdict;
  B& trainer_;
  check_report& into_;
};

/// Calls `work()` and puts the trainer back to where it was, whatever it throws.
template <saves B, class F>
void undone(B& trainer, F work) {
  const auto start = trainer.save();
  try {
    work([&] { trainer.restore(start); });
  } catch (...) {
    trainer.restore(start);
    throw;
  }
  trainer.restore(start);
}

template <Backend B, OperatorPolicy P>
void check_at_rest(const B& trainer, const op_graph& graph, const P& policy, check_report& into) {
  into.add("graph", problem_of_names(graph), fmt::format("{} operators", graph.size()));
  into.add("kinds", problem_of_kinds(policy, graph), "no operator kind looks like a misspelt one");
  const std::vector<precision> supported = supported_precisions(trainer);
  if (supported.empty()) {
    into.add("supported_precisions", check_report::verdict::fatal, no_precisions);
  } else {
    into.add("supported_precisions", problem{}, names_of(supported));
  }
}

/// What a search looks at before it starts: two batches of `fp32`, undone.
template <Backend B, OperatorPolicy P>
check_report check_at_start(B& trainer, const op_graph& graph, const P& policy, [[maybe_unused]] const plan& fp32) {
  check_report report;
  check_at_rest(trainer, graph, policy, report);
  if constexpr (saves<B>) {
    undone(trainer, [&](auto&&) { report.first_losses = trainer_check<B>{trainer, report}.batches(fp32, 2).curve; });
  }
  return report;
}

/// What a search saw by its end, a sentence each: precisions in which no plan changed anything, and recorded runs that
/// nothing tells to be of this training.
template <Backend B>
std::vector<std::string> findings_afterwards(const outcome& seen, const check_report& at_start) {
  std::map<precision, bool> without_effect;
  for (const trial& t : seen.trials) {
    const auto low = std::find_if(t.plan.begin(), t.plan.end(), is_low);
    if (t.stage != stage::epochs || low == t.plan.end() || !t.sample.ok() || t.sample.curve.size() < 2) continue;
    const bool only = std::all_of(low, t.plan.end(), [&](precision p) { return !is_low(p) || p == *low; });
    if (!only || t.repeat >= perturbed_repeats) continue;
    const auto at = without_effect.try_emplace(*low, true).first;
    at->second = at->second && changes_nothing(seen.baseline, t.sample);
  }
  std::vector<std::string> sentences;
  for (const auto& [low, none] : without_effect) {
    if (none) sentences.push_back(ignored_sentence(low));
  }
  if (!signs<B> && seen.recalled > 0 && at_start.first_losses.empty())
    sentences.push_back(fmt::format(
        "{} of {} runs came from a ledger, and only model, type and machine say that they are of this training (its trainer "
        "has no signature(), and no first losses to go by): give it std::string signature() const, with data, batch size, "
        "optimizer and seed",
        seen.recalled, seen.trials.size()));
  return sentences;
}

}  // namespace detail

/// Looks at everything that can be told in two batches in FP32, one from the state put back, and two in each low
/// precision that the trainer names. Leaves the training where it was, under an FP32 plan; a trainer that cannot
/// restore its state is not trained. `policy`: the one to search with. Throws: what save() and restore() throw. What a
/// batch throws is a finding.
template <Backend B, OperatorPolicy P = policy::pytorch>
check_report check(B& trainer, const P& policy = {}) {
  using verdict = check_report::verdict;
  const op_graph graph = trainer.graph();
  check_report report;
  detail::check_at_rest(std::as_const(trainer), graph, policy, report);
  if constexpr (!detail::saves<B>) {
    report.add(
        "batches", verdict::not_checked,
        "the trainer has no save() and restore(), so a batch could not be undone: losses, times, the effect of a plan");
  } else {
    std::vector<precision> lows = supported_precisions(trainer);
    std::erase_if(lows, [](precision p) { return !is_low(p); });
    const op_support runs{std::as_const(trainer), graph, lows};
    plan fp32{graph.size()};
    for (std::size_t i = 0; i < fp32.size(); ++i) {
      if (graph[i].choosable) fp32[i] = runs.widest(i);
    }
    detail::undone(trainer, [&](auto&& back) {
      detail::trainer_check<B> run{trainer, report};
      const std::size_t before = report.lines.size();
      const sample first = run.batches(fp32, 2);
      report.first_losses = first.curve;
      if (report.lines.size() == before) report.add("batch", verdict::ok, fmt::format("loss {:.6g}", first.loss));
      back();
      const sample again = run.batches(fp32, 1);
      if (first.curve.size() == 2 && again.curve.size() == 1)
        report.add("restore", detail::problem_of_restore(first.curve, again.curve.front()),
                   "the same batch, the same loss");
      for (const precision low : lows) {
        plan p = fp32;
        for (std::size_t i = 0; i < p.size(); ++i) {
          if (graph[i].choosable && runs(i, low)) p[i] = low;
        }
        if (p == fp32) continue;
        back();
        const sample got = run.batches(p, 2);
        const auto ignored =
            detail::changes_nothing(first, got) ? detail::problem{detail::ignored_sentence(low)} : std::nullopt;
        const std::string seen =
            got.ok() ? fmt::format("loss {:.6g}", got.loss)
                     : fmt::format("ended as {} with all operators in it {}", name(got.status), got.message);
        report.add(fmt::format("set_precision {}", name(low)), ignored, seen);
      }
      trainer.set_precision(fp32);
    });
  }
  return report;
}

}  // namespace comp
