// SPDX-License-Identifier: Apache-2.0
// The ranks of a training, one process each, and how they communicate. Rank 0 leads and the others follow: it gives an
// order, all carry it out, and it hears from each how that went (leader.hpp, follower.hpp). While they carry it out,
// they may have to agree on a number (`maximum`, after each batch of an epoch): that is a round. A rank that failed
// takes part in no more rounds; the others are then told to give up, and all meet again at the end of the order.
// One rank decides, because ranks that each searched would wait for each other for ever if one clock were not shared.
// Rank 0 speaks to each rank by itself and not by collectives, so that a rank that does not answer has a name.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/ranks/bytes.hpp>
#include <comp/ranks/communicator.hpp>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp::ranks {

namespace detail {
/// Thrown on a rank that gives up what it does, because another one has failed at it.
struct abandoned : error {
  abandoned() : error{"another rank failed (nothing can be agreed on without it): see its error"} {}
};
}  // namespace detail

class team {
 public:
  /// Keeps a reference to `communicator`, which has to live longer. One team at a time speaks through it.
  template <Communicator C>
  explicit team(C& communicator)
      : rank_{communicator.rank()},
        size_{communicator.size()},
        broadcast_{[&communicator](std::string bytes) { return communicator.broadcast(std::move(bytes)); }},
        gather_{[&communicator](std::string bytes) { return communicator.gather(std::move(bytes)); }} {
    if constexpr (requires { communicator.hurry(); }) hurry_ = [&communicator] { communicator.hurry(); };
  }
  team(team&&) = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool leads() const { return rank_ == 0; }

  /// Returns: on all ranks the largest of what the ranks gave, element by element. All ranks call it.
  /// Throws: `rank_error`; `error` if another rank has failed and gives nothing.
  std::vector<double> maximum(std::vector<double> own) {
    if (!leads()) {
      const auto answer = ask(detail::packed(own));
      return answer ? detail::unpacked<std::vector<double>>(*answer) : throw detail::abandoned{};
    }
    const auto heard = hear(detail::packed(own));
    if (!heard) throw detail::abandoned{};
    for (const std::string& bytes : *heard) {
      const auto other = detail::unpacked<std::vector<double>>(bytes);
      for (std::size_t i = 0; i < std::min(own.size(), other.size()); ++i) own[i] = std::max(own[i], other[i]);
    }
    answer(detail::packed(own));
    return own;
  }

  /// Returns: on all ranks what each gave, by rank. All ranks call it, between searches and trainings. A rank that
  /// failed may call it while others are still in maximum(), which then throws there. Throws: `rank_error`.
  std::vector<std::string> exchange(const std::string& own) {
    if (!leads()) return detail::unpacked<std::vector<std::string>>(finish(own));
    std::vector<std::string> all = meet(own);
    order(detail::packed(all));
    return all;
  }

  /// What a rank does when the leader calls all in the midst of a search or a training (leading_trainer::call), besides
  /// what a trainer is asked for. It gets the leader's text and returns its own.
  std::function<std::string(const std::string&)> called = {};

  // What follows is for the leader and its followers alone.

  /// Leader: a round. Returns: what each rank gives; nothing if one has failed, and all are told to give up.
  std::optional<std::vector<std::string>> hear(const std::string& own) {
    std::vector<std::string> all = gathered(in_round + own);
    if (!all_are(in_round, all)) {
      broadcast(std::string{give_up});
      return std::nullopt;
    }
    return all;
  }
  /// Leader: ends the round.
  void answer(const std::string& bytes) { broadcast(decided + bytes); }
  /// Follower: a round. Returns: the leader's answer; nothing if the round is given up.
  std::optional<std::string> ask(const std::string& own) {
    (void)gathered(in_round + own);
    const std::string got = broadcast({});
    if (got.front() == give_up) return std::nullopt;
    require<rank_error>(got.front() == decided,
                        "rank {} waits for an answer, and rank 0 gives an order (all ranks call the same function of "
                        "comp's in turn): start the same program on all ranks",
                        rank());
    return got.substr(1);
  }

  /// Leader: an order to all.
  void order(const std::string& bytes) { broadcast(ordered + bytes); }
  /// Leader: the end of an order. Returns: what each rank gives, by rank.
  std::vector<std::string> meet(const std::string& own) {
    for (;;) {
      std::vector<std::string> all = gathered(at_end + own);
      if (all_are(at_end, all)) return all;
      broadcast(std::string{give_up});
    }
  }
  /// Follower: the end of an order. Returns: the next order.
  std::string finish(const std::string& own) {
    for (;;) {
      (void)gathered(at_end + own);
      std::string next = broadcast({});
      if (next.front() == ordered) return next.substr(1);
    }
  }
  /// As a Communicator's: this rank has failed for good.
  void hurry() { hurry_(); }
  /// Leader: the last order. If a rank is gone, the others are told that, whatever they wait for; ranks that cannot be
  /// told know it already.
  void dismiss(const std::string& bytes) {
    try {
      (void)broadcast_(broken_ ? lost + *broken_ : ordered + bytes);
    } catch (const std::exception&) {
    }
  }
  /// Returns: whether a rank is gone. Nothing is sent any more then.
  bool broken() const { return broken_.has_value(); }

 private:
  // What a message begins with. From others to rank 0: `in_round` or `at_end`; from rank 0: the rest.
  static constexpr char in_round = 'r', at_end = 'e', ordered = 'o', decided = 'd', give_up = 'g', lost = 'l';

  static bool all_are(char what, std::vector<std::string>& all) {
    const bool are = std::all_of(all.begin(), all.end(), [&](const std::string& m) { return m.starts_with(what); });
    for (std::string& each : all) each.erase(0, 1);
    return are;
  }

  /// After a first failure nobody knows what the others wait for, so nothing more is sent.
  template <class F>
  auto reached(F speak) {
    if (broken_) throw rank_error{*broken_};
    try {
      return speak();
    } catch (const std::exception& e) {
      broken_ = e.what();
      throw rank_error{*broken_};
    }
  }

  std::vector<std::string> gathered(std::string bytes) {
    return reached([&] { return gather_(std::move(bytes)); });
  }
  std::string broadcast(std::string bytes) {
    return reached([&] {
      std::string got = broadcast_(std::move(bytes));
      require<rank_error>(!got.empty(),
                          "rank 0 said nothing (all ranks call the same function of comp's in turn): start "
                          "the same program on all ranks");
      require<rank_error>(got.front() != lost, "{}", got.substr(1));
      return got;
    });
  }

  int rank_, size_;
  std::function<std::string(std::string)> broadcast_;
  std::function<std::vector<std::string>(std::string)> gather_;
  std::function<void()> hurry_ = [] {};
  std::optional<std::string> broken_ = {};
};

}  // namespace comp::ranks
