// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <comp_native/model_graph.hpp>
#include <examples/data/made_up_graph.hpp>
#include <examples/models/native/graph_data.hpp>
#include <examples/models/native/models.hpp>
#include <numbers>
#include <vector>

#include "support.hpp"

using namespace comp::native;

namespace {

const comp::op_info& named(const comp::op_graph& graph, std::string_view name) {
  const auto at = std::ranges::find(graph, name, &comp::op_info::name);
  REQUIRE(at != graph.end());
  return *at;
}

std::string refusal(auto build) { return testing::words_of<model_error>(build); }

model_builder images() { return {"net", input_kind::values, {2, 3, 8, 8}}; }

}  // namespace

TEST_CASE("models have as many parameters as published") {
  using native_models::image_form;
  CHECK(native_models::lenet5({}).parameter_count() == 61'706);
  CHECK(native_models::alexnet({.form = image_form::imagenet, .batch = 1, .classes = 1000}).parameter_count() ==
        61'100'840);
  const auto vgg = [](image_form form, std::int64_t classes, bool norm) {
    return native_models::vgg16({.form = form, .batch = 1, .classes = classes, .batch_norm = norm}).parameter_count();
  };
  CHECK(vgg(image_form::imagenet, 1000, false) == 138'357'544);
  CHECK(vgg(image_form::imagenet, 1000, true) == 138'365'992);
  CHECK(vgg(image_form::cifar, 10, false) == 14'719'818);
  CHECK(vgg(image_form::cifar, 10, true) == 14'728'266);
  CHECK(vgg(image_form::cifar, 100, true) == 14'774'436);
  CHECK(native_models::mlp({}).parameter_count() == 784 * 256 + 256 + 256 * 128 + 128 + 1290);
  const std::int64_t block = 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64 + 4 * 64;
  CHECK(native_models::gpt({.vocabulary = 50, .context = 32, .layers = 3, .width = 64}).parameter_count() ==
        50 * 64 + 32 * 64 + 3 * block + 128 + 64 * 50);
  const auto set = native_models::graph_data(data_sets::made_up_graph(1), 1);  // of Cora's sizes
  CHECK(native_models::gcn({.features = set.features, .adjacency = set.adjacency}).parameter_count() == 23'063);
  CHECK(native_models::gat({.features = set.features, .edges = set.adjacency}).parameter_count() == 92'373);
  CHECK(native_models::simple_net({.width = 32}).parameter_count() == 9 * 32 * 33);
}

TEST_CASE("a graph as models take it has each edge once, that to itself too, and rows of features of norm 1") {
  data_sets::graph of{.nodes = 60, .features = 3, .classes = 2};
  for (std::int32_t node = 0; node < 60; ++node) of.labels.push_back(node % 2);
  data_sets::set_edges(of, {{0, 1}, {1, 0}, {0, 1}, {2, 2}, {2, 2}, {0, 3}}, "a test");
  of.feature_node = {0, 0, 0, 1};
  of.feature_column = {2, 1, 2, 0};
  of.feature_value = {1, 2, 1, -5};
  const auto set = native_models::graph_data(of, 1, 7);
  const host_csr& a = *set.adjacency;
  CHECK(std::vector<std::int32_t>(a.begin.begin(), a.begin.begin() + 5) == std::vector<std::int32_t>{0, 3, 5, 6, 8});
  CHECK(std::vector<std::int32_t>(a.column.begin(), a.column.begin() + 8) ==
        std::vector<std::int32_t>{0, 1, 3, 0, 1, 2, 0, 3});
  CHECK(a.value[0] == doctest::Approx(1 / 3.0));
  CHECK(a.value[1] == doctest::Approx(1 / std::sqrt(6.0)));
  CHECK(a.value[5] == 1);
  CHECK(set.features->column == std::vector<std::int32_t>{1, 2, 0});  // what is twice at one place is added up
  CHECK(set.features->value == std::vector<float>{0.5F, 0.5F, -1});
  CHECK(set.train.size() == 7);
  CHECK(set.train.layout() == example_layout{.input_shape = {3}, .target_shape = {60}});
  std::vector<float> values(3);
  std::vector<std::int32_t> labels(60);
  set.train.write(6, {.values = values, .labels = labels});
  CHECK(std::ranges::count_if(labels, [](auto label) { return label >= 0; }) == 40);  // twenty of each class
  of.feature_node.clear(), of.feature_column.clear(), of.feature_value.clear();
  CHECK_THROWS_WITH_AS(native_models::graph_data(of, 1),
                       doctest::Contains("60 nodes with 3 features, all of them zero"), comp::error);
}

TEST_CASE("the graph of a model says what each operator is") {
  const auto graph = graph_of(native_models::vgg16({.batch = 8, .classes = 100}));
  const auto& conv = named(graph, "stage2.conv1");
  CHECK(conv.kind == "conv2d");
  CHECK(conv.scopes == std::vector<std::string>{"stage2"});
  CHECK(conv.channels_in == 64);
  CHECK(conv.channels_out == 128);
  CHECK_FALSE(named(graph, "flatten").choosable);
  CHECK(graph[graph.size() - 1].kind == "cross_entropy_loss");
  CHECK_FALSE(graph[graph.size() - 1].inputs[1].floating);
  for (std::size_t i = 1; i < graph.size(); ++i) CHECK(graph[i].producers == std::vector<std::size_t>{i - 1});
}

TEST_CASE("the graph of a transformer is a DAG with attention's sizes") {
  const auto graph = graph_of(native_models::gpt({.batch = 2, .context = 16, .layers = 2, .width = 32, .heads = 4}));
  const auto& scores = named(graph, "block1.attention.scores");
  CHECK(scores.kind == "bmm");
  CHECK(scores.scopes == std::vector<std::string>{"block1", "attention"});
  CHECK(scores.m == 16);
  CHECK(scores.n == 16);
  CHECK(scores.k == 8);
  CHECK(scores.flops == 2 * 2 * 4 * 16 * 16 * 8);
  const auto& context = named(graph, "block1.attention.context");
  CHECK(context.k == 16);
  CHECK(context.n == 8);
  CHECK(context.flops == scores.flops);
  CHECK(named(graph, "block0.norm1").producers.size() == 1);
  CHECK(named(graph, "block0.attention.residual").producers.size() == 2);
  CHECK(named(graph, "embedding.token").producers.empty());
  CHECK_FALSE(named(graph, "embedding.token").inputs[0].floating);
  const auto norm = std::ranges::find(graph, "block0.norm1", &comp::op_info::name) - graph.begin();
  CHECK(graph.consumers(static_cast<std::size_t>(norm)).size() == 3);
}

TEST_CASE("the graph counts the work of each operator, and what it reads and writes once") {
  const auto costs = [](const model& m) {
    std::string all;
    for (const comp::op_info& op : graph_of(m)) {
      all += fmt::format("{} {} {} {}, {} flops, {} bytes | ", op.name, op.m, op.n, op.k, op.flops, op.bytes);
    }
    return all;
  };
  auto grouped = images();
  grouped.input()
      .conv2d("it", 6, {.groups = 3, .bias = false})
      .flatten("flat")
      .linear("head", 4)
      .cross_entropy_loss("l");
  CHECK(costs(grouped.finish()).starts_with("it 72 2 9, 7776 flops"));
  comp::op_info across;
  const shape queries{2, 3, 4}, keys{2, 5, 4}, inputs[] = {queries, keys, keys};
  op::attention{{.heads = 2}}.cost({inputs, {}, queries, across});
  CHECK(across.n == 5);
  CHECK(across.flops == 2 * (2 * 4 * 3 * 5 * 2) + 5 * 4 * 3 * 5);
  auto net = images();
  net.input()
      .conv2d("conv", 5, {.bias = false})
      .max_pool2d("max", {.kernel = {2, 3}})
      .avg_pool2d("avg", {.kernel = {1, 2}, .stride = {1, 1}})
      .adaptive_avg_pool2d("adaptive", {1, 1})
      .flatten("flat")
      .linear("head", 4)
      .log_softmax("log")
      .nll_loss("nll");
  CHECK(costs(net.finish()) ==
        "conv 72 5 27, 19440 flops, 3516 bytes | "
        "max 0 0 0, 360 flops, 1680 bytes | "
        "avg 0 0 0, 60 flops, 360 bytes | "
        "adaptive 0 0 0, 30 flops, 160 bytes | "
        "flat 0 0 0, 0 flops, 0 bytes | "
        "head 2 4 5, 88 flops, 168 bytes | "
        "log 0 0 0, 40 flops, 64 bytes | "
        "nll 0 0 0, 2 flops, 44 bytes | ");
  model_builder words{"words", input_kind::tokens, {2, 5}};
  words.input().embedding("words", 7, 3).linear("head", 4, {.bias = false}).cross_entropy_loss("loss");
  CHECK(costs(words.finish()) ==
        "words 0 0 0, 0 flops, 280 bytes | "
        "head 10 4 3, 240 flops, 328 bytes | "
        "loss 0 0 0, 200 flops, 204 bytes | ");
  model_builder graph{"graph", input_kind::values, {1, 3}};
  const sparse m = model_builder::matrix({.rows = 4, .columns = 4, .begin = {0, 1, 2, 2, 3}, .column = {0, 2, 1}});
  const value x = graph.input().sparse_linear("sparse", m, 6);
  x.edge_scores("scores", m, 2).edge_softmax("softmax", m).weighted_sum("sum", m, x).spmm("spmm", m).mse_loss("loss");
  CHECK(costs(graph.finish()) ==
        "sparse 4 6 4, 36 flops, 228 bytes | "
        "scores 0 0 0, 108 flops, 192 bytes | "
        "softmax 0 0 0, 30 flops, 48 bytes | "
        "sum 0 0 0, 36 flops, 264 bytes | "
        "spmm 4 6 4, 60 flops, 240 bytes | "
        "loss 0 0 0, 72 flops, 196 bytes | ");
  model_builder drawn{"drawn", input_kind::values, {2, 3}};
  drawn.noise("noise", 3).linear("head", 1).binary_cross_entropy_loss("loss", 1);
  CHECK(costs(drawn.finish()) ==
        "noise 0 0 0, 0 flops, 24 bytes | "
        "head 2 1 3, 14 flops, 48 bytes | "
        "loss 0 0 0, 20 flops, 12 bytes | ");
}

TEST_CASE("attention counts as the same work in one operator and in three, with the same scale") {
  model_builder apart{"apart", input_kind::values, {2, 6, 32}}, whole{"whole", input_kind::values, {2, 6, 32}};
  const value x = apart.input(), y = whole.input();
  x.attention_scores("scores", x, 4).softmax("soft").attention_context("context", x, 4).mse_loss("loss");
  y.attention("it", y, y, {.heads = 4}).mse_loss("loss");
  const model m = apart.finish();
  const auto parts = graph_of(m);
  const auto it = graph_of(whole.finish())[0];
  CHECK(it.flops == parts[0].flops + parts[1].flops + parts[2].flops);
  CHECK(std::array{it.m, it.n, it.k} == std::array{parts[0].m, parts[0].n, parts[0].k});
  CHECK(std::get<op::bmm>(m.nodes[0].what).alpha == attention_options{.heads = 4}.scale(32));
}

TEST_CASE("the graph says which operator or which parameter each input is") {
  auto net = images();
  const value x = net.input().linear("a", 3).relu("relu");
  x.add("twice", x).linear("b", 3).mse_loss("loss");
  const auto graph = graph_of(net.finish());
  const auto of = [&](const char* name) {
    std::vector<std::pair<int, int>> all;  // source, leaf
    for (const comp::tensor_info& t : named(graph, name).inputs) all.push_back({t.source, t.leaf});
    return all;
  };
  using inputs = std::vector<std::pair<int, int>>;
  CHECK(of("a") == inputs{{-1, 4}, {-1, 0}, {-1, 1}});  // the model's input, weight, bias
  CHECK(of("twice") == inputs{{1, -1}, {1, -1}});
  CHECK(named(graph, "twice").producers == std::vector<std::size_t>{1});
  CHECK(of("b") == inputs{{2, -1}, {-1, 2}, {-1, 3}});
  CHECK(named(graph, "b").inputs[1].parameter);
  CHECK_FALSE(named(graph, "a").inputs[0].parameter);
}

TEST_CASE("a linear layer's three products are operators of their own where the model separates them") {
  auto net = images();
  net.input().linear("a", 3).relu("relu").linear("b", 4, {.bias = false}).mse_loss("loss");
  model m = net.finish();
  const auto whole = graph_of(m);
  m.separate_products = true;
  const auto graph = graph_of(m);
  REQUIRE(graph.size() == whole.size() + 3);  // nothing needs the gradient of the model's input
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(graph[i].name == whole[i].name);
  CHECK(graph.fingerprint() != whole.fingerprint());
  CHECK(whole[2].product == comp::product::all);
  CHECK(graph[0].product == comp::product::forward);
  CHECK(graph[1].product == comp::product::all);
  const auto sizes = [](const comp::op_info& op) { return std::array{op.m, op.n, op.k}; };
  const comp::op_info &dw = graph[4], &db_x = graph[5], &db_w = graph[6];
  const std::int64_t rows = 2 * 3 * 8;
  CHECK(dw.name == "a.weight_gradient");
  CHECK(sizes(dw) == std::array<std::int64_t, 3>{3, 8, rows});
  CHECK(dw.outputs[0].shape == shape{3, 8});
  CHECK(db_x.name == "b.input_gradient");
  CHECK(sizes(db_x) == std::array<std::int64_t, 3>{rows, 3, 4});
  CHECK(db_x.inputs[1].parameter);
  CHECK(db_w.name == "b.weight_gradient");
  for (const comp::op_info* each : {&db_x, &db_w}) {
    CHECK(each->kind == "linear");
    CHECK(each->producers == std::vector<std::size_t>{2});
    CHECK(each->flops == 2 * rows * 3 * 4);
  }
}

TEST_CASE("shapes that do not fit are refused with the operator and the shapes") {
  CHECK(
      refusal([] { images().input().conv2d("stem", 4, {.kernel = 9}); }) ==
      "\"stem\": conv2d of x (2,3,8,8) with weights (4,3,9,9) (the kernel is larger than the padded image): pad more or use "
      "a smaller kernel");
  CHECK(refusal([] { images().input().conv2d("stem", 4, {.groups = 2}); }) ==
        "\"stem\": conv2d in 2 groups of 3 channels in and 4 out (both must be multiples of it): change one");
  CHECK(refusal([] { images().input().flatten("flat").conv2d("stem", 4); }) ==
        "\"stem\": conv2d of x (2,192) (it takes (B,C,H,W)): reshape it");
  CHECK(
      refusal([] { images().input().conv2d("stem", 4, {.stride = 0}); }) ==
      "\"stem\": conv2d with weights (4,3,3,3), stride 0, dilation 1 and padding 0 (all but the padding must be positive): "
      "change them");
  CHECK(refusal([] { images().input().linear("head", 0); }) ==
        "\"head\": linear with 0 units (at least one): change it");
  CHECK(refusal([] { images().input().dropout("drop", 1); }) ==
        "\"drop\": dropout with p = 1 (it must be in [0, 1)): change it");
  CHECK(refusal([] {
          auto net = images(), other = images();
          net.input().add("sum", other.input());
        }) == "\"sum\" reads the output of another builder (a model is written by one): use one");
  CHECK(refusal([] {
          auto net = images();
          net.input().bmm("it", net.input().max_pool2d("pool"));
        }) ==
        "\"it\": bmm of (2,3,8,8) by (2,3,4,4) (inner extents and all before the last two must agree): change "
        "one of them");
  CHECK(refusal([] {
          auto net = images();
          net.input().bmm("it", net.input().conv2d("wide", 4, {.padding = 1}));
        }) ==
        "\"it\": bmm of (2,3,8,8) by (2,4,8,8) (inner extents and all before the last two must agree): change "
        "one of them");
  CHECK(refusal([] {
          auto net = images();
          net.input().add("sum", net.input().max_pool2d("pool"));
        }) == "\"sum\": add of (2,3,8,8) and (2,3,4,4) (the shapes must be equal): reshape one of them");
  CHECK(
      refusal([] {
        images().input().max_pool2d("pool", {{2, 2}, {2, 2}, {2, 2}});
      }) ==
      "\"pool\": max_pool2d with kernel 2, stride 2 and padding 2 (a window may not lie in the padding alone): pad by at most "
      "half the kernel");
  CHECK(
      refusal([] { images().input().linear("x", 3).softmax("soft", op::softmax_mask::causal); }) ==
      "\"soft\": softmax of x (2,3,8,3), causal (the last two sizes must be equal): leave the mask out or fix the shape");
  CHECK(
      refusal([] { native_models::gpt({.width = 30, .heads = 4}); }) ==
      "\"block0.attention.scores\": split_heads of x (16,64,30) into 4 (it takes (B,T,C), C a multiple of the heads): fix the "
      "sizes");
}

TEST_CASE("what just fits is taken, and what is too small by one is refused") {
  auto net = images();
  model_builder rows{"net", input_kind::values, {2, 3, 4}}, vectors{"net", input_kind::values, {2, 8}},
      words{"net", input_kind::tokens, {2, 2, 5}};
  const value image = net.input(), x = rows.input(), word = words.input().embedding("e", 7, 4);
  CHECK(image.conv2d("whole", 4, {.kernel = 8}).shape() == shape{2, 4, 1, 1});
  CHECK(x.bmm("products", x, {.transpose_b = true}).shape() == shape{2, 3, 3});
  CHECK(word.masked_columns("columns").shape() == shape{2, 4, 5});
  CHECK(image.conv2d("one", 1, {.kernel = 1}).linear("unit", 1).shape() == shape{2, 1, 8, 1});
  CHECK(net.noise("number", 1).shape() == shape{2, 1});
  CHECK(words.input().embedding("row", 1, 1).shape() == shape{2, 5, 1});
  const sparse edge = model_builder::matrix({.rows = 1, .columns = 1, .begin = {0, 1}, .column = {0}});
  model_builder node{"net", input_kind::values, {1, 1}};
  CHECK(node.input().sparse_linear("node", edge, 1).edge_scores("edge", edge, 1).shape() == shape{1, 1});
  CHECK(image.max_pool2d("half", {.padding = {1, 1}}).shape() == shape{2, 3, 5, 5});
  CHECK(image.max_pool2d("above", {.padding = {1, 0}}).shape() == shape{2, 3, 5, 4});
  const auto refused = [](auto build, const char* why) {
    const std::string got = refusal(build);
    CAPTURE(got);
    CHECK(got.find(why) != std::string::npos);
  };
  refused([&] { image.conv2d("it", 0); }, "0 channels in 1 groups");
  refused([&] { image.conv2d("it", 4, {.groups = 0}); }, "4 channels in 0 groups");
  refused([&] { image.conv2d("it", 4, {.groups = 3}); }, "3 groups of 3 channels in and 4 out");
  refused([&] { image.conv2d("it", 4, {.kernel = 0}); }, "weights (4,3,0,0)");
  refused([&] { image.conv2d("it", 4, {.dilation = 0}); }, "dilation 0");
  refused([&] { image.conv2d("it", 4, {.padding = -1}); }, "padding -1");
  refused([&] { image.dropout("it", -0.1); }, "p = -0.1");
  refused([&] { net.noise("it", 0); }, "noise of 0 numbers");
  refused([&] { vectors.input().attention_scores("it", vectors.input(), 2); }, "split_heads of x (2,8) into 2");
  refused([&] { x.attention("it", x, x, {.heads = 0}); }, "split_heads of x (2,3,4) into 0");
  refused([&] { x.bmm("it", x, {.transpose_b = true, .merge = true}); }, "merge_heads of x (2,3,3)");
  refused([&] { image.bmm("it", image.flatten("to rows"), {.transpose_b = true}); },
          "bmm of (2,3,8,8) by (2,192) transposed (inner");
  refused(
      [&] {
        model_builder{"net", input_kind::tokens, {2}}.input().embedding("it", 4, 4);
      },
      "embedding of (2) (it takes tokens");
  refused(
      [&] {
        model_builder{"net", input_kind::tokens, {2, 3, 5}}.input().embedding("it", 4, 4);
      },
      "embedding of (2,3,5) (it takes tokens");
  refused([&] { word.flatten("flat").masked_columns("it"); }, "masked columns of (2,20)");
  refused([&] { image.max_pool2d("it", {.kernel = {0, 2}}); }, "kernel 0, stride 2");
  refused([&] { image.max_pool2d("it", {.stride = {2, 0}}); }, "kernel 2, stride 0");
  refused([&] { image.avg_pool2d("it", {.kernel = {2, 9}}); }, "x (2,3,8,8) with a kernel of 9");
  refused([&] { image.adaptive_avg_pool2d("it", {0, 1}); }, "(2,3,8,8) to 0x1");
  refused([&] { image.adaptive_avg_pool2d("it", {1, 0}); }, "(2,3,8,8) to 1x0");
  refused([&] { x.adaptive_avg_pool2d("it", {1, 1}); }, "adaptive_avg_pool2d of x (2,3,4)");
  refused([&] { x.max_pool2d("it"); }, "max_pool2d of x (2,3,4)");
  refused([&] { x.batch_norm("it"); }, "batch_norm of x (2,3,4)");
  refused([&] { words.input().embedding("it", 0, 4); }, "embedding of 0 rows of 4");
  refused([&] { words.input().embedding("it", 4, 0); }, "embedding of 4 rows of 0");
  refused([&] { words.input().embedding("it", 4, 4, op::looked_up::positions); },
          "embedding of 4 positions for 5 tokens");
  refused([&] { model_builder{"net", input_kind::values, {8}}.input().linear("it", 2); }, "linear of x (8)");
  refused([&] { model_builder{"net", input_kind::values, {8}}.input().nll_loss("it"); }, "a loss of (8)");
}

TEST_CASE("operators on graphs are refused what does not fit their matrix") {
  const sparse square = model_builder::matrix({.rows = 3, .columns = 3, .begin = {0, 1, 2, 3}, .column = {0, 2, 1}});
  const sparse wide = model_builder::matrix({.rows = 3, .columns = 4, .begin = {0, 1, 2, 3}, .column = {0, 3, 1}});
  model_builder net{"net", input_kind::values, {1, 3}};
  const value nodes = net.input().sparse_linear("nodes", square, 6);
  CHECK(nodes.shape() == shape{3, 6});
  const auto refused = [](auto build, const char* why) {
    const std::string got = refusal(build);
    CAPTURE(got);
    CHECK(got.find(why) != std::string::npos);
  };
  refused([&] { nodes.sparse_linear("it", square, 2); }, "\"it\": sparse_linear of x (3,6)");
  refused([&] { net.input().sparse_linear("it", square, 0); }, "0 units");
  refused([&] { nodes.spmm("it", wide); }, "spmm of a x of (3,6) on a graph of 4 nodes");
  refused([&] { nodes.edge_scores("it", wide, 2); }, "3 and 4 nodes");
  refused([&] { net.input().edge_scores("it", square, 1); }, "edge_scores of a x of (1,3) on a graph of 3 nodes");
  refused([&] { nodes.edge_scores("it", square, 4); }, "x (3,6) by shares (3,4)");
  refused([&] { nodes.edge_scores("it", square, 0); }, "0 heads");
  refused(
      [&] {
        nodes.edge_scores("it", model_builder::matrix({.rows = 3, .columns = 3, .begin = {0, 0, 0, 0}}), 2);
      },
      "a graph of 0 edges");
  const value scores = nodes.edge_scores("scores", square, 2);
  CHECK(scores.shape() == shape{3, 2});
  nodes.spmm("without a bias", square, false);
  nodes.mse_loss("loss");
  const auto parameters = net.finish().parameters;
  REQUIRE(parameters.size() == 3);
  CHECK(parameters[0].initial.scale == doctest::Approx(1 / std::sqrt(3.0)));  // a row of three columns
  CHECK(parameters[1].name == "scores.source");
  CHECK(parameters[1].initial.scale == doctest::Approx(std::sqrt(6.0 / (2 * 3 + 3))));
  const sparse tall = model_builder::matrix({.rows = 4, .columns = 3, .begin = {0, 1, 2, 3, 3}, .column = {0, 2, 1}});
  CHECK(net.input().sparse_linear("tall", tall, 5).spmm("wide", wide).shape() == shape{3, 5});
  refused([&] { net.input().edge_softmax("it", square); }, "edge_softmax of (1,3) on a graph of 3 edges");
  refused([&] { net.input().weighted_sum("it", square, nodes); }, "weighted_sum of (1,3) on a graph of 3 edges");
  refused([&] { scores.weighted_sum("it", square, net.input().sparse_linear("seven", square, 7)); },
          "x (3,7) by shares (3,2)");
  refused([&] { scores.weighted_sum("it", wide, nodes); }, "weighted_sum of a x of (3,6) on a graph of 4 nodes");
  const std::pair<host_csr, const char*> unsound[] = {
      {{.rows = 1, .columns = 1, .begin = {0, 1}, .column = {7}}, "column 7 in row 0 (they are counted from 0 to 0)"},
      {{.rows = 1, .columns = 1, .begin = {0, 1}, .column = {-1}}, "column -1 in row 0"},
      {{.rows = 2, .columns = 2, .begin = {0, 1, 3}, .column = {1, 1, 1}}, "column 1 twice in row 1"},
      {{.rows = 0, .columns = 1, .begin = {0}}, "a sparse matrix of 0 x 1 with 0 elements (each number has to"},
      {{.rows = 1, .columns = 0, .begin = {0, 0}}, "a sparse matrix of 1 x 0 with 0 elements (each number has to"},
      {{.rows = INT32_MAX, .columns = 1, .begin = {0, 0}}, "each number has to fit 32 bits"},
      {{.rows = 1, .columns = INT32_MAX, .begin = {0, 0}}, "each number has to fit 32 bits"},
      {{.rows = 1, .columns = 1}, "0 places where rows begin, from 0 to 0"},
      {{.rows = 2, .columns = 2, .begin = {0, 1}, .column = {0}}, "2 places where rows begin, from 0 to 1"},
      {{.rows = 1, .columns = 2, .begin = {1, 2}, .column = {0, 1}}, "2 places where rows begin, from 1 to 2"},
      {{.rows = 1, .columns = 2, .begin = {0, 1}, .column = {0, 1}}, "2 places where rows begin, from 0 to 1"},
      {{.rows = 1, .columns = 1, .begin = {0, 1}, .column = {0}, .value = {1, 2}}, "1 elements has 2 values"},
      {{.rows = 2, .columns = 1, .begin = {0, 2, 1}, .column = {0}}, "a row 1 from 2 to 1"}};
  for (const auto& [m, why] : unsound) {
    CHECK_THROWS_WITH_AS(model_builder::matrix(m), doctest::Contains(why), comp::error);
  }
}

TEST_CASE("a model is refused that is not whole") {
  CHECK(refusal([] { images().finish(); }) ==
        "model \"net\" has 0 losses (exactly one, as the last operator): end it with one");
  CHECK(refusal([] {
          auto net = images();
          net.input().mse_loss("loss");
          net.input().relu("after");
          net.finish();
        }) == "model \"net\" has 1 losses (exactly one, as the last operator): end it with one");
  CHECK(refusal([] {
          auto net = images();
          net.input().relu("same").relu("same");
        }) == "two operators are called \"same\" (names tell them apart in plans): rename one");
  CHECK(refusal([] { images().input().embedding("table", 3, 4); }) ==
        "\"table\" does not read the model's input (an embedding reads tokens): begin with it");
  CHECK(refusal([] {
          model_builder text{"text", input_kind::tokens, {2, 4}};
          text.input().embedding("table", 3, 4).embedding("next", 3, 4);
        }) == "\"next\" does not read the model's input (an embedding reads tokens): begin with it");
  CHECK(refusal([] {
          model_builder{"text", input_kind::tokens, {2, 4}}.input().linear("head", 3);
        }) == "\"head\" reads tokens (only an embedding can): put one before it");
  CHECK(refusal([] {
          model_builder{"none", input_kind::values, {0, 4}};
        }) == "model \"none\" reads (0,4) (extents must be positive): change its input");
}

TEST_CASE("a network that is used twice has its parameters once") {
  const model gan = native_models::gan({});
  CHECK(gan.parameter_count() == 1'510'032 + 533'505);  // as in models/libtorch/gan.hpp
  const auto graph = graph_of(gan);
  CHECK(named(graph, "discriminator.linear512@real").inputs[1].leaf ==
        named(graph, "discriminator.linear512@fake").inputs[1].leaf);
  CHECK_FALSE(named(graph, "noise").choosable);
  CHECK(named(graph, "detach").producers.size() == 1);
  CHECK(refusal([] {
          auto net = images();
          net.input().linear("it", 3);
          net.input().linear("it@again", 4);
        }) == "\"it@again\" has \"it.weight\" of (4,8) (the operator before it has (3,8)): give it another name");
  CHECK(refusal([] {  // as many elements are not enough
          auto net = images();
          net.input().linear("it", 3, {.bias = false}).linear("it@again", 8, {.bias = false});
        }) == "\"it@again\" has \"it.weight\" of (8,3) (the operator before it has (3,8)): give it another name");
}

TEST_CASE("phases that cannot train are refused") {
  const auto ended = [](auto between) {
    return refusal([&] {
      auto net = images();
      const value x = net.input().flatten("flat").linear("a.in", 1);
      x.binary_cross_entropy_loss("loss", 1);
      net.end_phase("a", "a");
      between(net, x);
      (void)net.finish();
    });
  };
  CHECK(ended([](model_builder& net, value x) {
          x.linear("b.in", 1).binary_cross_entropy_loss("loss@b", 0);
          net.end_phase("b", "b");
        }) == "\"b.in\" of phase \"b\" reads an operator of an earlier one (whose gradients are done): detach() it");
  CHECK(ended([](model_builder& net, value x) {
          x.detach("detach").linear("b.in", 1);
          net.end_phase("b", "b");
        }) == "phase \"b\" of model \"net\" ends with no loss (it trains by its losses): end it with one");
  CHECK(ended([](model_builder& net, value x) {
          const value y = x.detach("detach").linear("b.in", 1);
          y.binary_cross_entropy_loss("loss@b", 0);
          y.relu("b.behind");
          net.end_phase("b", "b");
        }) == "phase \"b\" of model \"net\" ends with no loss (it trains by its losses): end it with one");
  CHECK(ended([](model_builder& net, value x) {
          x.detach("detach").linear("b.in", 1).binary_cross_entropy_loss("loss@b", 0);
          net.end_phase("b", "c");
        }) == "phase \"b\" of model \"net\" trains \"c\" (no parameter is called so): name a scope of it");
  CHECK(ended([](model_builder&, value x) {
          x.detach("detach").linear("b.in", 1).binary_cross_entropy_loss("loss@b", 0);
        }) == "model \"net\" has operators behind its last phase (nothing trains them): end_phase() after them");
  CHECK(ended([](model_builder& net, value x) {
          x.detach("detach").linear("b.in", 1).binary_cross_entropy_loss("loss@b", 2);
          net.end_phase("b", "b");
        }) == "\"loss@b\": binary cross entropy with target 2 (it is a probability): use 0 to 1");
}

TEST_CASE("padding is hidden only where the data tells of it") {
  model_builder plain{"net", input_kind::tokens, {2, 5}};
  CHECK(refusal([&] { plain.input().embedding("e", 7, 4).softmax("soft", op::softmax_mask::padding); }) ==
        "\"soft\" hides padding (which negative segments tell of): read tokens and segments, (B,2,T)");
  CHECK(refusal([&] {
          const value x = plain.input().embedding("x", 7, 4);
          x.attention("heads", x, x, {.heads = 2, .mask = op::softmax_mask::padding});
        }) == "\"heads\" hides padding (which negative segments tell of): read tokens and segments, (B,2,T)");
  CHECK(refusal([&] { plain.input().embedding("s", 2, 4, op::looked_up::segments); }) ==
        "\"s\": embedding of the segments of (2,5) (it takes (B,2,T), tokens and segments): change the input");
}

TEST_CASE("parameters start as in PyTorch, and VGG16's as torchvision's, the same on every machine") {
  const auto of = [](const model& m, std::string_view name, std::uint64_t seed = 1) {
    const auto at = std::ranges::find(m.parameters, name, &parameter_info::name);
    REQUIRE(at != m.parameters.end());
    return initial_values(*at, seed, static_cast<std::size_t>(at - m.parameters.begin()));
  };
  struct moments {
    double mean = 0, variance = 0, largest = 0;
  };
  const auto moments_of = [](const std::vector<float>& values) {
    moments m;
    const auto count = static_cast<double>(values.size());
    for (const float w : values) {
      m.mean += w / count;
      m.variance += w * w / count;
      m.largest = std::max<double>(m.largest, std::abs(w));
    }
    return m;
  };
  const model alexnet = native_models::alexnet({.batch = 1}), vgg = native_models::vgg16({.batch = 1});
  const double bound = 1 / std::sqrt(256 * 9.0);
  const moments uniform = moments_of(of(alexnet, "features.conv5.weight"));
  CHECK(uniform.largest <= bound);
  CHECK(uniform.largest > 0.999 * bound);
  CHECK(std::abs(uniform.mean) < 4 * bound / std::sqrt(3 * 256 * 256 * 9.0));
  CHECK(uniform.variance == doctest::Approx(bound * bound / 3).epsilon(0.01).scale(0));
  const double bias = moments_of(of(alexnet, "features.conv5.bias")).largest;
  CHECK(bias <= bound);
  CHECK(bias > 0.9 * bound);
  const moments normal = moments_of(of(vgg, "stage2.conv2.weight"));
  CHECK(normal.variance == doctest::Approx(2 / (128 * 9.0)).epsilon(0.02).scale(0));
  CHECK(normal.largest > 3.5 * std::sqrt(normal.variance));
  CHECK(moments_of(of(vgg, "classifier.linear.weight")).variance == doctest::Approx(1e-4).epsilon(0.06).scale(0));
  CHECK(of(vgg, "stage2.conv2.bias") == std::vector<float>(128, 0.0F));
  CHECK(of(vgg, "stage1.norm1.weight") == std::vector<float>(64, 1.0F));
  CHECK(of(vgg, "stage1.norm1.bias") == std::vector<float>(64, 0.0F));
  CHECK(of(vgg, "stage2.conv2.weight") == of(vgg, "stage2.conv2.weight"));
  CHECK(of(vgg, "stage2.conv2.weight") != of(vgg, "stage2.conv2.weight", 2));
  CHECK(of(vgg, "stage3.conv2.weight") != of(vgg, "stage3.conv3.weight"));
  model_builder net{"xavier", input_kind::values, {1, 6, 8, 8}};
  net.xavier_weights();
  const value head = net.input().conv2d("conv", 12, {.kernel = 3, .groups = 2}).flatten("flat").linear("head", 4);
  net.normal_weights(0.5);
  head.linear("last", 3).cross_entropy_loss("loss");
  const model xavier = net.finish();
  CHECK(xavier.parameters[0].initial.scale == doctest::Approx(std::sqrt(6.0 / (3 * 9 + 12 * 9))));
  CHECK(xavier.parameters[2].initial.scale == doctest::Approx(std::sqrt(6.0 / (12 * 36 + 4))));
  CHECK(xavier.parameters[3].initial.scale == 0);
  CHECK(xavier.parameters[4].initial.how == initial::kind::normal);
}

TEST_CASE("random numbers are the standard's words, mapped by us") {
  random_stream draws{1, 2};
  std::mt19937_64 words{mix_seed(1, 2)};
  CHECK(draws.uniform() == static_cast<double>(words() >> 11) * 0x1p-53);
  CHECK(permutation(6, 1, 0) == std::vector<std::uint32_t>{3, 4, 1, 2, 0, 5});
  CHECK(mix_seed(0, 0) == 0xe220a8397b1dcdafULL);  // the first word of SplitMix64 from 0, as published
  double sum = 0, squares = 0;
  for (int i = 0; i < 20000; ++i) {
    const double x = draws.normal();
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / 20000) < 0.03);
  CHECK(squares / 20000 == doctest::Approx(1).epsilon(0.04));
}

TEST_CASE("normal numbers of the ends of their range are the standard library's") {
  constexpr double least = 0x1p-53, most = 1 - 0x1p-53;
  constexpr std::array ends{1.0, most, 0.5, std::numbers::sqrt2 / 2, least, 2 * least};
  constexpr std::array turns{0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, most, least, 0.5 + least, 0.25 - least};
  constexpr std::size_t count = ends.size() * turns.size();
  double u[count], v[count];
  float got[2 * count];
  for (std::size_t i = 0; i < count; ++i) u[i] = ends[i / turns.size()], v[i] = turns[i % turns.size()];
  math::normal_pairs<count>(u, v, got);
  for (std::size_t i = 0; i < count; ++i) {
    CAPTURE(u[i]);
    CAPTURE(v[i]);
    const auto pair = math::normal_pair(u[i], v[i]);
    CHECK(got[2 * i] == static_cast<float>(pair[0]));
    CHECK(got[2 * i + 1] == static_cast<float>(pair[1]));
  }
}
