// SPDX-License-Identifier: Apache-2.0
// PyTorch's autocast on random graphs (pytorch_typed.py). Its rules one by one: test_rule_plan.cpp.
#include <doctest/doctest.h>

#include <comp/autocast/rule_plan.hpp>
#include <comp/policy/pytorch.hpp>
#include <set>
#include <sstream>

#include "model_graphs.hpp"

namespace pytorch_models_tests {
using comp::precision;
using comp::autocast::rule_plan;
using comp::policy::pytorch;
using comp::policy::pytorch_list;

const pytorch cuda{.list = pytorch_list::cuda, .low = precision::fp16};
const pytorch cpu{.list = pytorch_list::cpu, .low = precision::bf16};

/// The operators of a line of pytorch_typed.inc; `half` is the kind of the model's own casts to low.
comp::op_graph recorded(std::istringstream& words, const std::string& half) {
  const std::set<std::string> views{"t", "view", "reshape", "contiguous", "type_as", "float", "half"};
  std::vector<comp::op_info> ops = model_graphs::recorded(words);
  for (comp::op_info& op : ops) {
    op.choosable = !views.contains(op.kind);
    op.kind = "aten::" + (op.kind == "half" ? half : op.kind);
  }
  return ops;
}

TEST_CASE("random graphs give what PyTorch 2.15.0 gives, on CUDA and on the CPU") {
  for (const char* line : {
#include "pytorch_typed.inc"
       }) {
    CAPTURE(std::string{line});
    for (const pytorch& amp : {cuda, cpu}) {
      std::istringstream words{line};
      const comp::op_graph graph = recorded(words, amp.list == pytorch_list::cuda ? "half" : "bfloat16");
      std::string theirs, ours;
      words >> theirs;
      if (amp.list == pytorch_list::cpu) words >> theirs;
      for (const precision p : comp::autocast::typed(graph, rule_plan(amp, graph, amp.low)).handed_on)
        ours += comp::letter(p);
      CHECK(ours == theirs);
    }
  }
}

}  // namespace pytorch_models_tests
