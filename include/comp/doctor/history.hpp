// SPDX-License-Identifier: Apache-2.0
// What a doctor saw in many steps of a training. Each step's examination is merged into counts of all steps, and of
// each operator and parameter a few numbers are kept, so that memory does not grow with the steps. findings.hpp says
// what is wrong.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/names.hpp>
#include <comp/core/precision.hpp>
#include <comp/doctor/examination.hpp>
#include <comp/doctor/faults.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace comp {

namespace detail {
class history_faults;
}

/// One parameter in one step, as a backend saw it.
struct parameter_step {
  std::string name = {};
  precision format = precision::fp32;   // in which the weight is stored
  bool frozen = false;                  // wants no gradient
  std::optional<bool> optimized = {};   // an optimizer that ran has it; nothing: not known
  std::optional<double> rate = {};      // that optimizer's learning rate
  bool arrived = false;                 // a backward gave it a gradient
  value_counts gradient = {};           // as the optimizer read it; without an optimizer's step as it was at the end
  std::size_t updates = 0;              // optimizer steps, or one if the weight was changed otherwise
  std::size_t old_gradients = 0;        // updates whose gradient held one that an earlier update had used
  std::uint64_t moved = 0, stayed = 0;  // elements with a gradient other than 0 that the updates changed, and did not
};

/// What is known of a step besides its examination.
struct step_record {
  std::optional<double> loss = {};
  std::optional<std::uint64_t> batch = {};  // depends on each value of the batch
  std::size_t batch_number = 0;             // of its epoch
  bool rows_alike = false;                  // each matrix of the batch has rows that are all the same
  /// If the batch has a matrix of one row beside larger ones: a hash of its values, and the rows of the largest.
  std::optional<std::pair<std::uint64_t, std::int64_t>> one_row = {};
  bool optimizer_ran = false;
  std::vector<std::string> evaluating = {};  // models that were in evaluation mode in a forward with gradients
  std::vector<std::string> apart = {};       // parameters that should be equal on all ranks, and are not
  std::vector<parameter_step> parameters = {};
};

/// A magnitude over the steps: where it began, and where it is.
struct trend {
  std::size_t count = 0;
  double early = 0, recent = 0;  // mean log10 of the first five; moving mean

  void add(double size) {
    if (!(size > 0) || !std::isfinite(size)) return;
    const double log = std::log10(size);
    if (count < 5) early += (log - early) / static_cast<double>(count + 1);
    recent = count == 0 ? log : recent + 0.2 * (log - recent);
    ++count;
  }
  /// Returns by which factor it grew.
  double growth() const { return count == 0 ? 1 : std::pow(10, recent - early); }
};

/// Since which step something has been so without a break.
struct run_of_steps {
  std::optional<std::size_t> first = {};
  std::size_t length = 0;

  void add(std::size_t step, bool is_so) {
    if (!is_so) *this = {};
    if (is_so && length++ == 0) first = step;
  }
};

struct operator_history {
  std::size_t backwards = 0;
  std::size_t small = 0;    // backwards whose gradients were far smaller than the largest of the step
  run_of_steps dead;        // an activation before parameters whose results all have one magnitude
  run_of_steps dropped;     // dropout in a forward without gradients
  trend values, gradients;  // mean magnitudes
  double zeros = 0;         // share in the last step
};

struct parameter_history {
  precision format = precision::fp32;
  std::size_t steps = 0, frozen = 0, read = 0, arrived = 0, zero = 0, updates = 0, old_gradients = 0, moved = 0;
  std::size_t small = 0;  // gradients far smaller than the model's largest: mere rounding errors, perhaps
  std::optional<bool> optimized = {};
  trend gradients;         // mean magnitude
  double stayed = 0;       // moving mean of the share of elements with a gradient that an update left as they were
  std::size_t judged = 0;  // updates in that mean
};

class history {
 public:
  /// Adds a step. Steps of one training have the same names for operators; an operator that not all have is kept, too.
  void add(const examination& values, const step_record& record) {
    all_.low = values.low;
    const std::size_t step = steps_++;
    const bool updated =
        record.optimizer_ran || std::ranges::any_of(record.parameters, [](const auto& p) { return p.updates > 0; });
    const bool backward = std::ranges::any_of(record.parameters, &parameter_step::arrived);
    backwards_ += backward;
    updates_ += updated;
    // A backward that makes infinities, and no update after it, is what a loss scaler does while it finds its scale.
    note_not_finite(values, step, updated);
    waits_.add(step, backward && !updated);
    longest_wait_ = updates_ > 0 && updated ? std::max(longest_wait_, wait_) : longest_wait_;
    wait_ = updated ? 0 : waits_.length;
    note_updates(record, step);
    note_modes(values, record, step);
    note_scale(values, step);
    if (!record.apart.empty() && apart_++ == 0) first_apart_ = {record.apart, step};
    const std::vector<bool> feeds = before_parameters(values);
    float largest = 0;
    for (std::size_t i = 0; i < values.entries.size(); ++i) {
      if (reads_parameter(values, i)) largest = std::max(largest, values.entries[i].gradients.largest);
    }
    for (std::size_t i = 0; i < values.entries.size(); ++i) add_operator(values, i, step, feeds[i], largest);
    add_parameters(values, record);
    if (record.loss) {
      same_loss_.add(step, !loss_ || *loss_ == *record.loss);
      if (!std::isfinite(*record.loss) && !bad_loss_) bad_loss_ = step;
      loss_ = record.loss;
    }
    if (record.batch) {
      repeats_ += record.batch_number > 0 && batch_ == record.batch;
      batch_ = record.batch;
      ++known_batches_;
      alike_ += record.rows_alike;
    }
    broadcasts_.add(step, record.one_row && record.one_row != one_row_);
    one_row_ = record.one_row;
  }

  std::size_t steps() const { return steps_; }
  /// Returns the counts of all steps, merged. Samples, inputs and errors in low precision are of single steps, and left
  /// out.
  const examination& merged() const { return all_; }
  const operator_history& operator_of(std::size_t entry) const { return operators_[entry]; }
  const std::map<std::string, parameter_history>& parameters() const { return parameters_; }
  std::optional<double> loss() const { return loss_; }
  std::optional<std::size_t> entry_of(const std::string& name) const {
    const auto at = places_.find(name);
    return at == places_.end() ? std::nullopt : std::optional{at->second};
  }

 private:
  friend class detail::history_faults;

  static bool reads_parameter(const examination& e, std::size_t i) {
    return e.entries[i].is_operator() && std::ranges::any_of(e.entries[i].inputs, [&](std::size_t from) {
             return e.entries[from].kind == "parameter";
           });
  }
  /// Returns which entries lead to an operator with parameters: an activation there should not die.
  static std::vector<bool> before_parameters(const examination& e) {
    std::vector<bool> feeds(e.entries.size());
    for (std::size_t i = e.entries.size(); i-- > 0;) {
      if (!feeds[i] && !reads_parameter(e, i)) continue;
      for (const std::size_t from : e.entries[i].inputs) feeds[from] = true;
    }
    return feeds;
  }
  static bool is_activation(const examined& e) {
    return has_name(
        "relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid tanh hardtanh hardswish hardsigmoid "
        "threshold clamp clamp_min",
        detail::word_of(e.kind));
  }

  void note_not_finite(const examination& values, std::size_t step, bool updated) {
    std::vector<fault> wrong;
    for (fault& f : faults(values)) {
      if (f.kind <= fault_kind::infinity) wrong.push_back(std::move(f));
    }
    if (wrong.empty()) return;
    if (!updated && std::ranges::all_of(wrong, &fault::backward)) {
      if (skipped_++ == 0) skipped_for_ = wrong.front();
      return;
    }
    if (!not_finite_.empty()) return;  // what follows comes of it
    for (fault& f : wrong) f.step = step;
    not_finite_ = std::move(wrong);
  }
  void note_updates(const step_record& record, std::size_t step) {
    bool any = false, above = false, wanted = false, moved = false;
    for (const parameter_step& p : record.parameters) {
      if (p.updates == 0 || !p.rate) continue;
      any = true;
      above = above || *p.rate != 0;
      wanted = wanted || (*p.rate != 0 && p.stayed > 0 && p.gradient.finite());
      moved = moved || p.moved > 0;
    }
    if (any) zero_rate_.add(step, !above);
    if (wanted || moved) idle_.add(step, !moved);
  }
  void note_modes(const examination& values, const step_record& record, std::size_t step) {
    std::unordered_set<std::string> stays;  // models whose forward with gradients is in evaluation mode throughout
    for (const std::string& model : record.evaluating) {
      // A forward that only evaluates may have gradients, too, if nobody switched them off.
      bool evaluates = false, trains = false;
      const auto is_of = [&](const std::string& name) { return model.empty() || name.starts_with(model + "."); };
      for (const examined& e : values.entries) {
        if (!e.trains || e.without_gradients || !is_of(e.name)) continue;
        (*e.trains ? trains : evaluates) = true;
      }
      if (evaluates && !trains) stays.insert(model);
    }
    for (auto& [model, run] : evaluating_) run.add(step, stays.contains(model));
    for (const std::string& model : stays) {
      if (!evaluating_.contains(model)) evaluating_[model].add(step, true);
    }
  }
  /// Looks for an operator with parameters whose results are far larger in a forward without gradients than in the next
  /// one with them, which has the same weights unless an update was in between. Batch norm is passed over: before its
  /// statistics are learned, evaluations of a sound model differ, too.
  void note_scale(const examination& values, std::size_t step) {
    constexpr std::uint64_t enough = 64;  // the mean of fewer values varies
    if (std::ranges::any_of(values.entries, [](const examined& e) {
          return detail::word_of(e.kind).find("batch_norm") != std::string_view::npos;
        }))
      return evaluated_.clear();
    for (std::size_t i = 0; i < values.entries.size(); ++i) {
      const examined& e = values.entries[i];
      if (!reads_parameter(values, i) || !e.values.finite() || e.values.values < enough) continue;
      const std::string name{name_without_count(e.name)};
      if (e.without_gradients) {
        evaluated_.try_emplace(name, e.values.mean(), step);
        continue;
      }
      const auto before = evaluated_.extract(name);
      if (!before || scale_ || e.values.mean() == 0) continue;
      const auto [mean, of] = before.mapped();
      if (mean > 10 * e.values.mean()) scale_ = {name, mean / e.values.mean(), of};
    }
  }
  /// "fc.linear" of "fc.linear_2", the module's second run in a step.
  static std::string_view name_without_count(std::string_view name) {
    const std::size_t end = name.find_last_not_of("0123456789");
    return end + 1 < name.size() && name[end] == '_' ? name.substr(0, end) : name;
  }

  void add_operator(const examination& values, std::size_t i, std::size_t step, bool feeds, float largest) {
    const examined& e = values.entries[i];
    const auto [place, is_new] = places_.try_emplace(e.name, all_.entries.size());
    if (is_new) {
      all_.entries.push_back({.name = e.name, .kind = e.kind, .shape = e.shape});
      operators_.emplace_back();
    }
    examined& to = all_.entries[place->second];
    operator_history& h = operators_[place->second];
    to.values.merge(e.values);
    to.gradients.merge(e.gradients);
    for (std::size_t f = 0; f < to.blocks.size(); ++f) {
      for (std::size_t o = 0; o < to.blocks[f].size(); ++o) to.blocks[f][o].merge(e.blocks[f][o]);
    }
    h.values.add(e.values.mean());
    h.zeros = share(e.values.zeros, e.values.values);
    if (!e.is_operator()) return;
    const value_counts& v = e.values;
    const bool one_size = v.finite() && v.values > 1 && (v.counted() == 0 || (v.zeros == 0 && v.smallest == v.largest));
    if (feeds && is_activation(e)) h.dead.add(step, one_size);
    if (e.trains && detail::word_of(e.kind).find("batch_norm") == std::string_view::npos)
      h.dropped.add(step, e.without_gradients && *e.trains);
    if (e.gradients.values == 0) return;
    ++h.backwards;
    h.gradients.add(e.gradients.mean());
    h.small += reads_parameter(values, i) && e.gradients.finite() && e.gradients.largest < 1e-7F * largest;
  }

  void add_parameters(const examination& values, const step_record& record) {
    std::unordered_set<std::string_view> read;
    for (const examined& e : values.entries) {
      if (!e.is_operator() || e.without_gradients) continue;
      for (const std::size_t from : e.inputs) {
        if (values.entries[from].kind == "parameter") read.insert(values.entries[from].name);
      }
    }
    float largest = 0;
    double most = 0;
    for (const parameter_step& p : record.parameters) {
      largest = std::max(largest, p.gradient.largest);
      most = std::max(most, p.gradient.mean());
    }
    gradients_.add(most);
    optimizer_ran_ = optimizer_ran_ || record.optimizer_ran;
    for (const parameter_step& p : record.parameters) {
      parameter_history& h = parameters_[p.name];
      h.format = p.format;
      ++h.steps;
      h.frozen += p.frozen;
      h.read += read.contains(p.name);
      h.arrived += p.arrived;
      h.updates += p.updates;
      h.old_gradients += p.old_gradients;
      h.moved += p.moved > 0;
      if (p.optimized) h.optimized = h.optimized.value_or(false) || *p.optimized;
      if (const auto at = places_.find(p.name); at != places_.end())
        all_.entries[at->second].gradients.merge(p.gradient);
      if (p.gradient.values == 0) continue;
      h.zero += p.gradient.finite() && p.gradient.largest == 0;
      h.small += p.gradient.finite() && p.gradient.largest < 1e-5F * largest;
      h.gradients.add(p.gradient.mean());
      if (p.updates == 0 || p.moved + p.stayed == 0 || p.rate == 0) continue;
      const double stayed = share(p.stayed, p.moved + p.stayed);
      h.stayed = h.judged++ == 0 ? stayed : h.stayed + 0.2 * (stayed - h.stayed);
    }
  }

  static double share(std::uint64_t part, std::uint64_t of) {
    return of == 0 ? 0 : static_cast<double>(part) / static_cast<double>(of);
  }

  examination all_;
  std::vector<operator_history> operators_;  // by entry of all_
  std::unordered_map<std::string, std::size_t> places_;
  std::map<std::string, parameter_history> parameters_;
  std::size_t steps_ = 0, backwards_ = 0, updates_ = 0;
  std::vector<fault> not_finite_;
  std::size_t skipped_ = 0;
  std::optional<fault> skipped_for_;
  run_of_steps waits_;  // steps with a backward and no update
  std::size_t wait_ = 0, longest_wait_ = 0;
  run_of_steps zero_rate_;
  run_of_steps idle_;  // updates that changed nothing, though there were gradients and a learning rate
  std::map<std::string, run_of_steps> evaluating_;
  trend gradients_;  // of the parameter with the largest mean
  bool optimizer_ran_ = false;
  std::optional<double> loss_;
  run_of_steps same_loss_;
  std::optional<std::size_t> bad_loss_;
  std::optional<std::uint64_t> batch_;
  std::size_t known_batches_ = 0, alike_ = 0;
  std::optional<std::pair<std::uint64_t, std::int64_t>> one_row_;
  run_of_steps broadcasts_;  // steps whose batch had one row for all, with values other than the step before
  std::size_t repeats_ = 0;  // batches that have the values of the one before them
  std::map<std::string, std::pair<double, std::size_t>> evaluated_;  // means and steps of operators without gradients
  struct difference_of_scale {
    std::string name;
    double factor = 1;
    std::size_t step = 0;
  };
  std::optional<difference_of_scale> scale_;
  std::size_t apart_ = 0;  // steps after which ranks have different weights
  std::pair<std::vector<std::string>, std::size_t> first_apart_;
};

}  // namespace comp
