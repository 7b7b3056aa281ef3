// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <comp/core/concepts.hpp>
#include <comp/policy/pytorch.hpp>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace {
using comp::category;
using comp::policy::pytorch;
using comp::policy::pytorch_list;
namespace lists = comp::policy::pytorch_lists;
static_assert(comp::OperatorPolicy<pytorch>);

category on(pytorch_list list, const std::string& kind) {
  return pytorch{.list = list}.classify({.kind = kind}).category;
}
category on_cuda(const std::string& kind) { return on(pytorch_list::cuda, kind); }
category on_cpu(const std::string& kind) { return on(pytorch_list::cpu, kind); }

TEST_CASE("the lists have as many operators as PyTorch 2.11.0 registers") {
  CHECK(std::size(lists::cuda_lower_precision_fp) == 33 + 2);
  CHECK(std::size(lists::cuda_fp32) == 58);
  CHECK(std::size(lists::cuda_fp32_set_opt_dtype) == 17);
  CHECK(std::size(lists::cuda_fp32_append_dtype) == 3);
  CHECK(std::size(lists::cuda_promote) == 11);
  CHECK(std::size(lists::cuda_banned) == 1);
  CHECK(std::size(lists::cpu_lower_precision_fp) == 24);
  CHECK(std::size(lists::cpu_fp32) == 101);
  CHECK(std::size(lists::cpu_promote) == 4);
}

TEST_CASE("no operator is listed twice, and all overloads of one have one category") {
  for (const auto entries : {lists::cuda().entries(), lists::cpu().entries()}) {
    for (std::size_t i = 1; i < entries.size(); ++i) {
      CAPTURE(entries[i].kind);
      CHECK(entries[i - 1].kind < entries[i].kind);
      const auto bare = [](std::string_view kind) { return kind.substr(0, kind.find('.')); };
      if (bare(entries[i].kind) == bare(entries[i - 1].kind)) CHECK(entries[i].category == entries[i - 1].category);
    }
  }
}

TEST_CASE("every listed operator is found under each of its spellings") {
  const auto check = [](pytorch_list list, std::span<const lists::entry> entries) {
    for (const auto& [kind, expected] : entries) {
      CAPTURE(kind);
      const std::string full{kind};
      CHECK(on(list, full) == expected);
      CHECK(on(list, "aten::" + full) == expected);
      CHECK(on(list, full.substr(0, full.find('.'))) == expected);
    }
  };
  check(pytorch_list::cuda, lists::cuda().entries());
  check(pytorch_list::cpu, lists::cpu().entries());
}

TEST_CASE("an allowed operator computes and hands on in the policy's low precision and sums in FP32") {
  const comp::decision said = pytorch{.low = comp::precision::bf16}.classify({.kind = "aten::addmm"});
  CHECK(said == comp::decision{.category = category::allow,
                               .compute = comp::precision::bf16,
                               .accumulate = comp::precision::fp32,
                               .output = comp::precision::bf16});
  CHECK(pytorch{}.low == comp::precision::fp16);
}

TEST_CASE("the lists of CUDA and of the CPU differ where PyTorch's do") {
  CHECK(on_cuda("softmax") == category::deny);
  CHECK(on_cpu("softmax") == category::follow);
  CHECK(on_cuda("layer_norm") == category::deny);
  CHECK(on_cpu("layer_norm") == category::follow);
  CHECK(on_cuda("cat") == category::follow);
  CHECK(on_cpu("cat") == category::infer);
  CHECK(on_cuda("addcmul") == category::infer);
  CHECK(on_cpu("addcmul") == category::follow);
  CHECK(on_cuda("avg_pool3d") == category::follow);
  CHECK(on_cpu("avg_pool3d") == category::deny);
}

TEST_CASE("a composite has the category of what LibTorch expands it into") {
  CHECK(on_cuda("cross_entropy_loss") == category::deny);
  CHECK(on_cpu("cross_entropy_loss") == category::deny);
  CHECK(on_cuda("conv2d.padding") == category::allow);
  CHECK(on_cuda("linalg_matmul") == category::allow);
  CHECK(on_cpu("aten::linalg_matmul") == category::allow);
  CHECK(on_cuda("special_softmax") == category::deny);
  CHECK(on_cpu("special_softmax") == category::follow);
}

TEST_CASE("binary_cross_entropy, which PyTorch bans under CUDA's autocast, is denied") {
  CHECK(on_cuda("binary_cross_entropy") == category::deny);
  CHECK(on_cuda("binary_cross_entropy_with_logits") == category::deny);
}

TEST_CASE("what no list names follows: in-place and out variants, backward operators, the user's own") {
  for (const char* kind : {"relu", "batch_norm", "gelu", "addmm_", "softmax_backward", "sum.IntList_out", "con",
                           "mine::linear", "", "aten::", ".", "zzz"}) {
    CAPTURE(kind);
    CHECK(on_cuda(kind) == category::follow);
    CHECK(on_cpu(kind) == category::follow);
  }
}

TEST_CASE("a graph of 100,000 operators is classified in far less than a second") {
  std::vector<comp::op_info> operators;
  const std::vector<std::string> kinds{"aten::conv2d", "aten::batch_norm", "relu", "softmax.int", "cross_entropy_loss"};
  for (int i = 0; i < 100'000; ++i) operators.push_back({.kind = kinds[static_cast<std::size_t>(i) % kinds.size()]});
  const auto start = std::chrono::steady_clock::now();
  std::size_t allowed = 0;
  for (const comp::op_info& op : operators) allowed += pytorch{}.classify(op).category == category::allow;
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds{500});
  CHECK(allowed == 20'000);
}
}  // namespace
