// SPDX-License-Identifier: Apache-2.0
// Which parameters each phase of a model's step moves, and which it reads only.
#pragma once

#include <comp_native/model.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace comp::native {

constexpr bool trains(const model& m, const phase& p, std::size_t parameter) {
  return m.parameters[parameter].trainable && p.trains[parameter];
}

/// Of one phase.
template <class Parameter>
struct trained_parameters {
  std::vector<Parameter*> moved = {};
  std::vector<Parameter*> decaying = {}, not_decaying = {};  // those of them that weight decay is for, and the others
  std::vector<std::string> names = {};                       // of those
  std::vector<Parameter*> others_move = {};                  // that its operators read

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

/// No gradient of these parameters is made while it lives.
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
