// SPDX-License-Identifier: Apache-2.0
// A communicator of comp::ranks over torch's own process groups (c10d), as torchrun, srun or mpirun start them:
//   comp::libtorch::process_group speaks{group, std::chrono::seconds{60}};
//   comp::ranks::team ranks{speaks};
// The group has to carry CPU tensors (gloo, mpi), and should be one that the training itself does not use. Rank 0
// speaks to each other rank by itself, so that a rank which does not answer is known by its number. That costs rank 0 a
// message per rank.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
//
#include <algorithm>
#include <chrono>
#include <comp/core/error.hpp>
#include <comp/ranks/communicator.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch {

class process_group {
 public:
  /// `timeout`: how long a rank may take to answer.
  process_group(c10::intrusive_ptr<c10d::ProcessGroup> group, std::chrono::milliseconds timeout)
      : group_{std::move(group)}, timeout_{timeout} {}

  int rank() const { return group_->getRank(); }
  int size() const { return group_->getSize(); }

  /// From now on a rank has 10 seconds to answer.
  void hurry() { timeout_ = std::min<std::chrono::milliseconds>(timeout_, std::chrono::seconds{10}); }

  std::string broadcast(std::string bytes) {
    if (rank() != 0) return received(0);
    std::exception_ptr first_lost;  // those that are left are told all the same
    for (int r = 1; r < size(); ++r) {
      try {
        send(bytes, r);
      } catch (const rank_error&) {
        if (!first_lost) first_lost = std::current_exception();
      }
    }
    if (first_lost) std::rethrow_exception(first_lost);
    return bytes;
  }
  std::vector<std::string> gather(std::string bytes) {
    if (rank() != 0) {
      send(bytes, 0);
      return {};
    }
    std::vector<std::string> all{std::move(bytes)};
    for (int r = 1; r < size(); ++r) all.push_back(received(r));
    return all;
  }

 private:
  // A message is its length and its first bytes in one tensor, and if it is longer, the rest in a second one.
  static constexpr std::int64_t first_part = 1024;
  static constexpr int tag = 0x436f4d50;

  void send(const std::string& bytes, int to) {
    const auto length = static_cast<std::uint64_t>(bytes.size());
    const std::size_t room = first_part - sizeof length, first = std::min(bytes.size(), room);
    at::Tensor head = at::empty({first_part}, at::kByte);
    auto* const at = head.mutable_data_ptr<std::uint8_t>();
    std::memcpy(at, &length, sizeof length);
    std::memcpy(at + sizeof length, bytes.data(), first);
    carry(head, to, true);
    if (first == bytes.size()) return;
    at::Tensor rest = at::empty({static_cast<std::int64_t>(bytes.size() - first)}, at::kByte);
    std::memcpy(rest.mutable_data_ptr(), bytes.data() + first, bytes.size() - first);
    carry(rest, to, true);
  }

  std::string received(int from) {
    at::Tensor head = at::empty({first_part}, at::kByte);
    carry(head, from, false);
    std::uint64_t length = 0;
    const auto* const at = detail::values_of<std::uint8_t>(head);
    std::memcpy(&length, at, sizeof length);
    const std::size_t room = first_part - sizeof length, first = std::min<std::size_t>(length, room);
    std::string bytes(reinterpret_cast<const char*>(at + sizeof length), first);
    if (first == length) return bytes;
    at::Tensor rest = at::empty({static_cast<std::int64_t>(length - first)}, at::kByte);
    carry(rest, from, false);
    return bytes.append(static_cast<const char*>(rest.const_data_ptr()), length - first);
  }

  /// Throws: `rank_error` with the other rank's number and the group's words.
  void carry(at::Tensor& bytes, int other, bool away) {
    std::string reason;
    try {
      std::vector<at::Tensor> all{bytes};
      const auto work = away ? group_->send(all, other, tag) : group_->recv(all, other, tag);
      if (work->wait(timeout_)) return;
      reason = "it was aborted";
    } catch (const c10::Error& e) {
      reason = detail::first_line(e.what_without_backtrace());
    } catch (const std::exception& e) {
      reason = detail::first_line(e.what());
    }
    throw rank_error{
        fmt::format("rank {} does not answer rank {} (it has ended, or took more than {:g} s: {}): see what it "
                    "said last; start all ranks again, where there is a ledger the search goes on from it",
                    other, rank(), std::chrono::duration<double>(timeout_).count(), reason)};
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::chrono::milliseconds timeout_;
};

static_assert(ranks::Communicator<process_group>);

}  // namespace comp::libtorch
