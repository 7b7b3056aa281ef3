// SPDX-License-Identifier: Apache-2.0
// What the tests of comp's kernels beside ATen's share.
#pragma once

#include <comp_libtorch/kernels/kernels.hpp>
#include <vector>

#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

namespace libtorch_tests {

inline c10::IValue pairs(const std::vector<std::int64_t>& v) { return v; }

/// Runs a kernel of comp's as the executor does, recorded for one image of the given axes. Returns: an undefined tensor
/// if it refuses, with the stack as it was.
template <class... Arguments>
at::Tensor run_kernel(const lt::kernel& own, int parts, const std::vector<std::int64_t>& recorded, const at::Tensor& x,
                      const Arguments&... more) {
  torch::jit::Stack stack{1};
  torch::jit::push(stack, x, more...);
  const comp::op_info op{.inputs = {{.shape = recorded}}};
  if (!own.run(stack, 1 + sizeof...(more), static_cast<lt::kernel_parts>(parts), op)) {
    CHECK(stack.size() == 2 + sizeof...(more));
    CHECK(stack[1].toTensor().is_same(x));
    return {};
  }
  REQUIRE(stack.size() == 2);
  return stack.back().toTensor();
}

/// That `run` refuses an input with a gradient of forward mode.
void check_refuses_dual(const at::Tensor& input, const auto& run) {
  const at::Tensor x = input.detach();
  x._set_fw_grad(at::ones_like(x), torch::autograd::forward_ad::enter_dual_level(), false);
  CHECK_FALSE(run(x).defined());
  torch::autograd::forward_ad::exit_dual_level(0);
}

/// What autograd does with the result of `run` for `x`, as it does with ATen's: one case, of three subcases.
void check_autograd(const at::Tensor& x, const auto& run) {
  SUBCASE("its result may be written in place") {
    at::Tensor y = run(x);
    const at::Tensor before = y.detach().clone();
    y.relu_();
    y.sum().backward();
    CHECK(at::equal(y, before.relu()));
  }
  SUBCASE("an input that was written since is refused in the backward") {
    const at::Tensor y = run(x);
    {
      const torch::NoGradGuard no_grad;
      x.zero_();
    }
    CHECK_THROWS_WITH(y.sum().backward(), doctest::Contains("modified by an inplace operation"));
  }
  SUBCASE("nothing is kept where no gradient is wanted") {
    const torch::NoGradGuard no_grad;
    CHECK(run(x).grad_fn() == nullptr);
  }
}

struct thread_count {
  int before = at::get_num_threads();
  explicit thread_count(int now) { at::set_num_threads(now); }
  ~thread_count() { at::set_num_threads(before); }
};

}  // namespace libtorch_tests
