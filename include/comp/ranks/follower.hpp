// SPDX-License-Identifier: Apache-2.0
// How ranks meet before a search, how rank 0 leads through it, and how the others follow.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/ranks/ranks.hpp>

namespace comp::ranks::detail {

COMP_INLINE acquaintance meet_ranks(any_trainer& trainer, team& ranks) {
  const std::string own{comp::detail::comp_version};
  const std::vector<std::string> versions = ranks.meet(own);
  for (std::size_t r = 1; r < versions.size(); ++r) {
    require<settings_error>(
        versions[r] == own,
        "rank {} has comp {} and rank 0 {} (they speak to each other as of one version): install the "
        "same on all ranks",
        r, versions[r], own);
  }
  const order all{.what = task::introduce};
  ranks.order(packed(all));
  std::vector<introduction> known;
  const std::vector<std::string> answers = ranks.meet(packed(own_part{trainer, ranks}.carry_out(all, {})));
  for (std::size_t r = 0; r < answers.size(); ++r) {
    const auto reply = unpacked<answer>(answers[r]);
    if (reply.why != failure::none) throw_as({reply.why, said_by(r, reply.text)});
    known.push_back(unpacked<introduction>(reply.text));
  }
  const auto difference = difference_of(known);
  require<settings_error>(!difference, "{}", difference.value_or(""));
  acquaintance result;
  result.common = in_common(known, result.remarks);
  return result;
}

COMP_INLINE void lead(any_trainer& trainer, team& ranks, const std::function<std::string(leading_trainer&)>& work) {
  order last;
  try {
    leading_trainer all{trainer, ranks, meet_ranks(trainer, ranks)};
    last.text = work(all);
  } catch (...) {
    const answer wrong = answer_of_exception();
    last.why = wrong.why;
    last.text = wrong.text;
    ranks.dismiss(packed(last));
    throw;
  }
  ranks.order(packed(last));
}

COMP_INLINE std::string follow(any_trainer& trainer, team& ranks) {
  own_part own{trainer, ranks};
  const auto stop = [&](const sample& so_far) {
    const auto answered = ranks.ask(packed(without_history(so_far)));
    return !answered || unpacked<bool>(*answered);
  };
  std::string next = ranks.finish(std::string{comp::detail::comp_version});
  for (;;) {
    const auto now = unpacked<order>(next);
    if (now.what == task::end) {
      if (now.why != failure::none) throw_as({now.why, now.text});
      return now.text;
    }
    const answer got = own.carry_out(now, stop);
    if (got.why >= failure::interrupted) ranks.hurry();
    next = ranks.finish(packed(got));
  }
}

}  // namespace comp::ranks::detail
