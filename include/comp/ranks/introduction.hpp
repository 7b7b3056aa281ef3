// SPDX-License-Identifier: Apache-2.0
// What each rank says of its trainer before a search, what of it must agree, and what of it all ranks have in common.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/core/fnv1a.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/precision.hpp>
#include <comp/ranks/bytes.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <cstddef>
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

}  // namespace comp::ranks::detail
