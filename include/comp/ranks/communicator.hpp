// SPDX-License-Identifier: Apache-2.0
// The concept of a carrier of bytes between a training's ranks. Rank 0 leads: it tells all others something
// (broadcast), or hears something from each (gather).
#pragma once

#include <comp/core/unmet.hpp>
#include <concepts>
#include <string>
#include <vector>

namespace comp::ranks {

// clang-format off
/// Carries bytes between rank 0 and all others. Both members are called by all ranks, in the same order. Neither may
/// wait for ever: if a rank is gone, or has not answered within the communicator's timeout, both throw `rank_error`,
/// which names the rank if it is known. A broadcast then still reaches those that are left.
/// Optional: void hurry(). This rank has failed for good, and the others may be stuck in a step that waits for it: from
/// now on the communicator waits for some seconds at most, whatever its timeout.
template <class C>
concept Communicator =
    (requires(C& c) { { c.rank() } -> std::convertible_to<int>; }
     || unmet<"a Communicator needs: int rank(), from 0 on">()) &&
    (requires(C& c) { { c.size() } -> std::convertible_to<int>; }
     || unmet<"a Communicator needs: int size(), the number of ranks">()) &&
    (requires(C& c, std::string bytes) { { c.broadcast(bytes) } -> std::same_as<std::string>; }
     || unmet<"a Communicator needs: std::string broadcast(std::string), which returns what rank 0 gave">()) &&
    (requires(C& c, std::string bytes) { { c.gather(bytes) } -> std::same_as<std::vector<std::string>>; }
     || unmet<"a Communicator needs: std::vector<std::string> gather(std::string), which returns on rank 0 what each gave">());
// clang-format on

}  // namespace comp::ranks
