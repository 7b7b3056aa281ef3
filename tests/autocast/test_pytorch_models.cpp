// SPDX-License-Identifier: Apache-2.0
// PyTorch's autocast on real models, derived by hand from its lists and its promotion; beside it, on the same graphs,
// the other systems: test_tensorflow_pass.cpp, test_paddle_pass.cpp, test_tvm_pass.cpp.
#include <doctest/doctest.h>

#include <comp/autocast/casts.hpp>
#include <comp/autocast/rule_plan.hpp>
#include <comp/policy/pytorch.hpp>
#include <set>
#include <sstream>

#include "model_graphs.hpp"

namespace pytorch_models_tests {
using comp::precision;
using comp::autocast::casts;
using comp::autocast::rule_plan;
using comp::policy::pytorch;
using comp::policy::pytorch_list;
using model_graphs::spaced;

const pytorch cuda{.list = pytorch_list::cuda, .low = precision::fp16};
const pytorch cpu{.list = pytorch_list::cpu, .low = precision::bf16};

std::string bf16(std::string plan) {
  for (char& c : plan) c = c == '0' ? 'b' : c;
  return plan;
}

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

TEST_CASE("VGG16 under PyTorch at its real size: everything but view and loss follows the convolutions") {
  // Pooling, ReLU and dropout are on no list; adaptive_avg_pool2d neither (only the 3-d one, on the CPU).
  const std::string expected = std::string(32, '0') + spaced("1 000 000 0 1");
  CHECK(rule_plan(cuda, model_graphs::vgg16(), precision::fp16).str() == expected);
  CHECK(rule_plan(cpu, model_graphs::vgg16(), precision::bf16).str() == bf16(expected));
}

TEST_CASE("BERT under PyTorch at its real size: on CUDA softmax and norms are FP32, on the CPU they follow") {
  const std::string heads = spaced("011 011 011 1");
  const auto layer = [&](const std::string& softmax_and_dropout) {
    return heads + spaced("0 0") + softmax_and_dropout + spaced("0 11 0") + spaced("0 1 1 0 0 0 0 1 1");
  };
  const std::string embeddings = spaced("111 11 1 1");  // tables give FP32; the norm is listed, or follows them
  CHECK(rule_plan(cuda, model_graphs::bert(2), precision::fp16).str() ==
        embeddings + layer("11") + layer("11") + spaced("0 1"));
  CHECK(rule_plan(cpu, model_graphs::bert(2), precision::bf16).str() ==
        bf16(embeddings + layer("00") + layer("00") + spaced("0 1")));
}

TEST_CASE("the casts of BERT under PyTorch on CUDA, layer by layer") {
  // Weights and biases of six Linear (12). One cast each of: what query, key and value read (shared), scores for
  // softmax, its dropout for the context, the dropped projection and the dropped MLP for the residual adds, the norm
  // for the first Linear of the MLP. 18 a layer; the head has two parameters, the norm before it and the logits.
  const auto count = [](int layers) {
    const comp::op_graph bert = model_graphs::bert(layers);
    return casts(bert, rule_plan(cuda, bert, precision::fp16)).forward.size();
  };
  CHECK(count(1) == 18 + 4);
  CHECK(count(12) == 12 * 18 + 4);
}
}  // namespace pytorch_models_tests
