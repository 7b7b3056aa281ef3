// SPDX-License-Identifier: Apache-2.0
// Looks for faults of a trainer that make a search's result worthless: a loss that nobody sets, a restore() that does
// nothing, a set_precision() that is ignored, operator kinds that the policy does not know. A search checks some of
// them at its start, for a batch or two in FP32 (search_settings::self_check), and others in what it sees anyway.
// `comp::check(trainer)` checks all of them at once and gives a table. Only what a sound trainer never does is
// reported, so a fault may go unnoticed.
// Use: fmt::print("{}", comp::check(trainer).str());
#pragma once

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/linkage.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp {

/// What was checked, and what was found.
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
  std::vector<double> first_losses = {};  // FP32's first losses from the trainer's present state; empty: not run

  bool ok() const {
    return std::none_of(lines.begin(), lines.end(), [](const line& l) { return is_wrong(l); });
  }
  /// Returns: a sentence for each fault.
  std::vector<std::string> findings() const {
    std::vector<std::string> sentences;
    for (const line& l : lines) {
      if (is_wrong(l)) sentences.push_back(l.text);
    }
    return sentences;
  }
  /// Returns: the sentence of the first fatal fault; empty if there is none.
  std::string why_pointless() const {
    const auto at = std::find_if(lines.begin(), lines.end(), [](const line& l) { return l.how == verdict::fatal; });
    return at == lines.end() ? "" : at->text;
  }
  /// Returns: a table with a line for each thing that was checked.
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
  /// Adds a line that is "ok" if there is no problem.
  void add(std::string what, const std::optional<std::string>& problem, std::string fine) {
    add(std::move(what), problem ? verdict::wrong : verdict::ok, problem ? *problem : std::move(fine));
  }

 private:
  static bool is_wrong(const line& l) { return l.how == verdict::wrong || l.how == verdict::fatal; }
};

namespace detail {
COMP_INLINE check_report check_trainer(any_trainer& trainer, const any_policy& policy);
}  // namespace detail

/// Checks all that two batches in FP32 can tell, one from the restored state, an epoch of up to 64 batches, and two
/// batches in each low precision that the trainer names. The trainer keeps its state, under FP32; one that cannot
/// restore its state is not trained. `policy`: the one to search with. Throws: what save() and restore() throw. What a
/// batch throws is a finding, too.
template <class B, class P = policy::pytorch>
check_report check(B&& trainer, const P& policy = {}) {
  constexpr bool sound = expect_trainer<B>() && expect_policy<P>();
  if constexpr (!sound) {
    return {};
  } else {
    trainer_of<std::remove_reference_t<B>> erased{trainer};
    return detail::check_trainer(erased, policy);
  }
}

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/search/trainer/trainer_check.hpp>
#endif
