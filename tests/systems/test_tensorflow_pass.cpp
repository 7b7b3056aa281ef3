// SPDX-License-Identifier: Apache-2.0
// Expected plans are derived by hand from the comments of TensorFlow's pass and from its lists; those of random graphs
// are TensorFlow's own (tensorflow_painted.inc).
#include <doctest/doctest.h>

#include <comp/autocast/casts.hpp>
#include <comp/systems/tensorflow_pass.hpp>
#include <sstream>

#include "autocast/model_graphs.hpp"

namespace tensorflow_pass_tests {
using comp::precision;
using comp::autocast::tensorflow_pass;
using comp::policy::tensorflow;
using comp::policy::tensorflow_list;

const tensorflow cuda{};
const tensorflow older{.infer_follows_allow = false};
const tensorflow bf16{.list = tensorflow_list::onednn_bf16};

comp::op_info op(std::string kind, std::vector<std::size_t> producers, bool choosable = true) {
  return {.name = kind, .kind = kind, .producers = std::move(producers), .choosable = choosable};
}
std::string painted(const comp::op_graph& graph, const tensorflow& amp = cuda, std::vector<std::string> without = {}) {
  return tensorflow_pass(amp, graph, std::move(without)).str();
}

TEST_CASE("TensorFlow's own example: deny, infer, clear, infer, clear, allow, infer") {
  // "deny -> infer -> clear -> infer -> clear -> allow -> infer becomes deny x4, clear, allow, infer"; the clear before
  // the allow is then painted because it is next to it, the last infer because it follows it.
  const comp::op_graph graph{{op("Exp", {}), op("Mul", {0}), op("Relu", {1}), op("Add", {2}), op("Relu", {3}),
                              op("MatMul", {4}), op("Add", {5})}};
  CHECK(painted(graph) == "1111000");
  CHECK(painted(graph, older) == "1111001");
}

TEST_CASE("nodes without a kernel: an allow loses its paint at the end, infer and clear are never painted") {
  const comp::op_graph graph{{op("MatMul", {}), op("Softmax", {0}), op("Conv3D", {1}), op("Relu", {2})}};
  CHECK(painted(graph) == "0000");
  CHECK(painted(graph, cuda, {"Conv3D"}) == "0010");  // Softmax and Relu keep the paint that Conv3D gave them
  CHECK(painted(graph, cuda, {"Softmax"}) == "0100");
}

TEST_CASE("a view between two allows joins them, and has FP32 in the plan") {
  const comp::op_graph graph{{op("bmm", {}), op("transpose", {0}, false), op("softmax", {1}), op("bmm", {2})}};
  CHECK(painted(graph) == "0100");
}

TEST_CASE("an allow-operator that is not choosable paints nothing") {
  CHECK(painted(comp::op_graph{{op("conv2d", {}, false), op("relu", {0})}}) == "11");
}

TEST_CASE("a user's rules over TensorFlow's lists keep their precision, their fourth pass and their checks") {
  using comp::policy::custom;
  const comp::op_graph graph{{op("MatMul", {}), op("Tanh", {0}), op("Softmax", {1})}};
  CHECK(tensorflow_pass(custom<tensorflow>{.over = bf16}, graph).str() == "bbb");
  CHECK(tensorflow_pass(custom<tensorflow>{.over = older}, graph).str() == "011");
  const custom<custom<tensorflow>> twice{
      .over = {.over = bf16, .rules = {comp::policy::by_kind("Softmax", comp::policy::deny())}},
      .rules = {comp::policy::by_kind("Tanh", comp::policy::fixed(precision::fp16))}};
  CHECK(tensorflow_pass(twice, graph).str() == "b01");
  CHECK_THROWS_AS(tensorflow_pass(custom<tensorflow>{.over = {.edits = {.deny = {.add = {"MatMul"}}}}}, graph),
                  comp::settings_error);
}

using comp::policy::tensorflow_level;

/// The settings of tensorflow_painted.inc, in its order.
const std::vector<tensorflow> recorded_settings{cuda,
                                                bf16,
                                                {.edits = {.level = tensorflow_level::tensor_cores_only}},
                                                {.edits = {.level = tensorflow_level::treat_infer_as_deny}},
                                                {.edits = {.level = tensorflow_level::unsafe_force_all}},
                                                {.edits = {.allow = {.add = {"Cosh", "Softmax"}},
                                                           .infer = {.remove = {"Softmax", "AddV2"}},
                                                           .deny = {.add = {"AddV2"}, .remove = {"Exp"}},
                                                           .clear = {.remove = {"Relu"}}}}};

TEST_CASE("random graphs are painted as TensorFlow 2.21.0 painted them, with no more casts") {
  for (const char* line : {
#include "tensorflow_painted.inc"
       }) {
    CAPTURE(line);
    std::istringstream words{line};
    const comp::op_graph graph = model_graphs::recorded(words);
    for (const tensorflow& amp : recorded_settings) {
      CAPTURE(&amp - recorded_settings.data());
      std::string theirs;
      std::size_t their_casts = 0;
      words >> theirs >> their_casts;
      const comp::plan ours = tensorflow_pass(amp, graph);
      CHECK(ours.str() == theirs);
      CHECK(comp::autocast::casts(graph, ours).forward.size() <= their_casts);
    }
  }
}

}  // namespace tensorflow_pass_tests
