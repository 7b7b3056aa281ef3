// SPDX-License-Identifier: Apache-2.0
// A trainer that stands for those of all ranks, for the search that runs on rank 0. Each call is an order: all ranks
// carry it out, and the result is all ranks' (rank_samples.hpp), or the worst failure, with the ranks' numbers. A state
// is saved on each rank, and known here by a number. Once a rank is gone, each further call throws `rank_error`, except
// those that put rank 0's own part back.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/ranks/orders.hpp>
#include <comp/ranks/rank_samples.hpp>
#include <comp/ranks/team.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp::ranks::detail {

/// What rank 0 knows of all ranks.
struct acquaintance {
  introduction common = {};
  std::vector<std::string> remarks = {};
};

class leading_trainer final : public any_trainer {
 public:
  /// `trainer`: rank 0's own.
  leading_trainer(any_trainer& trainer, team& ranks, acquaintance known)
      : any_trainer{known.common.has},
        trainer_{trainer},
        team_{ranks},
        own_{trainer, ranks},
        common_{std::move(known.common)},
        remarks_{std::move(known.remarks)} {}

  op_graph graph() override { return trainer_.graph(); }
  void set_precision(const plan& p) override {
    if (team_.broken()) return trainer_.set_precision(p);
    if (set_ == p && !has.take_back) return;  // which begins a block anew
    set_.reset();
    (void)carried_out({.what = task::set_precision, .plan = p});
    set_ = p;
  }
  sample run_batch() override { return of_all_ranks(all_give<sample>({.what = task::run_batch})); }
  sample run_epoch(const stop_predicate& stop) override {
    if (has.batches_per_epoch && !batches_) (void)batches_per_epoch();
    sample so_far;
    bool ended = false;  // as the shortest of the ranks' epochs does
    const auto all = all_give<sample>({.what = task::run_epoch}, [&](const sample& own) {
      const auto heard = team_.hear(packed(without_history(own)));
      if (!heard) return true;
      bool over = true;
      const auto answered = [&] { team_.answer(packed(over)); };
      try {
        so_far = with_history(so_far, of_all_ranks(unpacked_all<sample>(*heard)));
        ended = uneven_ && static_cast<std::size_t>(so_far.batches) >= *batches_;
        over = ended || stop(so_far);
      } catch (...) {
        answered();
        throw;
      }
      answered();
      return over;
    });
    sample epoch = of_all_ranks(all);
    if (ended && epoch.status == status::stopped_early) epoch.status = status::ok;
    return epoch;
  }
  std::shared_ptr<const void> save() override {
    if (!has.save) return {};
    const std::uint64_t number = ++states_;
    const auto release = [released = released_](const std::uint64_t* state) {
      released->push_back(*state);
      delete state;
    };
    const std::shared_ptr<const std::uint64_t> state{new std::uint64_t{number}, release};
    (void)carried_out({.what = task::save, .number = number});
    return state;
  }
  void restore(const void* state) override {
    const std::uint64_t number = *static_cast<const std::uint64_t*>(state);
    if (team_.broken()) return own_.restore(number);
    (void)carried_out({.what = task::restore, .number = number});
  }
  bool take_back() override {
    if (!has.take_back || team_.broken()) return false;
    const auto all = all_give<bool>({.what = task::take_back});
    return std::find(all.begin(), all.end(), false) == all.end();
  }
  std::vector<op_time> profile() override {
    return slowest(all_give<std::vector<op_time>>({.what = task::profile}), &op_time::forward, &op_time::backward);
  }
  std::vector<op_error> sensitivity(precision low) override {
    const order o{.what = task::sensitivity, .number = static_cast<std::uint64_t>(low)};
    return slowest(all_give<std::vector<op_error>>(o), &op_error::output, &op_error::gradient);
  }
  void perturb(std::uint64_t seed) override { (void)carried_out({.what = task::perturb, .number = seed}); }
  std::int64_t count_extreme() override {
    std::int64_t sum = 0;
    for (const std::int64_t count : all_give<std::int64_t>({.what = task::count_extreme})) sum += count;
    return sum;
  }
  /// Returns: the fewest of any rank; 0 if a rank does not know.
  std::size_t batches_per_epoch() override {
    const auto all = all_give<std::size_t>({.what = task::batches_per_epoch});
    const auto [fewest, most] = std::minmax_element(all.begin(), all.end());
    uneven_ = *fewest > 0 && *fewest != *most;
    if (uneven_ && !batches_) {
      remarks_.push_back(fmt::format(
          "rank {} has {} batches in an epoch and rank {} {} (all ranks train each batch together): an epoch ends with "
          "the shortest; give each rank as many",
          fewest - all.begin(), *fewest, most - all.begin(), *most));
    }
    batches_ = *fewest;
    return *fewest;
  }
  double validate() override {
    double sum = 0;
    for (const double score : all_give<double>({.what = task::validate})) sum += score;
    return sum / team_.size();
  }
  std::vector<precision> supported_precisions() const override { return common_.precisions; }
  bool supports(const op_info& op, precision p) const override {
    if (!has.supports) return true;
    const auto named = fmt::format("\"{}\" ({})", op.name, op.kind);
    const auto at = std::find(common_.operators.begin(), common_.operators.end(), named) - common_.operators.begin();
    const std::size_t entry = static_cast<std::size_t>(at) * all_precisions.size() + static_cast<std::size_t>(p);
    return entry >= common_.refused.size() ? trainer_.supports(op, p) : common_.refused[entry] == '0';
  }
  /// Throws: `error` if the ranks' differ.
  plan own_autocast(precision low) override {
    const order o{.what = task::own_autocast, .number = static_cast<std::uint64_t>(low)};
    const auto all = all_give<plan>(o);
    for (std::size_t r = 1; r < all.size(); ++r) {
      require<error>(
          all[r] == all[0],
          "rank {}'s own autocast to {} gives \"{}\" and rank 0's \"{}\" (a plan is for all ranks): it is not "
          "compared",
          r, name(low), all[r].str(), all[0].str());
    }
    return all[0];
  }
  comp::hardware hardware() const override { return common_.hardware; }
  /// Ranks agree on what they measure (team::maximum), so rank 0's plan is everybody's.
  plan tuned_fp32() override { return all_give<plan>({.what = task::tuned_fp32})[0]; }
  /// Ranks agree on how a plan is run (team::maximum), so rank 0's is everybody's.
  comp::execution execution() override { return trainer_.execution(); }
  std::string signature() const override { return common_.signature; }
  bool run_compiled(bool on) override {
    const auto all = all_give<bool>({.what = task::run_compiled, .number = on});
    return std::find(all.begin(), all.end(), true) != all.end();
  }
  void post_training(bool on) override {
    if (!team_.broken()) (void)carried_out({.what = task::post_training, .number = on});
  }
  void trust(const plan& p) override {
    if (has.take_back && !team_.broken()) (void)carried_out({.what = task::trust, .plan = p});
  }
  void go_on_under(const plan& p) override {
    if (!team_.broken()) (void)carried_out({.what = task::go_on_under, .plan = p});
  }

  /// Calls each rank's team::called. Returns: the answers, by rank.
  std::vector<std::string> call(const std::string& text) { return carried_out({.what = task::call, .text = text}); }

  /// Returns: what a user should know of how the ranks differ.
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  template <class T>
  static std::vector<T> unpacked_all(const std::vector<std::string>& bytes) {
    std::vector<T> all;
    for (const std::string& each : bytes) all.push_back(unpacked<T>(each));
    return all;
  }
  template <class T>
  std::vector<T> all_give(order o, const stop_predicate& stop = {}) {
    return unpacked_all<T>(carried_out(std::move(o), stop));
  }

  /// Has all ranks carry out `o`. Returns: what each gives. Throws: the worst failure, with the numbers of its ranks.
  std::vector<std::string> carried_out(order o, const stop_predicate& stop = {}) {
    o.released = std::exchange(*released_, {});
    team_.order(packed(o));
    const auto all = unpacked_all<answer>(team_.meet(packed(own_.carry_out(o, stop))));
    answer worst;
    bool elsewhere = false;
    std::vector<std::string> results;
    for (std::size_t r = 0; r < all.size(); ++r) {
      const answer& one = all[r];
      results.push_back(one.text);
      if (one.why == failure::none || one.why < worst.why) continue;
      const std::string before = one.why == worst.why ? worst.text + "; " : "";
      worst = {one.why, before + said_by(r, one.text)};
      elsewhere = r > 0;
    }
    if (worst.why == failure::interrupted && elsewhere) worst.why = failure::lost;  // that rank is about to end
    if (worst.why != failure::none) throw_as(worst);
    return results;
  }

  /// Returns: for each operator the largest numbers of any rank.
  template <class T>
  static std::vector<T> slowest(const std::vector<std::vector<T>>& ranks, double T::*first, double T::*second) {
    std::vector<T> all = ranks.front();
    for (const std::vector<T>& one : ranks) {
      for (std::size_t i = 0; i < std::min(all.size(), one.size()); ++i) {
        all[i].*first = std::max(all[i].*first, one[i].*first);
        all[i].*second = std::max(all[i].*second, one[i].*second);
      }
    }
    return all;
  }

  any_trainer& trainer_;
  team& team_;
  own_part own_;
  introduction common_;
  std::vector<std::string> remarks_;
  std::optional<plan> set_ = {};  // the plan that all ranks have set
  std::uint64_t states_ = 0;      // the last one's number
  std::shared_ptr<std::vector<std::uint64_t>> released_ = std::make_shared<std::vector<std::uint64_t>>();
  std::optional<std::size_t> batches_ = {};  // of an epoch, once it was asked for
  bool uneven_ = false;
};

}  // namespace comp::ranks::detail
