// SPDX-License-Identifier: Apache-2.0
// Two ways to say which operators may change precision: a policy of your own, and your lists over PyTorch's policy.
#include <comp/comp.hpp>

/// Allows low precision for contractions with a long inner size, and denies it to all others.
struct large_contractions {  // models comp::OperatorPolicy
  std::int64_t min_k = 64;   // [elements]
  comp::precision low = comp::precision::bf16;

  comp::decision classify(const comp::op_info& op) const {
    if (!op.choosable) return {.category = comp::category::follow};
    if (op.k < min_k) return {.category = comp::category::deny};
    return {.category = comp::category::allow, .compute = low, .output = low};
  }
};

int main() {
  const comp::op_graph graph{{{.name = "stem.conv", .kind = "conv2d", .k = 27},
                              {.name = "stem.relu", .kind = "relu"},
                              {.name = "block.attention.query", .kind = "linear", .m = 64, .n = 64, .k = 256},
                              {.name = "block.attention.softmax", .kind = "softmax"},
                              {.name = "head.linear", .kind = "linear", .m = 64, .n = 16, .k = 256}}};
  using namespace comp::policy;
  const comp::policy::pytorch pytorch;
  const custom listed{.over = pytorch,
                      .rules = {by_kind("softmax", allow(comp::precision::bf16)),  // we know our logits are small
                                by_name("stem.*", deny()),                         // a wildcard over names
                                by_scope("head", fixed(comp::precision::fp32))}};  // never searched
  for (const comp::op_info& op : graph) {
    fmt::print("{:<24} pytorch: {:<7} large_contractions: {:<7} listed: {}\n", op.name,
               name(pytorch.classify(op).category), name(large_contractions{}.classify(op).category),
               name(listed.classify(op).category));
  }
  fmt::print("rule-based plans: {} {} {}\n", comp::autocast::rule_plan(pytorch, graph, comp::precision::bf16).str(),
             comp::autocast::rule_plan(large_contractions{}, graph, comp::precision::bf16).str(),
             comp::autocast::rule_plan(listed, graph, comp::precision::bf16).str());
}
