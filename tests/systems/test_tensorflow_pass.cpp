// SPDX-License-Identifier: Apache-2.0
// Expected plans are derived by hand from the comments of TensorFlow's pass and from its lists; those of random graphs
// are TensorFlow's own (tensorflow_painted.py).
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
using model_graphs::spaced;

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

TEST_CASE("nothing is converted without an allow-operator") {
  CHECK(painted(comp::op_graph{{op("Relu", {}), op("Add", {0}), op("Reshape", {1})}}) == "111");
  CHECK(painted(comp::op_graph{}).empty());
}

TEST_CASE("infer and clear between two allows are converted, whatever else reads them") {
  const comp::op_graph graph{
      {op("Conv2D", {}), op("BiasAdd", {0}), op("Relu", {1}), op("Conv2D", {2}), op("Sum", {1})}};
  CHECK(painted(graph) == "00001");
}

TEST_CASE("infer is converted behind an allow, not before one; clear is on either side") {
  const comp::op_graph graph{{op("Tanh", {}), op("MatMul", {0}), op("Tanh", {1})}};
  CHECK(painted(graph) == "100");
  CHECK(painted(graph, older) == "101");
  CHECK(painted(comp::op_graph{{op("Relu", {}), op("Abs", {0}), op("MatMul", {1}), op("Relu", {2}), op("Neg", {3})}}) ==
        "00000");
}

TEST_CASE("clear on a path from deny to infer is denied, and no allow beside it changes that") {
  const comp::op_graph graph{{op("Exp", {}), op("Relu", {0}), op("Add", {1}), op("MatMul", {1}), op("MatMul", {2})}};
  CHECK(painted(graph) == "11100");
}

TEST_CASE("an operator on no list is a boundary: nothing is painted through it") {
  const comp::op_graph graph{
      {op("MatMul", {}), op("Mul", {0}), op("SparseTensorDenseMatMul", {1}), op("Mul", {2}), op("MatMul", {3})}};
  CHECK(painted(graph) == "00110");
}

TEST_CASE("deny does not spread through an operator that gives integers") {
  comp::op_info argmax = op("ArgMax", {0});
  argmax.outputs = {{.floating = false}};
  const comp::op_graph graph{
      {op("Exp", {}), argmax, op("MatMul", {}), op("GatherNd", {1, 2}), op("Mul", {3}), op("MatMul", {4})}};
  CHECK(painted(graph) == "110000");
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

TEST_CASE("an infer right after an allow becomes allow, unless it also reads a deny; once through oneDNN only") {
  const comp::op_graph graph{{op("MatMul", {}), op("Tanh", {0}), op("Exp", {}), op("Add", {1, 2}), op("Add", {1, 1})}};
  CHECK(painted(graph) == "00110");
  CHECK(painted(graph, older) == "01111");
  CHECK(painted(graph, bf16) == "bb11b");
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

TEST_CASE("deny leaves behind what reads integers, clear joins an allow that it reads, though it gives integers") {
  comp::op_info shape = op("ShapeN", {1});
  shape.outputs = {{.floating = false}};
  // TensorFlow's BidirectionalClearChain, and an Exp that reads the shapes.
  CHECK(painted(comp::op_graph{{op("Relu", {}), op("MatMul", {0}), shape, op("Relu", {2})}}) == "0001");
}

TEST_CASE("TENSOR_CORES_ONLY leaves the allow list alone, TREAT_INFER_AS_DENY keeps softmax in FP32") {
  using comp::policy::tensorflow_level;
  const comp::op_graph graph{{op("bmm", {}), op("softmax", {0}), op("relu", {1}), op("bmm", {2})}};
  CHECK(painted(graph, tensorflow{.edits = {.level = tensorflow_level::tensor_cores_only}}) == "0110");
  CHECK(painted(graph, tensorflow{.edits = {.level = tensorflow_level::treat_infer_as_deny}}) == "0100");
  CHECK(painted(graph, tensorflow{.edits = {.level = tensorflow_level::unsafe_force_all}}) == "0000");
}

using comp::policy::tensorflow_level;

/// The settings of tensorflow_painted.py, in its order.
const std::vector<tensorflow> recorded_settings{cuda,
                                                bf16,
                                                {.edits = {.level = tensorflow_level::tensor_cores_only}},
                                                {.edits = {.level = tensorflow_level::treat_infer_as_deny}},
                                                {.edits = {.level = tensorflow_level::unsafe_force_all}},
                                                {.edits = {.allow = {.add = {"Cosh", "Softmax"}},
                                                           .infer = {.remove = {"Softmax", "AddV2"}},
                                                           .deny = {.add = {"AddV2"}, .remove = {"Exp"}},
                                                           .clear = {.remove = {"Relu"}}}}};

/// One line of tensorflow_painted.inc; what it says is written in tensorflow_painted.py.
struct recorded {
  comp::op_graph graph;
  std::vector<std::string> painted = {};
  std::vector<std::size_t> casts = {};
};
comp::op_info read_operator(const std::string& word, const std::vector<comp::op_info>& before) {
  std::istringstream parts{word};
  std::string kind, read;
  std::getline(parts, kind, ',');
  const std::size_t colon = kind.find(':');
  const char gives = colon == std::string::npos ? 'f' : kind[colon + 1];
  comp::op_info made = op(kind.substr(0, colon), {});
  made.outputs = {
      {.shape = {4, 4}, .dtype = gives == 'h' ? precision::fp16 : precision::fp32, .floating = gives != 'i'}};
  while (std::getline(parts, read, ',')) {
    if (read == "-" || read[0] == 'p') {
      made.inputs.push_back({.shape = {4, 4}, .leaf = read == "-" ? -1 : read[1] - '0'});
      continue;
    }
    const std::size_t from = std::stoul(read);
    made.inputs.push_back(before.at(from).outputs[0]);
    made.inputs.back().source = static_cast<std::int32_t>(from);
    made.producers.push_back(from);
  }
  return made;
}
recorded parse(const std::string& line) {
  std::istringstream words{line};
  std::vector<comp::op_info> ops;
  std::string word;
  while (words >> word && word != "|") ops.push_back(read_operator(word, ops));
  recorded made{.graph = std::move(ops)};
  while (words >> word) {
    if (word == "|") continue;
    made.painted.push_back(word);
    words >> made.casts.emplace_back();
  }
  return made;
}

TEST_CASE("300 random graphs are painted as TensorFlow 2.21.0 painted them, with no more casts") {
  for (const char* line : {
#include "tensorflow_painted.inc"
       }) {
    CAPTURE(line);
    const recorded theirs = parse(line);
    REQUIRE(theirs.painted.size() == recorded_settings.size());
    for (std::size_t which = 0; which < recorded_settings.size(); ++which) {
      CAPTURE(which);
      const comp::plan ours = tensorflow_pass(recorded_settings[which], theirs.graph);
      CHECK(ours.str() == theirs.painted[which]);
      CHECK(comp::autocast::casts(theirs.graph, ours).forward.size() <= theirs.casts[which]);
    }
  }
}

TEST_CASE("VGG16 under TensorFlow on CUDA: all but the mean, the view and the loss run in FP16") {
  const comp::op_graph vgg = model_graphs::vgg16();
  // Between convolutions BiasAdd, Relu and MaxPool stand between allows; the last Relu and MaxPool are clear beside
  // one. The adaptive average is Keras' global average, a Mean: deny. Dropout is a Mul between two MatMuls.
  const std::string blocks = spaced("00000 00000 0000000 0000000 0000000");
  CHECK(painted(vgg) == blocks + spaced("1 1 000 000 0 1"));
  // With BF16 Mean is infer: between the last convolution and the first MatMul.
  std::string low = blocks + spaced("0 1 000 000 0 1");
  for (char& c : low) c = c == '0' ? 'b' : c;
  CHECK(painted(vgg, bf16) == low);
}

TEST_CASE("BERT under TensorFlow on CUDA: attention whole in FP16, norms deny residuals") {
  // Layer norm has moments (Mean, deny), so what reads it (dropout, residual adds) is denied; query, key, value,
  // scores, scale (RealDiv), softmax, dropout and context lie between MatMuls; GELU's Erf too. Dropouts before a denied
  // add are infer right behind an allow.
  const std::string heads = spaced("011 011 011 1");       // linear, view, transpose; the keys' transpose
  const std::string attention = spaced("0 0 0 0 0 11 0");  // scores, scale, softmax, dropout, context, views, out
  const std::string layer = heads + attention + spaced("0 1 1 0 0 0 0 1 1");
  const std::string embeddings = spaced("111 11 1 1");
  CHECK(painted(model_graphs::bert(2)) == embeddings + layer + layer + spaced("0 1"));
}

TEST_CASE("GCN under TensorFlow: the sparse product is on no list, only the dense ones run low") {
  const std::string expected = spaced("1 0 1 1 1 1 0 1 1 1 1");
  CHECK(painted(model_graphs::gcn()) == expected);
}
}  // namespace tensorflow_pass_tests
