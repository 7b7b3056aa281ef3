// SPDX-License-Identifier: Apache-2.0
// Looks for mistakes that make a search's result worth nothing: a loss that nobody sets, a restore() that does nothing,
// a set_precision() that is ignored, kinds that the policy does not know. A search looks at its start, at the price of
// a batch or two in FP32 (search_settings::self_check), and again at what it sees anyway; `comp::check(trainer)` looks
// at all of it at once and gives a table. Told is only what a sound trainer does not do: a mistake may go unnoticed.
// Use: fmt::print("{}", comp::check(trainer).str());
#pragma once

#include <algorithm>
#include <chrono>
#include <comp/core/concepts.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/evaluator.hpp>
#include <comp/search/mistakes.hpp>
#include <comp/search/op_support.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/run_samples.hpp>
#include <comp/search/signature.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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
    } catch (const out_of_memory& e) {  // the search has plans that need less
      all.status = status::out_of_memory;
      all.message = e.what();
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

/// What a search looks at before it starts: a batch of `fp32`, undone; two where a ledger has nothing else to know the
/// training by.
template <Backend B, OperatorPolicy P>
check_report check_at_start(B& trainer, const op_graph& graph, const P& policy, [[maybe_unused]] const plan& fp32) {
  check_report report;
  check_at_rest(trainer, graph, policy, report);
  if constexpr (saves<B>) {
    constexpr std::size_t count = signs<B> ? 1 : 2;
    undone(trainer, [&](auto&&) {
      report.first_losses = trainer_check<B>{trainer, report}.batches(fp32, count).curve;
    });
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
        report.add("restore", detail::problem_of_restore(first.curve, again.curve), "the same batch, the same loss");
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
