// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/concepts.hpp>
#include <comp/policy/custom.hpp>
#include <comp/policy/pytorch.hpp>
#include <initializer_list>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "processor_time.hpp"

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

TEST_CASE("the lists have as many operators as PyTorch 2.11.0 registers, and a few since") {
  const auto size = [](std::string_view list) {
    std::size_t names = 0;
    comp::each_name(list, " \n", [&](std::string_view) { ++names; });
    return names;
  };
  CHECK(size(lists::cuda_lower_precision_fp) == 33 + 3);  // and what cuDNN's own kernels do
  CHECK(size(lists::cuda_fp32) == 58 + 2);                // 2.15.0: linalg_matrix_sqrth, rms_norm
  CHECK(size(lists::cuda_fp32_set_opt_dtype) == 17);
  CHECK(size(lists::cuda_fp32_append_dtype) == 3);
  CHECK(size(lists::cuda_promote) == 11);
  CHECK(size(lists::cuda_banned) == 1);
  CHECK(size(lists::cpu_lower_precision_fp) == 24);
  CHECK(size(lists::cpu_fp32) == 101 + 1);  // 2.15.0: linalg_matrix_sqrth
  CHECK(size(lists::cpu_promote) == 4);
}

TEST_CASE("no operator is listed twice, and all overloads of one have one category") {
  const auto check = [](const lists::table& table, std::initializer_list<std::string_view> all) {
    std::size_t names = 0;
    for (const std::string_view list : all) {
      comp::each_name(list, " ,\n", [&](std::string_view) { ++names; });
    }
    CHECK(table.all().size() == names);
    std::map<std::string_view, category> by_operator;
    for (const auto& [kind, expected] : table.all()) {
      CAPTURE(kind);
      CHECK(by_operator.try_emplace(kind.substr(0, kind.find('.')), expected).first->second == expected);
    }
  };
  check(lists::cuda(),
        {lists::cuda_lower_precision_fp, lists::cuda_fp32, lists::cuda_fp32_set_opt_dtype,
         lists::cuda_fp32_append_dtype, lists::cuda_promote, lists::cuda_banned, lists::cuda_composites});
  check(lists::cpu(), {lists::cpu_lower_precision_fp, lists::cpu_fp32, lists::cpu_promote, lists::cpu_composites});
}

TEST_CASE("every listed operator is found under each of its spellings") {
  const auto check = [](pytorch_list list, const lists::table& table) {
    for (const auto& [kind, expected] : table.all()) {
      CAPTURE(kind);
      const std::string full{kind};
      CHECK(on(list, full) == expected);
      CHECK(on(list, "aten::" + full) == expected);
      CHECK(on(list, full.substr(0, full.find('.'))) == expected);
    }
  };
  check(pytorch_list::cuda, lists::cuda());
  check(pytorch_list::cpu, lists::cpu());
}

TEST_CASE("an allowed operator computes and hands on in the policy's low precision and sums in FP32") {
  const comp::decision decision = pytorch{.low = comp::precision::bf16}.classify({.kind = "aten::addmm"});
  CHECK(decision == comp::decision{.category = category::allow,
                                   .compute = comp::precision::bf16,
                                   .accumulate = comp::precision::fp32,
                                   .output = comp::precision::bf16});
  CHECK(pytorch{}.low == comp::precision::fp16);
  CHECK(pytorch{.list = pytorch_list::cpu}.low == comp::precision::bf16);
}

TEST_CASE("the list is that of the machine, unless one is named; without a machine CUDA's") {
  const comp::hardware cpu{.kind = comp::device_kind::cpu}, gpu{.kind = comp::device_kind::cuda};
  const comp::op_info softmax{.kind = "softmax"};
  const auto judge = [&](const pytorch& p, const comp::hardware& machine) {
    return comp::on_machine(p, machine).classify(softmax).category;
  };
  CHECK(judge({}, cpu) == category::follow);
  CHECK(judge({}, gpu) == category::deny);
  CHECK(judge({}, {}) == category::deny);
  CHECK(judge({.list = pytorch_list::cuda}, cpu) == category::deny);
  CHECK(judge({.list = pytorch_list::cpu}, gpu) == category::follow);
  const comp::policy::custom<> listed{.rules = {comp::policy::by_kind("relu", comp::policy::deny())}};
  CHECK(comp::on_machine(listed, cpu).classify(softmax).category == category::follow);
  CHECK(comp::on_machine(listed, cpu).classify({.kind = "relu"}).category == category::deny);
}

/// "ll", "11" or "1l": what an operator that nobody casts for gives, for FP32 and for low inputs.
std::string_view given(category value) {
  return value == category::allow ? "ll" : value == category::deny ? "11" : "1l";
}

TEST_CASE("PyTorch 2.15.0 does with 580 operators on CUDA and on the CPU what the lists say") {
  std::size_t checked = 0;
  for (const char* line : {
#include "pytorch_kinds.inc"
       }) {
    std::istringstream words{line};
    std::string kind, cuda, cpu;
    words >> kind >> cuda >> cpu;
    CAPTURE(kind);
    for (const auto& [list, letters] : {std::pair{pytorch_list::cuda, cuda}, {pytorch_list::cpu, cpu}}) {
      if (letters == "-") continue;
      ++checked;
      CHECK(letters.find(given(on(list, kind))) != std::string::npos);
    }
  }
  CHECK(checked > 1000);
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
  const double start = processor_seconds();
  std::size_t allowed = 0;
  for (const comp::op_info& op : operators) allowed += pytorch{}.classify(op).category == category::allow;
  CHECK(processor_seconds() - start < 0.5);
  CHECK(allowed == 20'000);
}
}  // namespace
