// SPDX-License-Identifier: Apache-2.0
// Replays recorded runs as a Backend, so that strategies and settings can be compared on real searches without
// training. Files: observe/replay_file.hpp.
// The state is the number of batches since the start. Batch k under a plan has the loss and the time of batch k of that
// plan's recorded epoch, so that plans are compared on the same batches as then. After the epoch come the batches that
// were timed on their own, in the order of the record; what is used up begins anew. A record that ended badly ends
// badly at the same batch. A plan that was not recorded gives a failed sample that says so. Nothing is random, and no
// clock is read.
// Source: the simulation mode of Kernel Tuner.
#pragma once

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/search_space.hpp>
#include <comp/core/trial.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp {

class replay {
 public:
  struct state {
    std::size_t batches = 0;  // batches since the start
    friend bool operator==(const state&, const state&) = default;
  };

  /// `source`: the origin of the runs, for messages and the signature.
  /// Throws: `plan_error` for a plan that does not fit `graph`; `settings_error` if there is no run.
  replay(op_graph graph, const std::vector<trial>& runs, std::string source = "these runs")
      : graph_{std::move(graph)}, source_{std::move(source)}, plan_{graph_.size()} {
    require<settings_error>(!runs.empty(), "{} have no run (there is nothing to replay): record a search first",
                            source_);
    for (const trial& t : runs) {
      require_fits(t.plan, graph_);
      const auto [at, is_new] = records_.try_emplace(t.plan);
      if (is_new) plans_.push_back(t.plan);
      const bool batch = t.stage == stage::times || t.stage == stage::contest;
      (batch ? at->second.batches : at->second.epochs).push_back(t.sample);
    }
  }

  const op_graph& graph() const { return graph_; }
  void set_precision(const plan& p) { plan_ = p; }
  state save() const { return position_; }
  void restore(const state& to) { position_ = to; }
  std::string signature() const { return fmt::format("replay of {}, {} plans", source_, plans_.size()); }

  /// Returns: FP32, and each precision that a recorded plan uses.
  std::vector<precision> supported_precisions() const {
    std::vector<precision> precisions;
    for (const precision each : all_precisions) {
      const auto uses = [each](const plan& p) { return std::find(p.begin(), p.end(), each) != p.end(); };
      if (each == precision::fp32 || std::any_of(plans_.begin(), plans_.end(), uses)) precisions.push_back(each);
    }
    return precisions;
  }

  /// Returns: the recorded epoch of the plan that is set. If several were recorded, each call gives the next one.
  sample run_epoch() {
    return run_epoch([](const sample&) { return false; });
  }
  sample run_epoch(const stop_predicate& stop) {
    record* found = find_record();
    if (found == nullptr || found->epochs.empty()) return missing_sample("epoch", found != nullptr);
    const sample& whole = found->epochs[found->epochs_run++ % found->epochs.size()];
    position_.batches += static_cast<std::size_t>(whole.batches);
    sample so_far;
    so_far.peak_bytes = whole.peak_bytes;
    for (std::size_t i = 0; i < std::min(whole.curve.size(), whole.batch_seconds.size()); ++i) {
      detail::append(so_far, batch_of(whole, i));
      if (stop(so_far)) return so_far;
    }
    return whole;
  }

  /// Returns: the next batch, as recorded under the plan that is set.
  sample run_batch() {
    record* found = find_record();
    if (found == nullptr) return missing_sample("batch", false);
    const std::size_t at = position_.batches++;
    if (!found->epochs.empty()) {
      const sample& epoch = found->epochs.front();
      const std::size_t length = std::max({epoch.batch_seconds.size(), epoch.curve.size(), std::size_t{1}});
      if (at < length || found->batches.empty()) {
        const bool is_over = !epoch.ok() && (at >= length || at >= epoch.curve.size());
        return is_over ? epoch : batch_of(epoch, at % length);
      }
    }
    return found->batches[found->batches_run++ % found->batches.size()];
  }

  bool has(const plan& p) const { return records_.contains(p); }
  /// Returns: each recorded plan once, in the order of the record.
  const std::vector<plan>& plans() const { return plans_; }

 private:
  struct record {
    std::vector<sample> epochs = {}, batches = {};
    std::size_t epochs_run = 0, batches_run = 0;
  };

  record* find_record() {
    const auto at = records_.find(plan_);
    return at == records_.end() ? nullptr : &at->second;
  }

  sample missing_sample(std::string_view what, bool in_another_stage) const {
    sample none;
    none.status = status::failed;
    const std::string letters = plan_.size() <= 64 ? plan_.str() : plan_.str().substr(0, 61) + "...";
    none.message = fmt::format("no {} of plan {} is in {} ({} was recorded): search among replay::plans, or record it",
                               what, letters, source_, in_another_stage ? "another stage of it" : "none of its runs");
    return none;
  }

  // Returns: batch `i` of a recorded run; if single batches were not recorded, their mean.
  static sample batch_of(const sample& of, std::size_t i) {
    sample one;
    one.batches = 1;
    one.peak_bytes = of.peak_bytes;
    one.losses = of.losses;
    for (std::size_t k = 0; k < std::min(of.losses.size(), of.curves.size()); ++k) {
      if (i < of.curves[k].size()) one.losses[k] = of.curves[k][i];
    }
    one.loss = i < of.curve.size() ? of.curve[i] : of.loss;
    const auto batches = static_cast<double>(std::max<std::int64_t>(of.batches, 1));
    one.seconds = i < of.batch_seconds.size() ? of.batch_seconds[i] : of.seconds / batches;
    return one;
  }

  op_graph graph_;
  std::string source_;
  plan plan_;
  state position_ = {};
  std::unordered_map<plan, record> records_ = {};
  std::vector<plan> plans_ = {};
};

static_assert(Backend<replay>);

/// Returns: the space of the recorded plans, so that any strategy can be run on the record alone. Operators that have
/// the same precision as each other in every plan form a group, and the levels of a group are those that were recorded.
/// Only recorded plans are valid.
inline search_space recorded_space(const replay& of) {
  const std::vector<plan>& plans = of.plans();
  plan base = plans.front();
  std::vector<op_group> groups;
  std::unordered_map<std::string, std::size_t>
      group_of_letters;  // finds a group by its precisions, a letter for each plan
  for (std::size_t i = 0; i < base.size(); ++i) {
    std::string letters;
    for (const plan& p : plans) letters += letter(p[i]);
    const auto [at, is_new] = group_of_letters.try_emplace(letters, groups.size());
    if (is_new) {
      groups.push_back({of.graph()[i].name, {}, {}});
      for (const precision each : all_precisions) {
        if (letters.find(letter(each)) != std::string::npos) groups.back().levels.push_back(each);
      }
    }
    groups[at->second].operators.push_back(static_cast<std::uint32_t>(i));
  }
  std::erase_if(groups, [](const op_group& group) { return group.levels.size() == 1; });
  const auto record = std::make_shared<const replay>(of);
  return {std::move(base), std::move(groups), [record](const plan& p) { return record->has(p); }};
}

}  // namespace comp
