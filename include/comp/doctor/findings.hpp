// SPDX-License-Identifier: Apache-2.0
// Decides what is wrong in a training of many steps. A sound training has no finding, so each rule leaves out what
// sound trainings do: layers that are frozen, gradients that several batches add up, a learning rate that begins at 0,
// biases before a normalization, whose gradient is 0 but for rounding errors, networks that are only copied, a few
// skipped steps of a loss scaler, an evaluation whose batch norm has learned nothing yet. Not told, because nothing in
// the values differs from what somebody wants: which layers ought to be frozen, a mask that is inverted (unless it
// closes a row, which makes NaN), wrong labels.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/doctor/history.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {
namespace detail {

/// Finds the faults of one history.
class history_faults {
 public:
  explicit history_faults(const history& h) : all_{h} {}

  /// Returns the findings; what others follow from comes first.
  std::vector<fault> find() {
    found_ = all_.not_finite_;
    for (fault& f : found_) f.text += fmt::format(" (first in step {})", f.step);
    if (all_.bad_loss_ && found_.empty())
      add(fault_kind::nan, "loss", *all_.bad_loss_,
          "is not finite, though all that the regions ran is: look at what is computed outside of them");
    data();
    ranks();
    optimizers();
    modes();
    activations();
    gradients();
    weights();
    if (found_.empty() && all_.same_loss_.length >= 5 && all_.same_loss_.length == all_.steps_ && *all_.loss_ != 0)
      add(fault_kind::same_loss, "loss", 0,
          fmt::format("was {:g} in all {} steps: see that it is computed of what the model returns", *all_.loss_,
                      all_.steps_));
    return std::move(found_);
  }

 private:
  static constexpr std::size_t few = 3;  // fewer steps say nothing
  using named = std::pair<const std::string, parameter_history>;

  /// How many steps in turn are no accident.
  std::size_t enough() const { return std::max<std::size_t>(5, all_.steps_ / 10); }
  void add(fault_kind kind, const std::string& name, std::size_t step, std::string_view text, bool backward = false) {
    found_.push_back({all_.entry_of(name).value_or(all_.merged().entries.size()), name, kind, backward,
                      fmt::format("\"{}\" {}", name, text), step});
  }
  /// Words of a sentence about one parameter, or about several.
  struct grammar {
    const char *are, *get, *change, *does, *them, *they, *their_first;
  };
  static constexpr grammar one{"is", "gets", "changes", "does", "it", "it", "its"},
      several{"are", "get", "change", "do", "them", "they", "the first one's"};

  /// Adds one finding for all parameters of which `is` holds, named after the first.
  void add_all(fault_kind kind, auto is, auto text) {
    const auto holds = [&](const named& p) { return is(p.second); };
    const auto first = std::ranges::find_if(all_.parameters_, holds);
    if (first == all_.parameters_.end()) return;
    const auto others = std::ranges::count_if(all_.parameters_, holds) - 1;
    add(kind, first->first, 0,
        and_others(static_cast<std::size_t>(others)) + text(first->second, others == 0 ? one : several));
  }
  static std::string and_others(std::size_t count) {
    return count == 0 ? "" : fmt::format("and {} other parameter{} ", count, count == 1 ? "" : "s");
  }

  void data() {
    if (all_.known_batches_ < few) return;
    if (all_.repeats_ >= few && 5 * all_.repeats_ >= 2 * all_.known_batches_)
      add(fault_kind::same_batch, "batch", 0,
          fmt::format("had the values of the batch before it in {} of {} steps: look at how the data set makes its "
                      "items, and give each worker of the loader a random seed of its own",
                      all_.repeats_, all_.known_batches_));
    else if (all_.alike_ == all_.known_batches_)
      add(fault_kind::same_batch, "batch", 0,
          fmt::format(
              "had the same values in all of its rows in all {} steps: look at how the data set makes its items",
              all_.known_batches_));
    if (all_.broadcasts_.length >= enough())
      add(fault_kind::broadcast, "batch", *all_.broadcasts_.first,
          fmt::format("has a tensor of one row, other values in each step, beside one of {} rows, in {} steps: the row "
                      "stands for all others, too; look at how the batch is put together",
                      all_.one_row_->second, all_.broadcasts_.length));
  }

  void ranks() {
    if (all_.apart_ < few) return;
    const auto& [names, step] = all_.first_apart_;
    add(fault_kind::rank_difference, names.front(), step,
        fmt::format("{}had different values on the ranks after {} of {} steps, since step {}: gradients are not "
                    "averaged, or arrive damaged; wrap the model in DistributedDataParallel once, after it was moved "
                    "or converted, and run that in each step",
                    and_others(names.size() - 1), all_.apart_, all_.steps_, step));
  }

  void optimizers() {
    if (all_.backwards_ >= 10 && all_.updates_ == 0) {
      add(fault_kind::no_update, "optimizer", 0,
          fmt::format("changed nothing in {} steps that had a backward: call optimizer.step()", all_.backwards_));
    } else if (const auto& w = all_.waits_;
               all_.updates_ > 0 && w.length > std::max<std::size_t>(10, 5 * all_.longest_wait_)) {
      add(fault_kind::no_update, "optimizer", *w.first,
          fmt::format("has changed nothing since step {}, in {} steps: if a loss scaler skips them, gradients are not "
                      "finite, {}; else call optimizer.step()",
                      *w.first, w.length, all_.skipped_for_ ? all_.skipped_for_->text : "as its get_scale() tells"));
    } else if (all_.skipped_ >= 10 && 2 * all_.skipped_ > all_.backwards_) {
      add(fault_kind::no_update, "optimizer", 0,
          fmt::format("skipped {} of {} steps, because gradients are not finite: {}", all_.skipped_, all_.backwards_,
                      all_.skipped_for_->text),
          true);
    }
    if (all_.zero_rate_.length >= enough())
      add(fault_kind::zero_rate, "optimizer", *all_.zero_rate_.first,
          fmt::format("has a learning rate of 0 since step {}, in {} updates: look at its scheduler",
                      *all_.zero_rate_.first, all_.zero_rate_.length));
    const auto has_gradients = [this](const parameter_history& p) {
      return p.arrived >= std::min<std::size_t>(enough(), std::max(few, all_.backwards_)) && p.zero < p.arrived;
    };
    const auto is_optimized = [](const named& p) { return p.second.optimized.value_or(false); };
    const bool none = std::ranges::none_of(all_.parameters_, is_optimized);
    const bool frozen = std::ranges::all_of(
        all_.parameters_, [&](const named& p) { return !is_optimized(p) || p.second.frozen == p.second.steps; });
    add_all(
        fault_kind::no_optimizer,
        [&](const parameter_history& p) {
          return p.optimized == false && p.moved == 0 && all_.optimizer_ran_ && has_gradients(p);
        },
        [&](const parameter_history& p, const grammar& words) {
          return fmt::format(
              "{} gradients in {} steps, but no optimizer that ran has {}{}: make the optimizer of this model's "
              "parameters, after its last layer was added; or call requires_grad_(False), if {} shall stay",
              words.get, p.arrived, words.them,
              none     ? ", nor any other of the model"
              : frozen ? "; what it has is frozen, so that nothing learns"
                       : "",
              words.they);
        });
    add_all(
        fault_kind::old_gradient,
        [&](const parameter_history& p) {
          return p.old_gradients >= few && 10 * (p.old_gradients + 1) >= 9 * p.updates;
        },
        [&](const parameter_history& p, const grammar& words) {
          return fmt::format(
              "{} updated by gradients that hold those of earlier updates, {} of {} times: call "
              "optimizer.zero_grad() in each step",
              words.are, p.old_gradients, p.updates);
        });
  }

  void modes() {
    for (const auto& [model, run] : all_.evaluating_) {
      const auto learns = [&](const named& p) {
        return p.second.moved > 0 && (model.empty() || p.first.starts_with(model + "."));
      };
      if (run.length < std::min(enough(), std::max(few, all_.steps_))) continue;
      if (std::ranges::none_of(all_.parameters_, learns)) continue;
      add(fault_kind::evaluation_mode, model.empty() ? "model" : model, *run.first,
          fmt::format(
              "trains in evaluation mode since step {}, so that dropout and batch norm do not act as in training: "
              "call train() after each evaluation",
              *run.first));
    }
    if (const auto& s = all_.scale_)
      add(fault_kind::evaluation_scale, s->name, s->step,
          fmt::format(
              "gave values {:.0f} times as large in a forward without gradients as in one with them, in step {}: "
              "prepare both inputs alike, and run a training forward first if it makes state, as "
              "spectral_norm does",
              s->factor, s->step));
    for (std::size_t i = 0; i < all_.operators_.size(); ++i) {
      const run_of_steps& run = all_.operators_[i].dropped;
      if (run.length == 0) continue;
      return add(
          fault_kind::dropout, all_.merged().entries[i].name, *run.first,
          fmt::format(
              "drops values in a forward without gradients, from step {} on: if that is an evaluation, call eval() "
              "before; if that was called, the model's code does not heed it",
              *run.first));
    }
  }

  void activations() {
    for (std::size_t i = 0; i < all_.operators_.size(); ++i) {
      const run_of_steps& run = all_.operators_[i].dead;
      if (run.length < enough()) continue;
      const examined& e = all_.merged().entries[i];
      add(fault_kind::dead, e.name, *run.first,
          fmt::format(
              "gives {} for all inputs since step {}, in {} steps, so that what is before it does not learn: lower "
              "the learning rate, or look at the weights and biases before it",
              all_.operators_[i].zeros == 1 ? "0" : "one magnitude", *run.first, run.length));
    }
  }

  void gradients() {
    const bool dead = std::ranges::any_of(
        found_, [](const fault& f) { return f.kind <= fault_kind::infinity || f.kind == fault_kind::dead; });
    const bool any = std::ranges::any_of(all_.parameters_, [](const named& p) { return p.second.arrived > 0; });
    if (!any && all_.optimizer_ran_ && all_.steps_ >= few) {
      const bool frozen =
          std::ranges::all_of(all_.parameters_, [](const named& p) { return p.second.frozen == p.second.steps; });
      if (!all_.parameters_.empty())
        add(fault_kind::no_gradient, all_.parameters_.begin()->first, 0,
            fmt::format("and all other parameters got no gradient in {} steps: {}", all_.steps_,
                        frozen ? "all are frozen; call requires_grad_(True) for those that shall learn"
                               : "the loss is cut off from the model by detach(), .data, item() or no_grad()"));
      return;
    }
    add_all(
        fault_kind::no_gradient,
        [&](const parameter_history& p) {
          return p.optimized == true && p.arrived == 0 && p.frozen == 0 && p.read >= few && all_.backwards_ >= few;
        },
        [&](const parameter_history& p, const grammar& words) {
          return fmt::format(
              "{} read in {} forwards, but never {} a gradient: what is made of {} is cut off from the loss by "
              "detach(), .data, item() or no_grad()",
              words.are, p.read, words.get, words.them);
        });
    if (dead) return;
    add_all(
        fault_kind::small_gradient,
        [&](const parameter_history& p) { return p.arrived >= enough() && p.zero == p.arrived; },
        [&](const parameter_history& p, const grammar& words) {
          return fmt::format("{} gradients of 0 in all {} steps: look at what is between {} and the loss", words.get,
                             p.arrived, words.them);
        });
    std::size_t largest = 0;
    std::vector<std::size_t> small;
    for (std::size_t i = 0; i < all_.operators_.size(); ++i) {
      const operator_history& o = all_.operators_[i];
      if (o.backwards == 0) continue;
      if (all_.operators_[largest].backwards == 0 || o.gradients.recent > all_.operators_[largest].gradients.recent)
        largest = i;
      if (o.backwards >= few && 10 * o.small >= 9 * o.backwards) small.push_back(i);
    }
    if (!small.empty()) {
      const auto& name = all_.merged().entries[small.back()].name;
      add(fault_kind::small_gradient, name, 0,
          fmt::format(
              "gets gradients of 1e{:.0f}, {}operators before it no larger ones, and those of \"{}\" are 1e{:.0f}: "
              "gradients vanish or grow between them; use a normalization, shortcuts, or activations that do not "
              "saturate",
              all_.operators_[small.back()].gradients.recent,
              small.size() == 1 ? "" : fmt::format("{} ", small.size() - 1), all_.merged().entries[largest].name,
              all_.operators_[largest].gradients.recent),
          true);
    }
    if (all_.gradients_.count >= 10 && all_.gradients_.growth() > 1e4) {
      const auto most =
          std::ranges::max_element(all_.parameters_, {}, [](const named& p) { return p.second.gradients.growth(); });
      add(fault_kind::large_gradient, most->first, 0,
          fmt::format(
              "has gradients {:.0e} times as large as in the first steps: lower the learning rate, warm it up, or "
              "clip the norm of the gradients",
              most->second.gradients.growth()),
          true);
    }
  }

  /// Looks for updates that rounding loses. In FP32 and FP64 single parameters may stay, as biases whose gradient is
  /// tiny; in narrower formats that is a fault.
  void weights() {
    const auto stays = [&](const parameter_history& p, double share) {
      return p.judged >= 5 && p.stayed > share && 2 * p.small < p.arrived;
    };
    const auto is_wide = [](const parameter_history& p) {
      return p.format == precision::fp32 || p.format == precision::fp64;
    };
    add_all(
        fault_kind::lost_update, [&](const parameter_history& p) { return !is_wide(p) && stays(p, 0.5); },
        [&](const parameter_history& p, const grammar& words) {
          return fmt::format(
              "{} stored in {}, and {:.0f}% of the updates of {} values are smaller than half a unit of it, so that "
              "they are lost: keep FP32 weights and compute in {}, or raise the learning rate",
              words.are, comp::name(p.format), 100 * p.stayed, words.their_first, comp::name(p.format));
        });
    const bool stopped = all_.idle_.length >= enough() && *all_.idle_.first > 0;
    if (stopped)
      add(fault_kind::no_update, "optimizer", *all_.idle_.first,
          fmt::format("has changed nothing since step {}, in {} updates, though there are gradients: a step() that was "
                      "compiled or captured without them leaves them out, so compile it anew; or updates have become "
                      "smaller than half a unit of the weights",
                      *all_.idle_.first, all_.idle_.length));
    std::size_t lost = 0, judged = 0;
    for (const auto& [_, p] : all_.parameters_) {
      if (!is_wide(p) || p.judged < 5) continue;
      ++judged;
      lost += p.stayed > 0.99;
    }
    if (stopped) return;
    if (judged > 0 && lost == judged)
      add_all(
          fault_kind::lost_update, [&](const parameter_history& p) { return is_wide(p) && p.judged >= 5; },
          [&](const parameter_history& p, const grammar& words) {
            return fmt::format(
                "{} not change, though an optimizer updated {} {} times: updates are smaller than half a unit of {}; "
                "raise the learning rate",
                words.does, words.them, p.updates, comp::name(p.format));
          });
    else if (all_.optimizer_ran_ || all_.updates_ > 0)
      add_all(
          fault_kind::no_optimizer,
          [&](const parameter_history& p) {
            return !p.optimized && p.moved == 0 && p.updates == 0 && all_.updates_ >= enough() &&
                   p.arrived >= enough() && p.zero < p.arrived && 2 * p.small < p.arrived;
          },
          [&](const parameter_history& p, const grammar& words) {
            return fmt::format("{} gradients in {} steps, but never {}: see that an optimizer has {}", words.get,
                               p.arrived, words.change, words.them);
          });
  }

  const history& all_;
  std::vector<fault> found_;
};

}  // namespace detail

/// Returns what is wrong in a training; what others follow from comes first. A sound one has nothing.
inline std::vector<fault> faults(const history& h) { return detail::history_faults{h}.find(); }

}  // namespace comp
