// SPDX-License-Identifier: Apache-2.0
// Trainers whose times and losses are made up, so that a test knows what a search should find.
// `seconds` are computed from the plan, and pass on a clock that only tests move. The weights are one number, `error`,
// that training shrinks and harmful plans raise, so a search that forgets to restore the state is caught. What belongs
// to the machine and not to the training (the noise, the drift, the counters) is not restored.
#pragma once

#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/search/observers.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <moved_clock.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fake {

using comp::plan;
using comp::precision;
using comp::sample;

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Operators of the given kinds, each named by its index; a chain.
inline comp::op_graph chain(const std::vector<std::string>& kinds) {
  std::vector<comp::op_info> ops;
  for (const std::string& kind : kinds) ops.push_back({.name = std::to_string(ops.size()), .kind = kind});
  return {std::move(ops)};
}

/// A policy of three lists: kinds that begin with "allow", "deny" and "fix" (at BF16); all others follow. Sizes that
/// do not suit the tensor cores are the graph's business: `odd` below.
struct lists {
  comp::decision classify(const comp::op_info& op) const {
    if (op.kind.starts_with("allow")) return {.category = comp::category::allow, .compute = precision::bf16};
    if (op.kind.starts_with("deny")) return {.category = comp::category::deny};
    if (op.kind.starts_with("fix")) return {.compute = precision::bf16, .fixed = true};
    return {};
  }
};

/// `graph` with sizes that do not suit the tensor cores for operators whose kind ends in "odd".
inline comp::op_graph sized(std::vector<comp::op_info> ops) {
  for (comp::op_info& op : ops) op.m = op.n = op.k = op.kind.ends_with("odd") ? 7 : 64;
  return {std::move(ops)};
}
inline comp::op_graph sized_chain(const std::vector<std::string>& kinds) {
  const comp::op_graph graph = chain(kinds);
  return sized({graph.begin(), graph.end()});
}

/// Times per operator and precision, and per edge whose ends differ.
struct costs {
  std::vector<double> fp32 = {};  // seconds of each operator
  std::vector<double> low = {};   // in any lower precision
  double cast = 0;

  double operator()(const comp::op_graph& graph, const plan& p) const {
    double seconds = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      seconds += (comp::is_low(p[i]) ? low : fp32)[i];
      for (const auto producer : graph[i].producers) seconds += p[producer] != p[i] ? cast : 0;
    }
    return seconds;
  }
};

struct state {
  double error = 1;
  std::uint64_t steps = 0;
  friend bool operator==(const state&, const state&) = default;
};

/// The whole of a trainer's world. What is not given is harmless.
struct world {
  comp::op_graph graph = {};
  std::function<double(const plan&)> seconds = [](const plan&) { return 1.0; };  // of a batch
  std::function<double(const plan&)> harm = [](const plan&) { return 0.0; };     // to the weights, per batch
  std::function<void(const plan&, std::uint64_t batch)> before_batch =
      {};                    // counted over the machine's life; may throw
  std::size_t batches = 10;  // per epoch
  double loss_offset = 0;    // added to each loss: below -1 it is negative, as a GAN's can be
  std::size_t losses = 0;    // how many a sample has beside their mean
  double noise = 0;          // relative, of a batch's seconds, uniform
  double drift = 0;          // how much slower the machine is after a hundred batches, relative
  double loss_noise = 0;     // of an epoch's loss, by the machine: a trainer that is not deterministic
  double loss_sign = 1;      // of each loss; -1: higher is better
  std::function<double(std::uint64_t)> length = [](std::uint64_t) { return 1.0; };  // of the training's batch k, times
  std::function<double(std::uint64_t)> swing = [](std::uint64_t) { return 0.0; };   // of its loss, added
  double first_batch = 1;  // times the others' seconds, of a plan's very first
  bool times_batches = true;
  bool stops_on_nan = false;  // itself, whatever the search says
  std::vector<precision> precisions = {precision::fp32, precision::bf16};
  std::function<bool(const comp::op_info&, precision)> runs = [](const comp::op_info&, precision) { return true; };
  std::function<std::vector<comp::op_time>(const plan&)> profile = {};     // of a full trainer; may throw
  std::function<std::vector<comp::op_error>(precision)> sensitivity = {};  // likewise
};

/// What happened to a trainer.
struct counters {
  std::uint64_t batches = 0, epochs = 0, saves = 0, restores = 0;
};

/// Has the four required members alone; the others are made of it.
class minimal_trainer {
 public:
  explicit minimal_trainer(world given, std::uint64_t seed = 1) : world_{std::move(given)}, machine_{seed} {
    now_ = as_written(world_.graph);
  }

  const comp::op_graph& graph() const { return world_.graph; }
  void set_precision(const plan& p) { now_ = p; }
  sample run_epoch() { return train(world_.batches, {}); }
  sample run_batch() { return train(1, {}); }

  const plan& now() const { return now_; }
  const state& weights() const { return weights_; }
  const counters& count() const { return count_; }
  world& change() { return world_; }

 protected:
  sample train(std::size_t batches, const comp::stop_predicate& stop) {
    sample got{.loss = 0};
    if (batches > 1) ++count_.epochs;
    for (std::size_t b = 0; b < batches; ++b) {
      step(got);
      if (world_.stops_on_nan && !std::isfinite(got.loss)) {
        got.status = comp::status::not_finite;
        break;
      }
      if (stop && stop(got)) break;
    }
    got.loss *= 1 + world_.loss_noise * uniform();
    if (!world_.times_batches && batches > 1) got.batch_seconds.clear();
    return got;
  }

  world world_;
  plan now_;
  state weights_;
  counters count_;

 private:
  void step(sample& got) {
    if (world_.before_batch) world_.before_batch(now_, count_.batches);
    const double warm = seen_.emplace(now_, true).second ? world_.first_batch : 1;
    const double drifted = 1 + world_.drift * static_cast<double>(count_.batches) / 100;
    double seconds = world_.seconds(now_) * warm * drifted * (1 + world_.noise * uniform());
    seconds *= world_.length(weights_.steps);
    moved_clock::pass(seconds);
    const double loss = world_.loss_sign * (weights_.error + world_.loss_offset + world_.swing(weights_.steps));
    weights_.error = weights_.error * 0.99 + world_.harm(now_);
    ++weights_.steps;
    ++count_.batches;
    got.curve.push_back(loss);
    got.batch_seconds.push_back(seconds);
    got.seconds += seconds;
    ++got.batches;
    got.loss += (loss - got.loss) / static_cast<double>(got.batches);
    got.losses.assign(world_.losses, got.loss);
    for (std::size_t i = 1; i < got.losses.size(); i += 2) got.losses[i] = -got.loss;
    got.peak_bytes = static_cast<std::int64_t>(1000 - 10 * now_.count_low());
  }
  double uniform() { return std::uniform_real_distribution<double>{0, 1}(machine_); }

  std::mt19937_64 machine_;
  std::map<plan, bool> seen_;
};

/// Also saves, stops and tells its precisions.
class trainer : public minimal_trainer {
 public:
  using minimal_trainer::minimal_trainer;
  using minimal_trainer::run_epoch;
  sample run_epoch(const comp::stop_predicate& stop) { return train(world_.batches, stop); }
  state save() {
    ++count_.saves;
    return weights_;
  }
  void restore(const state& s) {
    ++count_.restores;
    weights_ = s;
  }
  std::uint64_t batches_per_epoch() const { return world_.batches; }
  std::vector<precision> supported_precisions() const { return world_.precisions; }
  bool supports(const comp::op_info& op, precision p) const { return world_.runs(op, p); }
};

/// Also profiles, scores its operators and perturbs its roundings.
class full_trainer : public trainer {
 public:
  using trainer::trainer;
  std::vector<comp::op_time> profile() {
    ++profiles;
    return world_.profile ? world_.profile(now_) : std::vector<comp::op_time>{};
  }
  std::vector<comp::op_error> sensitivity(precision p) {
    ++scored;
    return world_.sensitivity ? world_.sensitivity(p) : std::vector<comp::op_error>(world_.graph.size());
  }
  void perturb(std::uint64_t seed) { weights_.error *= 1 + 1e-8 * static_cast<double>(seed % 7); }
  std::size_t profiles = 0, scored = 0;
};
static_assert(comp::detail::profiles<full_trainer> && comp::detail::scores_operators<full_trainer> &&
              comp::detail::perturbs<full_trainer>);

static_assert(comp::Backend<minimal_trainer> && !comp::detail::saves<minimal_trainer>);
static_assert(comp::Backend<trainer> && comp::detail::saves<trainer> && comp::detail::stops<trainer>);

/// An observer of a training after a search: keeps what it is told after each epoch, and the weights of that moment.
struct training_keeper {
  std::vector<comp::training_progress> progress = {};
  std::vector<state> states = {};
  const fake::trainer* trainer = nullptr;
  void training_progressed(const comp::training_progress& now) {
    progress.push_back(now);
    states.push_back(trainer->weights());
  }
};

/// An observer that keeps the order of calls as text, and does what a test asks of it. One type, so that each search is
/// compiled once.
struct watcher {
  std::vector<std::string> calls = {};
  std::vector<comp::trial> done = {};
  std::vector<std::string> warnings = {};
  std::vector<comp::trial> recalls_from = {};
  std::size_t recalled = 0;
  std::size_t epochs_at_most = 0;
  std::function<void(const std::string& call)> at = {};  // may throw
  std::function<bool(const comp::trial&)> stops_after = {};
  std::function<bool()> stops_now = {};
  std::function<void(const std::string& call, const comp::trial&)> sees = {};

  void search_started(const comp::search_info& info) {
    epochs_at_most = info.epochs_at_most;
    note("search_started");
  }
  std::optional<comp::trial> recall(const comp::trial& wanted) {
    note("recall");
    if (sees) sees("recall", wanted);
    for (const comp::trial& t : recalls_from) {
      if (is_same_run(t, wanted)) {
        ++recalled;
        return t;
      }
    }
    return std::nullopt;
  }
  void trial_started(const comp::trial& t) {
    note("trial_started");
    if (sees) sees("trial_started", t);
  }
  void batch_done(const comp::trial& t, const sample&) {
    note("batch_done");
    if (sees) sees("batch_done", t);
  }
  bool trial_done(const comp::trial& t) {
    done.push_back(t);
    note("trial_done");
    if (sees) sees("trial_done", t);
    return stops_after && stops_after(t);
  }
  bool stop_requested() { return stops_now && stops_now(); }
  void warned(const std::string& sentence) { warnings.push_back(sentence); }
  void search_done(const comp::outcome&) { note("search_done"); }

 private:
  void note(const std::string& call) {
    calls.push_back(call);
    if (at) at(call);
  }
};
static_assert(comp::Observer<watcher>);

/// Gives a world the times of batches and of profiles.
inline void timed_by(world& w, const costs& times) {
  w.seconds = [graph = w.graph, times](const plan& p) { return times(graph, p); };
  w.profile = [times](const plan& p) {
    std::vector<comp::op_time> each(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double seconds = (comp::is_low(p[i]) ? times.low : times.fp32)[i];
      each[i] = {.forward = seconds / 3, .backward = seconds - seconds / 3};
    }
    return each;
  };
}

/// Harm to the weights per batch from operators that must not be low.
inline std::function<double(const plan&)> harmed_by(std::vector<std::size_t> operators, double harm = 0.1) {
  return [=](const plan& p) {
    double all = 0;
    for (const auto i : operators) all += comp::is_low(p[i]) ? harm : 0;
    return all;
  };
}

}  // namespace fake
