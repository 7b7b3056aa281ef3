// SPDX-License-Identifier: Apache-2.0
// Which parameters each phase of a step trains, and which it only reads.
#pragma once

#include <comp_native/model.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace comp::native {

/// The parameters of one phase.
template <class Parameter>
struct trained_parameters {
  std::vector<Parameter*> moved = {};                        // those that it trains
  std::vector<Parameter*> decaying = {}, not_decaying = {};  // of these, those with weight decay and those without
  std::vector<std::string> names = {};                       // the names of `moved`
  std::vector<Parameter*> others_move = {};                  // those that it reads and another phase trains

  trained_parameters(const model& m, const phase& of, std::span<Parameter> all) {
    std::vector<bool> read(m.parameters.size());
    for (std::size_t i = of.first; i < of.last; ++i) {
      for (const std::size_t p : m.nodes[i].parameters) read[p] = true;
    }
    for (std::size_t p = 0; p < read.size(); ++p) {
      if (trains(m, of, p)) {
        moved.push_back(&all[p]);
        (m.parameters[p].decays ? decaying : not_decaying).push_back(&all[p]);
        names.push_back(m.parameters[p].name);
      } else if (read[p] && m.parameters[p].trainable) {
        others_move.push_back(&all[p]);
      }
    }
  }
};

/// Backwards make no gradients of these parameters while an object of this class lives.
template <class D>
class without_gradients {
 public:
  without_gradients(D& device, std::span<typename D::parameter* const> all) : device_{device}, all_{all} { set(false); }
  without_gradients(const without_gradients&) = delete;
  without_gradients& operator=(const without_gradients&) = delete;
  ~without_gradients() { set(true); }

 private:
  void set(bool on) {
    for (auto* p : all_) device_.set_trainable(*p, on);
  }
  D& device_;
  std::span<typename D::parameter* const> all_;
};

}  // namespace comp::native
