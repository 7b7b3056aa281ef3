// SPDX-License-Identifier: Apache-2.0
// The ranks of torch.distributed, as a search speaks to them. The interpreter's lock is released while a rank waits.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <comp/ranks/ranks.hpp>
#include <comp_libtorch/ranks/process_group.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp::python {

namespace py = pybind11;

class rank_team {
 public:
  /// `group`: a torch.distributed.ProcessGroup that carries CPU tensors. `seconds`: how long a rank may take to answer.
  rank_team(c10::intrusive_ptr<c10d::ProcessGroup> group, double seconds)
      : speaks_{{std::move(group), std::chrono::milliseconds{static_cast<std::int64_t>(1e3 * seconds)}}} {}

  ranks::team& team() { return team_; }

 private:
  /// A loop's search speaks in a thread of its own, which does not hold the lock.
  struct unlocked_python {
    std::optional<py::gil_scoped_release> lock;
    unlocked_python() {
      if (PyGILState_Check() != 0) lock.emplace();
    }
  };
  struct unlocked {
    libtorch::process_group group;
    int rank() const { return group.rank(); }
    int size() const { return group.size(); }
    void hurry() { group.hurry(); }
    std::string broadcast(std::string bytes) {
      const unlocked_python unlock;
      return group.broadcast(std::move(bytes));
    }
    std::vector<std::string> gather(std::string bytes) {
      const unlocked_python unlock;
      return group.gather(std::move(bytes));
    }
  };

  unlocked speaks_;
  ranks::team team_{speaks_};
};

}  // namespace comp::python
