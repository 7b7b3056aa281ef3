// SPDX-License-Identifier: Apache-2.0
// What each rank says of its trainer before a search, what of it must agree, and what of it all ranks have in common;
// then the orders that rank 0 gives, how a rank carries one out on its own trainer, and how it reports the result.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/core/fnv1a.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/precision.hpp>
#include <comp/ranks/bytes.hpp>
#include <comp/ranks/team.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace comp::ranks::detail {

struct introduction {
  any_trainer::capabilities has = {};
  std::vector<std::string> operators = {};  // their names and kinds
  std::vector<precision> precisions = {};
  std::string refused = {};  // for each operator and each of all_precisions: 1 if it does not run in that one, else 0
  comp::hardware hardware = {};
  std::string signature = {};
};
void fields(auto& io, any_trainer::capabilities& c) {
  io.all(c.save, c.stop, c.profile, c.sensitivity, c.perturb, c.batches_per_epoch, c.validate, c.supports,
         c.own_autocast, c.tuned_fp32, c.signature, c.take_back);
}
void fields(auto& io, introduction& i) { io.all(i.has, i.operators, i.precisions, i.refused, i.hardware, i.signature); }

inline introduction introduction_of(any_trainer& trainer) {
  const op_graph graph = trainer.graph();
  introduction own{.has = trainer.has,
                   .precisions = trainer.supported_precisions(),
                   .hardware = trainer.hardware(),
                   .signature = trainer.signature()};
  for (const op_info& op : graph) {
    own.operators.push_back(fmt::format("\"{}\" ({})", op.name, op.kind));
    if (!trainer.has.supports) continue;
    for (const precision p : all_precisions) own.refused += trainer.supports(op, p) ? '0' : '1';
  }
  return own;
}

/// Returns: in what a rank differs from rank 0 so that they cannot be searched as one; nothing if none does.
inline std::optional<std::string> difference_of(const std::vector<introduction>& ranks) {
  const introduction& lead = ranks.front();
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const introduction& one = ranks[r];
    const auto [here, there] =
        std::mismatch(lead.operators.begin(), lead.operators.end(), one.operators.begin(), one.operators.end());
    if (here != lead.operators.end() || there != one.operators.end()) {
      const auto named = [](auto at, auto end) { return at == end ? std::string{"none"} : *at; };
      return fmt::format(
          "rank {} has {} operators and rank 0 {}, and operator {} is {} there and {} here (a plan gives each operator "
          "of one model its precision): build the same model on all ranks",
          r, one.operators.size(), lead.operators.size(), here - lead.operators.begin(),
          named(there, one.operators.end()), named(here, lead.operators.end()));
    }
    if (one.hardware.kind != lead.hardware.kind) {
      return fmt::format(
          "rank {} trains on {} ({}) and rank 0 on {} ({}) (a batch's time is that of the slowest): put "
          "all ranks on the same kind of device",
          r, name(one.hardware.kind), one.hardware.name, name(lead.hardware.kind), lead.hardware.name);
    }
    if (packed(one.has) != packed(lead.has)) {
      return fmt::format(
          "rank {}'s trainer has other members than rank 0's (all carry out the same orders): give all "
          "ranks a trainer of one type, with a score or without",
          r);
    }
  }
  return {};
}

/// Returns: what all ranks' machines have in common: units that each has, the fewest threads.
inline hardware common_hardware(const std::vector<introduction>& ranks) {
  hardware all = ranks.front().hardware;
  std::vector<std::string> names{all.name};
  for (const introduction& one : ranks) {
    if (std::find(names.begin(), names.end(), one.hardware.name) == names.end()) names.push_back(one.hardware.name);
    all.compute_capability = std::min(all.compute_capability, one.hardware.compute_capability);
    all.threads = std::min(all.threads, one.hardware.threads);
    std::erase_if(all.isa, [&](const std::string& set) { return !one.hardware.has(set); });
  }
  all.name = joined(names, " + ");
  return all;
}

/// Returns: what all ranks have in common. Adds to `remarks` what one lacks that others have.
inline introduction in_common(const std::vector<introduction>& ranks, std::vector<std::string>& remarks) {
  introduction all = ranks.front();
  comp::detail::fnv1a signatures;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const introduction& one = ranks[r];
    signatures.add_bytes(one.signature.data(), one.signature.size());
    for (std::size_t i = 0; i < all.refused.size(); ++i) all.refused[i] = std::max(all.refused[i], one.refused[i]);
    for (const precision p : all_precisions) {
      const auto lacks = [&](const introduction& i) {
        return std::find(i.precisions.begin(), i.precisions.end(), p) == i.precisions.end();
      };
      if (!lacks(one) || std::all_of(ranks.begin(), ranks.end(), lacks)) continue;
      std::erase(all.precisions, p);
      remarks.push_back(
          fmt::format("rank {} ({}) does not compute in {}, which others do (a plan is for all ranks): it "
                      "was searched on none",
                      r, one.hardware.name, name(p)));
    }
  }
  all.hardware = common_hardware(ranks);
  all.signature += fmt::format("; ranks={}:{:016x}", ranks.size(), signatures.hash);
  return all;
}

/// Why an order was not carried out, the worst last; the ranks' worst failure is the order's.
enum class failure : std::uint8_t { none, abandoned, failed, out_of_memory, interrupted, settings, file, lost };

enum class task : std::uint8_t {
  end,  // first, and in the same form in every version
  introduce,
  set_precision,
  run_batch,
  run_epoch,
  save,
  restore,
  take_back,
  profile,
  sensitivity,
  perturb,
  count_extreme,
  batches_per_epoch,
  validate,
  own_autocast,
  tuned_fp32,
  run_compiled,
  post_training,
  trust,
  go_on_under,
  call
};

struct order {
  task what = task::end;
  failure why = failure::none;  // of `end`: how it ended
  std::string text = {};        // of `end`: the result, or what is wrong; of `call`: what is called
  std::uint64_t number = 0;     // a state, a seed, a precision, a bool
  comp::plan plan = {};
  std::vector<std::uint64_t> released = {};  // states that nobody needs any more
};
void fields(auto& io, order& o) { io.all(o.what, o.why, o.text, o.number, o.plan, o.released); }

struct answer {
  failure why = failure::none;
  std::string text = {};  // the result, or what is wrong
};
void fields(auto& io, answer& a) { io.all(a.why, a.text); }

/// Returns: the exception that is being handled, in words.
inline answer answer_of_exception() {
  try {
    throw;
  } catch (const rank_error& e) {
    return {failure::lost, e.what()};
  } catch (const interrupted& e) {
    return {failure::interrupted, e.what()};
  } catch (const settings_error& e) {
    return {failure::settings, e.what()};
  } catch (const file_error& e) {
    return {failure::file, e.what()};
  } catch (const abandoned& e) {
    return {failure::abandoned, e.what()};
  } catch (...) {
    sample run;
    comp::detail::fail_by_exception(run);
    return {run.status == status::out_of_memory ? failure::out_of_memory : failure::failed, run.message};
  }
}

/// Throws: what `a` says.
[[noreturn]] inline void throw_as(const answer& a) {
  if (a.why == failure::lost) throw rank_error{a.text};
  if (a.why == failure::interrupted) throw interrupted{a.text};
  if (a.why == failure::settings) throw settings_error{a.text};
  if (a.why == failure::file) throw file_error{a.text};
  if (a.why == failure::out_of_memory) throw out_of_memory{a.text};
  throw error{a.text};
}

/// Carries out orders on this rank's own trainer, whose states stay here under the numbers that rank 0 gave them.
class own_part {
 public:
  own_part(any_trainer& trainer, team& ranks) : trainer_{trainer}, team_{ranks} {}

  /// Returns: what became of `o`. `stop` is asked after each batch of an epoch. Throws: `rank_error`.
  answer carry_out(const order& o, const stop_predicate& stop) {
    answer got;
    try {
      for (const std::uint64_t state : o.released) states_.erase(state);
      got.text = result_of(o, stop);
    } catch (...) {
      got = answer_of_exception();
    }
    if (got.why == failure::lost) throw_as(got);
    return got;
  }
  /// Puts this rank's part of a state back.
  void restore(std::uint64_t state) { trainer_.restore(states_.at(state).get()); }

 private:
  std::string result_of(const order& o, const stop_predicate& stop) {
    switch (o.what) {
      case task::set_precision:
        trainer_.set_precision(o.plan);
        return {};
      case task::run_batch:
        return packed(trainer_.run_batch());
      case task::run_epoch:
        return packed(trainer_.run_epoch(stop));
      case task::save:
        states_[o.number] = trainer_.save();
        return {};
      case task::restore:
        restore(o.number);
        return {};
      case task::take_back:
        return packed(trainer_.take_back());
      case task::profile:
        return packed(trainer_.profile());
      case task::sensitivity:
        return packed(trainer_.sensitivity(static_cast<precision>(o.number)));
      case task::perturb:
        trainer_.perturb(o.number);
        return {};
      case task::count_extreme:
        return packed(trainer_.count_extreme());
      case task::batches_per_epoch:
        return packed(trainer_.batches_per_epoch());
      case task::validate:
        return packed(trainer_.validate());
      case task::own_autocast:
        return packed(trainer_.own_autocast(static_cast<precision>(o.number)));
      case task::tuned_fp32:
        return packed(trainer_.tuned_fp32());
      case task::run_compiled:
        return packed(trainer_.run_compiled(o.number != 0));
      case task::post_training:
        trainer_.post_training(o.number != 0);
        return {};
      case task::trust:
        trainer_.trust(o.plan);
        return {};
      case task::go_on_under:
        trainer_.go_on_under(o.plan);
        return {};
      case task::call:
        return team_.called ? team_.called(o.text) : std::string{};
      case task::introduce:
        return packed(introduction_of(trainer_));
      case task::end:
        break;
    }
    throw rank_error{fmt::format("rank {} was given order {} (it knows none such): start the same program on all ranks",
                                 team_.rank(), static_cast<int>(o.what))};
  }

  any_trainer& trainer_;
  team& team_;
  std::map<std::uint64_t, std::shared_ptr<const void>> states_ = {};
};

}  // namespace comp::ranks::detail
