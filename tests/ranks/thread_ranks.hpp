// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of the test, with a communicator in memory. A rank may be killed or fall silent at any time,
// and what the others then see is what they see of a process. No clock is read: a timeout ends if a rank is silent.
#pragma once

#include <comp/ranks/ranks.hpp>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "search/fake_trainer.hpp"

namespace thread_ranks {

/// What a killed rank ends with. It is no comp::error: nothing of comp's may take it for a failure of the plan.
struct killed {};

/// The wires between the ranks.
class wires {
 public:
  explicit wires(int size) : size_{size}, to_(static_cast<std::size_t>(size)), from_(static_cast<std::size_t>(size)) {}

  int size() const { return size_; }
  void send(bool down, int rank, std::string bytes) {
    const std::lock_guard only_one{mutex_};
    require_running(down ? 0 : rank);
    require_alive(down ? rank : 0);
    lane(down, rank).push_back(std::move(bytes));
    changed_.notify_all();
  }
  std::string receive(bool down, int rank) {
    std::unique_lock lock{mutex_};
    require_running(down ? rank : 0);
    const int sender = down ? 0 : rank;
    auto& from = lane(down, rank);
    changed_.wait(lock, [&] { return !from.empty() || dead_.contains(sender) || silent_.contains(sender); });
    if (from.empty()) require_alive(sender);
    timeouts += from.empty() ? 1 : 0;
    comp::require<comp::rank_error>(!from.empty(), "rank {} has not answered", sender);
    std::string got = std::move(from.front());
    from.pop_front();
    return got;
  }
  void kill(int rank) {
    const std::lock_guard only_one{mutex_};
    dead_.insert(rank);
    changed_.notify_all();
  }
  /// For the others the timeout is over. Returns when `listener` has given up, if there is one.
  void fall_silent(int rank, std::optional<int> listener = {}) {
    std::unique_lock lock{mutex_};
    silent_.insert(rank);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !listener || dead_.contains(*listener); });
  }
  int timeouts = 0;  // that were waited for

 private:
  std::deque<std::string>& lane(bool down, int rank) { return (down ? to_ : from_)[static_cast<std::size_t>(rank)]; }
  void require_running(int self) const {
    if (dead_.contains(self)) throw killed{};
  }
  void require_alive(int rank) const {
    comp::require<comp::rank_error>(!dead_.contains(rank), "rank {} is gone", rank);
  }

  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<std::string>> to_, from_;
  std::set<int> dead_, silent_;
};

class communicator {
 public:
  communicator(wires& all, int rank) : wires_{all}, rank_{rank} {}
  int rank() const { return rank_; }
  int size() const { return wires_.size(); }
  std::string broadcast(std::string bytes) {
    if (rank_ != 0) return wires_.receive(true, rank_);
    std::exception_ptr lost;
    for (int r = 1; r < size(); ++r) {
      try {
        wires_.send(true, r, bytes);
      } catch (const comp::rank_error&) {
        lost = std::current_exception();
      }
    }
    if (lost) std::rethrow_exception(lost);
    return bytes;
  }
  std::vector<std::string> gather(std::string bytes) {
    ++gathered;
    if (rank_ != 0) {
      wires_.send(false, rank_, std::move(bytes));
      return {};
    }
    std::vector<std::string> all{std::move(bytes)};
    for (int r = 1; r < size(); ++r) all.push_back(wires_.receive(false, r));
    return all;
  }
  std::size_t gathered = 0;

 private:
  wires& wires_;
  int rank_;
};
static_assert(comp::ranks::Communicator<communicator>);

/// Runs `each(rank, team)` as one rank in each of `size` threads. Returns: by rank the words of the comp::error that it
/// ended with, "killed", or nothing.
inline std::vector<std::string> run_ranks(wires& all, const std::function<void(int, comp::ranks::team&)>& each) {
  std::vector<std::string> ends(static_cast<std::size_t>(all.size()));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < all.size(); ++rank) {
    threads.emplace_back([&, rank] {
      communicator own{all, rank};
      comp::ranks::team team{own};
      try {
        each(rank, team);
        return;
      } catch (const comp::error& e) {
        ends[static_cast<std::size_t>(rank)] = e.what();
      } catch (const killed&) {
        ends[static_cast<std::size_t>(rank)] = "killed";
      }
      all.kill(rank);  // a process that ends closes its connections
    });
  }
  threads.clear();
  return ends;
}

}  // namespace thread_ranks
