// SPDX-License-Identifier: Apache-2.0
// A step of attention alone on the host, forward and backward, and the sizes that it is measured at.
#pragma once

#include <fmt/format.h>

#include <array>
#include <comp_host/device.hpp>
#include <comp_native/op/attention.hpp>
#include <comp_native/random.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace bench {

struct attention_sizes {
  std::int64_t batch, length, heads, width;
  bool causal;

  std::string text() const {
    return fmt::format("{} x {}{}, {} heads of {}", batch, length, causal ? ", causal" : "", heads, width);
  }
};

/// Calls `f` with each of the sizes, all of the width 256 in all.
void for_attention_sizes(const auto& f) {
  for (const auto& [batch, length] :
       std::array<std::array<std::int64_t, 2>, 4>{{{16, 128}, {8, 256}, {4, 512}, {1, 2048}}}) {
    for (const std::int64_t width : {std::int64_t{32}, std::int64_t{64}}) {
      for (const bool causal : {false, true}) f(attention_sizes{batch, length, 256 / width, width, causal});
    }
  }
}

/// Steps of the operator on a device of its own.
class native_attention {
 public:
  native_attention(const attention_sizes& s, comp::precision p, const comp::host::settings& settings)
      : device_{settings},
        what_{{.heads = s.heads,
               .mask = s.causal ? comp::native::op::softmax_mask::causal : comp::native::op::softmax_mask::none}},
        precision_{p} {
    comp::native::random_stream draws{1, 1};
    std::vector<float> some(static_cast<std::size_t>(s.batch * s.length * s.heads * s.width));
    for (int i = 0; i < 4; ++i) {
      for (float& x : some) x = static_cast<float>(draws.normal());
      x_.push_back(device_.upload(some, {s.batch, s.length, s.heads * s.width}, p));
    }
  }
  void operator()() {
    using comp::host::device;
    comp::native::memory<device> left;
    const std::span x{x_.data(), 3};
    double loss = 0;
    (void)what_.forward(comp::native::forward_call<device>{{device_, batch_, {}, precision_, left}, x, true, loss});
    (void)what_.backward(
        comp::native::backward_call<device>{{device_, batch_, {}, precision_, left}, x_[3], {true, true, true}, 1});
  }
  double peak_mib() {
    device_.reset_peak();
    const std::int64_t before = device_.live_bytes();
    (*this)();
    return static_cast<double>(device_.peak_bytes() - before) / (1 << 20);
  }

 private:
  comp::host::device device_;
  comp::native::op::attention what_;
  comp::precision precision_;
  std::vector<comp::host::tensor> x_;
  comp::native::device_batch<comp::host::device> batch_;
};

}  // namespace bench
