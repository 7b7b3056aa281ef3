// SPDX-License-Identifier: Apache-2.0
// The plan of a file in a loop of the user's own: fitted to the operators of the model, checked and run. What each
// member promises stands in planned_region.hpp.
#pragma once

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/core/error.hpp>
#include <comp/core/plan.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/policy/nearest.hpp>
#include <comp/policy/tensor_core.hpp>
#include <comp_libtorch/hook/layer_names.hpp>
#include <comp_libtorch/plan/exchange.hpp>
#include <comp_libtorch/plan/executor_tuning.hpp>
#include <comp_libtorch/plan/named_precisions.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <comp_libtorch/train/planned_region.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace comp::libtorch {

namespace detail {

/// A file's precisions by the common names of operators (layer_names.hpp).
class named_operators {
 public:
  using entry = plan_listing::entry;
  /// Requires: the file has a list of operators, and outlives this.
  explicit named_operators(const plan_listing& from) {
    layer_names layers;
    for (const entry& op : *from.operators) {
      const std::string layer = layers.next(op.name, op.kind);
      entries_.emplace(layer, &op);
      precisions_.add(layer, op.kind, {op.chosen, op.as_written});
    }
  }
  /// Returns: null for an operator that the file does not have.
  const entry* find(const std::string& layer) const {
    const auto at = entries_.find(layer);
    return at == entries_.end() ? nullptr : at->second;
  }
  /// Returns: the precisions of the operator of that name, else of its first call, else what most of its kind have in
  /// the file; `as_written` if the file has none.
  product_precisions chosen(const std::string& layer, const std::string& kind, precision as_written) const {
    if (const auto known = precisions_.find(layer)) return *known;
    return precisions_.usual(layer, kind, as_written);
  }
  /// Returns: "; did you mean ...?" with the nearest name, or nothing.
  std::string nearest(const std::string& layer) const {
    policy::nearest_word best{layer};
    for (const auto& [known, op] : entries_) {
      if (name_parts{known}.word == name_parts{layer}.word) best.offer(known);
    }
    if (best.word().empty()) return {};
    return fmt::format("; did you mean \"{}\"?", entries_.at(best.word())->name);
  }

 private:
  std::map<std::string, const entry*> entries_;
  named_precisions precisions_;
};

}  // namespace detail

COMP_INLINE loaded_plan fitted_by_name(const plan_listing& from, const op_graph& graph, bool forced) {
  const detail::named_operators known{from};
  loaded_plan loaded{.plan = as_written(graph), .execution = from.execution};
  if (from.made_for) loaded.made_for = *from.made_for;
  std::size_t choosable = 0;
  std::vector<std::size_t> unknown;
  std::string first_unknown;
  detail::layer_names layers;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const std::string layer = layers.next(graph[i].name, graph[i].kind);
    if (!computes(graph[i])) continue;
    if (const product of = graph[i].product; in_backward(of)) {
      const std::string whole = layer.substr(0, layer.size() - suffix(of).size());
      loaded.plan[i] = known.chosen(whole, graph[i].kind, graph[i].as_written).of(of);
      continue;
    }
    const auto* listed = known.find(layer);
    if (graph[i].choosable || listed != nullptr)
      loaded.plan[i] = known.chosen(layer, graph[i].kind, graph[i].as_written).forward;
    if (!graph[i].choosable) continue;
    ++choosable;
    if (listed != nullptr) continue;
    if (unknown.empty()) first_unknown = layer;
    unknown.push_back(i);
  }
  comp::detail::keep_authors_choices(loaded, graph, from.file);
  if (!unknown.empty()) {
    const op_info& first = graph[unknown.front()];
    const std::string nearest = known.nearest(first_unknown);
    require<plan_error>(
        forced || 2 * unknown.size() <= choosable,
        "\"{}\" is for another model: it does not have {} of this one's {} operators, first \"{}\" ({}{}): give models "
        "the names that they had in the search, or search again",
        from.file, unknown.size(), choosable, first.name, first.kind, nearest);
    loaded.warnings.push_back(fmt::format(
        "\"{}\" does not have {} of the model's {} operators, first \"{}\" ({}{}): they run as most of their "
        "kind do in it",
        from.file, unknown.size(), choosable, first.name, first.kind, nearest));
  }
  loaded.plan = from.run_as_listed(loaded.plan);
  if (loaded.plan.runs_autocast() && loaded.plan.count_lowered(graph) == 0)
    loaded.plan = loaded.plan.operator_by_operator();
  return loaded;
}

namespace detail {

inline bool is_moment(std::string_view kind) { return kind == "moment1" || kind == "moment2"; }

/// Calls `f` with what the file says at the training's start, and from each later plan on.
template <class F>
void for_each_plan(const plan_listing& file, F f) {
  f(file.at(0));
  for (const later_plan& next : file.later) f(file.at(next.batch));
}

// A plan without names is one for the graph that the settings give.
COMP_INLINE program_settings with_operators_of(const plan_listing& from, program_settings settings, bool forced) {
  settings.emulate = settings.emulate || forced;
  const auto apart = [](const auto& op) { return gradient_named(op.name) != product::all; };
  const auto exchanges = [](const auto& op) { return op.kind == exchange_kind; };
  if (!from.operators) return settings;
  settings.separate_products = std::ranges::any_of(*from.operators, apart);
  settings.exchange = std::ranges::any_of(*from.operators, exchanges);
  for (const auto& op : *from.operators) {
    if (is_moment(op.kind))
      settings.states.push_back({.name = op.name, .kind = op.kind, .hands_on_fp32 = true, .is_state = true});
  }
  return settings;
}

COMP_INLINE void require_useful(const plan_listing& from, const program_settings& settings, const hardware& here) {
  const std::string_view force_plan = by_language("set planned_settings::forced", "give forced=True");
  for_each_plan(from, [&](const plan_listing& listing) {
    const hardware there = listing.made_for.value_or(hardware{});
    for (std::size_t i = 0; i < listing.size(); ++i) {
      const precision chosen = listing.chosen(i);
      if (listing.operators && is_moment((*listing.operators)[i].kind)) continue;  // nothing is computed in its format
      require<plan_error>(!is_scaled(chosen) || computes_in(chosen, here, emulates(settings)),
                          "\"{}\" gives an operator {} (LibTorch only emulates it on this GPU): search again on this "
                          "machine, or {}",
                          listing.file, name(chosen), force_plan);
      const std::string missing = is_low(chosen) ? policy::no_unit(chosen, here) : std::string{};
      require<plan_error>(
          missing.empty() || policy::no_unit(chosen, there) == missing,
          "\"{}\" gives operator {} (\"{}\") {} ({}; it was found on {}): search again on this machine, "
          "or {}",
          listing.file, i, listing.operators ? (*listing.operators)[i].name : std::string{}, name(chosen), missing,
          there.kind == device_kind::unknown ? "an unknown machine" : there.name, force_plan);
    }
  });
}

COMP_INLINE std::string moments_that_nobody_keeps(const plan_listing& from, const plan& p, const op_graph& graph) {
  if (!lowers_states(p, graph)) return {};
  return fmt::format(
      "\"{}\" keeps an optimizer's moments in a lower format (the optimizer of this loop is its own): they stay as it "
      "keeps them; {} keeps them by the plan",
      from.file,
      by_language("a trainer with setup::moments",
                  "comp.plan(..., optimizer=optimizer), comp.autocast(..., moments=True)"));
}

class listed_plan {
 public:
  listed_plan(const std::vector<named_module>& models, const std::variant<std::string, plan>& from,
              planned_settings settings)
      : settings_{std::move(settings)},
        of_file_{std::holds_alternative<std::string>(from)},
        file_{of_file_ ? load_listing(std::get<std::string>(from))
                       : plan_listing{.file = "the plan", .letters = std::get<plan>(from)}},
        listing_{file_.at(0)},
        program_{on_device_of(models, with_operators_of(listing_, settings_.program, settings_.forced))},
        here_{probe(program_.settings().device)} {
    if (of_file_ && !settings_.forced) require_useful(file_, program_.settings(), here_);
    if (settings_.choices == planned_choices::measured)
      require_one_rank("planned_choices::measured", "use planned_choices::of_file");
    for (const named_module& m : models) program_.name_parameters(*m.module, m.name);
    if (listing_.operators) {
      program_.record_under(make_first_plan());
    } else {
      program_.record(true);  // without a list of operators nothing says which hand on FP32
    }
  }

  region enter(std::string_view segment) {
    const std::lock_guard only_one{mutex_};
    const auto known = [&](const std::string& s) { return program_.has_recorded(s); };
    if (!planned_ && (program_.is_recorded() || std::ranges::all_of(settings_.segments, known))) end_recording();
    if (measurement_ && segment == settings_.segments.front()) measure_step();
    return planned_ && changes_nothing() ? program_.enter_unplanned() : program_.enter(segment);
  }
  void set_batch(std::size_t batch) {
    const std::lock_guard only_one{mutex_};
    const auto changes = std::ranges::count_if(file_.later, [&](const later_plan& p) { return p.batch <= batch; });
    if (changes == changes_) return;
    listing_ = file_.at(batch);
    if (measurement_) program_.profile(false);
    measurement_.reset();  // it timed another plan
    if (planned_) {
      program_.set_plan(load().plan);
      if (by_name()) program_.set_unrecorded(make_first_plan().by_name);
      use(program_, tuned_.choice);
    } else if (listing_.operators) {
      program_.record_under(make_first_plan());
    }
    changes_ = changes;  // at the end, so that a plan that does not fit is refused each time
  }
  region evaluate() {
    const bool as_written =
        !listing_.lowers() && program_.settings().protect_blocks;  // kernels and layouts are for training
    return as_written ? program_.enter_unplanned() : program_.evaluate();
  }

  bool planned() const { return planned_; }
  bool needs_scaling() const {
    bool found = false;
    for_each_plan(file_, [&](const plan_listing& each) {
      for (std::size_t i = 0; i < each.size(); ++i) found = found || each.chosen(i) == precision::fp16;
    });
    return found;
  }
  const std::vector<std::string>& warnings() const { return warnings_; }
  comp::execution execution() const {
    return planned_ && !measurement_ && !listing_.runs_autocast() ? execution_of(tuned_) : comp::execution{};
  }
  program& executor() { return program_; }

 private:
  /// If true, regions cost nothing. Unless on_mismatch::follow is set, each forward is compared with the recorded one.
  bool changes_nothing() const {
    const program_settings& now = program_.settings();
    return !program_.changes() && !program_.may_read_low() && now.otherwise == on_mismatch::follow &&
           now.protect_blocks;
  }

  // A plan without names goes by the order of the operators.
  bool by_name() const { return settings_.match == plan_match::by_name && listing_.operators; }

  /// Returns: what operators get when they come by for the first time. Requires: the file lists them.
  first_plan make_first_plan() const {
    first_plan plan;
    for (std::size_t i = 0; listing_.runs_autocast() && i < listing_.size(); ++i) {
      if (is_low(listing_.chosen(i))) plan.autocast = scalar_type(listing_.chosen(i));
    }
    const auto known = std::make_shared<const named_operators>(listing_);
    plan.by_name = [known](const std::string& layer, const std::string& kind, precision own) {
      return known->chosen(layer, kind, own);
    };
    plan.choose = [this, known](std::size_t i, const op_info& op, const std::string& layer) {
      if (!by_name()) listing_.require_operator(i, op.name, op.kind);
      const auto* listed = by_name() ? known->find(layer) : &(*listing_.operators)[i];
      first_choice choice{known->chosen(layer, op.kind, op.as_written)};
      if (listed == nullptr) return choice;
      choice.hands_on_fp32 = listed->hands_on_fp32;
      choice.gives_low = is_low(listed->gives);
      return choice;
    };
    return plan;
  }

  /// Ends the recording when each segment was seen: from now on the plan goes by the recorded operators.
  void end_recording() {
    program_.record(false);
    loaded_plan loaded;
    try {
      loaded = load();
      program_.set_plan(loaded.plan);
      if (by_name()) program_.set_unrecorded(make_first_plan().by_name);
    } catch (const plan_error&) {
      if (!program_.is_unsure()) throw;
      program_.record(true);  // a recording in FP32 is certain
      return;
    }
    warnings_ = loaded.warnings;
    tuned_.choice = choice_in(settings_.program);
    if (settings_.choices == planned_choices::of_file) {
      for (std::string& left_out : apply(loaded, here_, tuned_)) warnings_.push_back(std::move(left_out));
    } else if (settings_.choices == planned_choices::measured && is_tunable(loaded.plan, program_.graph())) {
      measurement_.emplace(program_.options_of(loaded.plan), settings_.tuning);
    }
    if (const std::size_t emulated = count_misfits(loaded.plan); emulated > 0)
      warnings_.push_back(
          fmt::format("\"{}\" gives {} linear layers, or products of them, a format that this GPU's units do not "
                      "multiply in these sizes (16 has to divide rows, inputs and outputs): they are emulated, slowly",
                      listing_.file, emulated));
    if (std::string kept = moments_that_nobody_keeps(listing_, loaded.plan, program_.graph());
        !settings_.keeps_states && !kept.empty())
      warnings_.push_back(std::move(kept));
    if (loaded.plan.is_tuned() && !measurement_ && tuned_.choice == executor_choice{})
      warnings_.push_back(fmt::format(
          "\"{}\" is of tuned FP32 and says nothing that can be used here of how it is run: it runs as plain FP32",
          listing_.file));
    use(program_, tuned_.choice);
    planned_ = true;
  }

  /// Returns: how many operators have a format below 16 bits that is emulated though the GPU has it.
  std::size_t count_misfits(const plan& p) const {
    std::size_t found = 0;
    for (std::size_t i = 0; i < p.size(); ++i)
      found += is_scaled(p[i]) && !program_.graph()[i].is_state && !program_.takes_scaled(program_.graph()[i]);
    return found;
  }

  loaded_plan load() const {
    if (!of_file_) return {.plan = *listing_.letters};
    if (!by_name()) return fitted(listing_, program_.graph(), &here_);
    loaded_plan loaded = fitted_by_name(listing_, program_.graph(), settings_.forced);
    if (listing_.made_for) comp::detail::warn_of_hardware(loaded.made_for, here_, loaded);
    return loaded;
  }

  /// Takes the time of the user's step that has ended, and chooses how the one that begins is run.
  void measure_step() {
    if (program_.has_open_region()) return step_began_.reset();  // another thread's: no step can be timed alone
    synchronize(program_.settings().device);
    if (step_began_) {
      measurement_->add({step_began_->seconds(), program_.times()});
    }
    program_.profile(!measurement_->done() && measurement_->times_operators());
    if (measurement_->done()) {
      tuned_ = measurement_->best();
      measurement_.reset();
      return use(program_, tuned_.choice);
    }
    use(program_, measurement_->next());
    step_began_.emplace();
  }

  planned_settings settings_;
  bool of_file_;
  plan_listing file_, listing_;  // the file, and what it says of the present batch
  std::ptrdiff_t changes_ = 0;   // how many plans came before the present one
  program program_;
  hardware here_;
  std::mutex mutex_ = {};
  bool planned_ = false;
  std::vector<std::string> warnings_;
  tuned_choice tuned_;
  std::optional<choice_measurement> measurement_;      // while it goes on
  std::optional<comp::detail::stopwatch> step_began_;  // with the user's step
};

}  // namespace detail

COMP_INLINE planned_region::planned_region(const std::vector<named_module>& models,
                                           const std::variant<std::string, plan>& from, planned_settings settings)
    : plan_{std::make_unique<detail::listed_plan>(models, from, std::move(settings))} {}
COMP_INLINE planned_region::~planned_region() = default;
COMP_INLINE region planned_region::enter(std::string_view segment) { return plan_->enter(segment); }
COMP_INLINE void planned_region::set_batch(std::size_t batch) { plan_->set_batch(batch); }
COMP_INLINE region planned_region::evaluate() { return plan_->evaluate(); }
COMP_INLINE bool planned_region::planned() const { return plan_->planned(); }
COMP_INLINE bool planned_region::needs_scaling() const { return plan_->needs_scaling(); }
COMP_INLINE const std::vector<std::string>& planned_region::warnings() const { return plan_->warnings(); }
COMP_INLINE comp::execution planned_region::execution() const { return plan_->execution(); }
COMP_INLINE program& planned_region::executor() { return plan_->executor(); }

}  // namespace comp::libtorch
