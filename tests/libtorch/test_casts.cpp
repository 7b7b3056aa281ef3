// SPDX-License-Identifier: Apache-2.0
// Casts of a few numbers, which comp makes itself: ATen's bits, and ATen's own casts if somebody else looks on.
#include <bit>
#include <comp_libtorch/hook/cast.hpp>
#include <comp_libtorch/hook/dispatch_key.hpp>
#include <cstdint>
#include <vector>

#include "torch_and_doctest.hpp"

namespace {

using comp::libtorch::detail::cast;
using comp::libtorch::detail::converted;
using comp::libtorch::detail::converts_small;

bool converts(const torch::Tensor& t, at::ScalarType to) { return converts_small(*t.unsafeGetTensorImpl(), to); }

/// Numbers with each upper half that FP32 has and lower ones around those at which BF16 rounds otherwise.
torch::Tensor all_kinds_of_numbers() {
  std::vector<float> numbers;
  for (std::uint32_t upper = 0; upper <= 0xffff; ++upper) {
    for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      numbers.push_back(std::bit_cast<float>((upper << 16) | lower));
  }
  return torch::tensor(numbers);
}

bool same_numbers(const torch::Tensor& a, const torch::Tensor& b) {
  const auto x = a.to(torch::kFloat), y = b.to(torch::kFloat);
  return a.dtype() == b.dtype() && x.isnan().equal(y.isnan()) &&
         x.nan_to_num().view(torch::kInt).equal(y.nan_to_num().view(torch::kInt));
}

}  // namespace

TEST_CASE("a few numbers are converted to the bits of ATen") {
  const auto full = all_kinds_of_numbers(), low = full.to(torch::kBFloat16);
  for (const auto& [from, to] : {std::pair{full, at::kBFloat16}, std::pair{low, at::kFloat}}) {
    std::vector<torch::Tensor> parts;
    for (const auto& part : from.split(512)) {
      REQUIRE(converts(part, to));
      parts.push_back(converted(part, to));
    }
    CHECK(same_numbers(torch::cat(parts), from.to(to)));
  }
  const auto turned = torch::randn({8, 3}).t();
  CHECK(converted(turned, at::kBFloat16).equal(turned.to(at::kBFloat16)));
  CHECK(converted(turned, at::kBFloat16).strides() == turned.strides());
  CHECK(converted(torch::randn({0, 4}), at::kBFloat16).sizes() == at::IntArrayRef{0, 4});
}

TEST_CASE("what is large, of another kind or seen by others is ATen's to convert") {
  const auto few = torch::randn({4});
  CHECK_FALSE(converts(torch::randn({513}), at::kBFloat16));
  CHECK_FALSE(converts(few, at::kHalf));
  CHECK_FALSE(converts(few.to(at::kDouble), at::kBFloat16));
  CHECK_FALSE(converts(torch::randn({4, 6}).slice(1, 0, 3), at::kBFloat16));  // has gaps
  CHECK_FALSE(converts(few.to(at::kMeta), at::kBFloat16));
  CHECK_FALSE(converts(few.to_sparse(), at::kBFloat16));
  CHECK_FALSE(converts(few._neg_view(), at::kBFloat16));
  {
    const c10::impl::IncludeDispatchKeyGuard traced{c10::DispatchKey::Tracer};
    CHECK_FALSE(converts(few, at::kBFloat16));
  }
  CHECK(converts(few, at::kBFloat16));
  CHECK(cast(few._neg_view(), at::kBFloat16, at::MemoryFormat::Preserve).equal(few.neg().to(at::kBFloat16)));
  const c10::InferenceMode inference;
  const auto input = torch::ones({4});
  CHECK(cast(input, at::kBFloat16, at::MemoryFormat::Preserve).is_inference());
}

TEST_CASE("the gradient of a small cast is ATen's, and has one itself") {
  const auto weight = torch::randn({5, 3}).requires_grad_(), x = torch::randn({3});
  const auto grads = [&](auto cast_of) {
    const auto y = torch::mv(cast_of(weight), x.to(at::kBFloat16)).pow(2).sum();
    const auto first = torch::autograd::grad({y}, {weight}, {}, true, true).front();
    return std::pair{first, torch::autograd::grad({first.pow(2).sum()}, {weight}).front()};
  };
  const auto mine = grads([](const auto& w) { return cast(w, at::kBFloat16, at::MemoryFormat::Preserve); });
  const auto theirs = grads([](const auto& w) { return w.to(at::kBFloat16); });
  CHECK(mine.first.equal(theirs.first));
  CHECK(mine.second.equal(theirs.second));
  CHECK(mine.second.abs().sum().item<float>() > 0);
  {
    const torch::NoGradGuard off;
    CHECK_FALSE(cast(weight, at::kBFloat16, at::MemoryFormat::Preserve).requires_grad());
  }
}
