// SPDX-License-Identifier: Apache-2.0
// What operators are called, start with and refuse, if no model shows it: names, defaults, checks that Devices call.
#include <doctest/doctest.h>

#include <comp_native/model_builder.hpp>
#include <comp_native/network.hpp>
#include <comp_native/storage.hpp>
#include <comp_native/training.hpp>
#include <string>
#include <vector>

#include "each_operator.hpp"
#include "reference_device.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::precision;

namespace {

std::string why_refused(auto check) { return words_of<comp::error>(check); }

}  // namespace

TEST_CASE("operators have ATen's names, by which policies and plans know them") {
  std::string kinds;
  for (const auto& [name, m] : each_operator()) {
    for (const node& n : m.nodes) {
      if (n.name == "it") kinds += std::string{kind_of(n.what)} + " ";
    }
  }
  CHECK(
      kinds ==
      "linear conv2d conv2d conv2d batch_norm batch_norm layer_norm relu gelu gelu tanh sigmoid elu leaky_relu dropout "
      "max_pool2d avg_pool2d adaptive_avg_pool2d flatten add add linear aten::mul embedding bmm bmm softmax softmax "
      "scaled_dot_product_attention scaled_dot_product_attention masked_fill binary_cross_entropy_with_logits softmax "
      "log_softmax cross_entropy_loss nll_loss mse_loss mm mm edge_scores softmax index_add ");
  CHECK(kind_of(op::noise{}) == "randn");
  CHECK(kind_of(op::detach{}) == "detach");
}

TEST_CASE("operators on elements count as many operations for each as they take, about") {
  std::string each;
  for (const auto& [name, m] : each_operator()) {
    for (const comp::op_info& op : graph_of(m)) {
      if (op.name != "it" || op.outputs[0].shape.empty() || op.m > 0) continue;
      const auto all = elements(op.outputs[0].shape);
      if (op.flops % all == 0) each += fmt::format("{} {}, ", op.kind, op.flops / all);
    }
  }
  CHECK(
      each ==
      "batch_norm 8, batch_norm 8, layer_norm 8, relu 1, gelu 10, gelu 10, tanh 10, sigmoid 10, elu 10, leaky_relu 2, "
      "dropout 2, max_pool2d 9, avg_pool2d 9, flatten 0, add 1, add 1, aten::mul 1, embedding 0, softmax 5, softmax 5, "
      "masked_fill 1, softmax 5, log_softmax 5, softmax 5, ");
}

TEST_CASE("what was chosen of an operator reaches the Device, in both directions") {
  struct noting : reference::capable_device {
    std::string calls, ranges;
    int range(const char* name) override { return ranges += std::string{name} + " ", 0; }
    with_saved<tensor> batch_norm(const tensor& x, parameter& gamma, parameter& beta, parameter& mean,
                                  parameter& variance, const batch_norm_options& o) override {
      calls += fmt::format("batch {} {} {}, ", o.eps, o.momentum, o.training);
      return reference::device::batch_norm(x, gamma, beta, mean, variance, o);
    }
    tensor batch_norm_backward(const tensor& dy, const tensor& x, const std::vector<tensor>& saved, parameter& gamma,
                               parameter& beta, const batch_norm_options& o) override {
      calls += fmt::format("back {} {} {}, ", o.eps, o.momentum, o.training);
      return reference::device::batch_norm_backward(dy, x, saved, gamma, beta, o);
    }
    with_saved<tensor> layer_norm(const tensor& x, parameter& gamma, parameter& beta, double eps) override {
      calls += fmt::format("layer {}, ", eps);
      return reference::device::layer_norm(x, gamma, beta, eps);
    }
    tensor layer_norm_backward(const tensor& dy, const tensor& x, const std::vector<tensor>& saved, parameter& gamma,
                               parameter& beta, double eps) override {
      calls += fmt::format("back {}, ", eps);
      return reference::device::layer_norm_backward(dy, x, saved, gamma, beta, eps);
    }
  } device;
  model_builder net{"net", input_kind::values, {4, 3}};
  net.input().linear("a", 3).batch_norm("batch", {0.25, 0.5}).layer_norm("layer", {0.125}).mse_loss("loss");
  network<reference::capable_device> on{device, net.finish(), 1};
  const auto batch = uploaded<reference::capable_device>(device, on.model(), random_batch(on.model(), 1));
  on.forward(batch);
  on.backward(batch);
  on.evaluate(batch);
  CHECK(device.ranges ==  // what a profiler shows
        "forward a batch layer loss backward loss layer batch a evaluation a batch layer loss ");
  CHECK(device.calls ==
        "batch 0.25 0.5 true, layer 0.125, back 0.125, back 0.25 0.5 true, batch 0.25 0.5 false, layer 0.125, ");
}

TEST_CASE("what nobody chose is PyTorch's") {
  CHECK(op::batch_norm{}.settings() == std::tuple{1e-5, 0.1});
  CHECK(op::layer_norm{}.eps == 1e-5);
  CHECK(op::dropout{}.p == 0.5);
  CHECK(op::edge_scores{}.slope == 0.2);
  CHECK(leaky_slope == 0.2F);
  CHECK(op::masked_columns::low == -1e4F);
  CHECK(attention_options{}.dropout == 0);
  CHECK(attention_options{.heads = 4}.scale(64) == 0.25);
  CHECK(op::max_pool2d{}.settings() == op::avg_pool2d{{{2, 2}, {2, 2}, {0, 0}}}.settings());
  model_builder net{"net", input_kind::values, {2, 3, 8, 8}};
  const value x = net.input().conv2d("conv", 4).batch_norm("norm");
  CHECK(x.shape() == shape{2, 4, 6, 6});
  x.flatten("flat").layer_norm("rows").linear("head", 2).cross_entropy_loss("loss");
  std::string starts;
  for (const parameter_info& p : net.finish().parameters) {
    starts += fmt::format("{} {} {:.4f}{}, ", p.name, p.initial.how == initial::kind::uniform ? "within" : "at",
                          p.initial.scale, p.trainable ? "" : " stays");
  }
  CHECK(
      starts ==
      "conv.weight within 0.1925, conv.bias within 0.1925, norm.weight at 1.0000, norm.bias at 0.0000, "
      "norm.running_mean at 0.0000 stays, norm.running_var at 1.0000 stays, rows.weight at 1.0000, rows.bias at 0.0000, "
      "head.weight within 0.0833, head.bias within 0.0833, ");
  model_builder words{"words", input_kind::tokens, {2, 5}};
  words.input().embedding("plain", 7, 3);
  words.normal_weights(0.02);
  words.input().embedding("small", 7, 3).linear("head", 2).cross_entropy_loss("loss");
  const auto embedded = words.finish().parameters;
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(embedded[i].initial.how == initial::kind::normal);
    CHECK(embedded[i].initial.scale == (i == 0 ? 1 : 0.02));
  }
  CHECK(embedded[3].initial.scale == 0);
}

TEST_CASE("a phase begins where the one before it ends, and trains the scope that it names, not what is called alike") {
  model_builder net{"net", input_kind::values, {2, 3}};
  for (const char* scope : {"make", "judge", "third"}) {
    const auto named = [&](const char* rest) { return std::string{scope} + rest; };
    net.input().linear(named(".a"), 2).linear(named("r"), 1).binary_cross_entropy_loss(named(".loss"), 1);
    net.end_phase(scope, scope);
  }
  model m = net.finish();
  for (std::size_t k = 0; k < 3; ++k) {
    const phase& p = m.phases[k];
    CHECK(p.first == 3 * k);
    CHECK(p.last == 3 * k + 3);
    CHECK(p.losses == std::vector<std::size_t>{3 * k + 2});
    for (std::size_t i = 0; i < 12; ++i) CHECK(p.trains[i] == (i / 2 == 2 * k));
  }
  m.separate_products = true;  // of layers that their phase does not train only the way back
  std::string products;
  const auto graph = graph_of(m);
  for (std::size_t i = 9; i < graph.size(); ++i) products += graph[i].name + " ";
  CHECK(products ==
        "make.a.weight_gradient maker.input_gradient judge.a.weight_gradient judger.input_gradient "
        "third.a.weight_gradient thirdr.input_gradient ");
  reference::device device;
  network<reference::device> on{device, std::move(m), 1};
  for (std::size_t i = 0; i < 9; ++i) CHECK(on.trained_in(i).size() == (i % 3 == 0 ? 2 : 0));
  CHECK_THROWS_WITH_AS(
      on.backward({}, 1, 1),
      "backward of \"net\" without a forward (3 operators have kept nothing): call forward() before each backward()",
      comp::error);
}

TEST_CASE("right answers are counted where values have one label each") {
  const auto classifies = [](input_kind kind, shape input, auto build) {
    model_builder net{"net", kind, std::move(input)};
    build(net.input());
    return net.finish().classifies();
  };
  CHECK(classifies(input_kind::values, {2, 3}, [](value x) { x.linear("a", 4).cross_entropy_loss("loss"); }));
  CHECK_FALSE(classifies(input_kind::values, {2, 5, 3}, [](value x) { x.linear("a", 4).cross_entropy_loss("loss"); }));
  CHECK_FALSE(classifies(input_kind::values, {2, 3}, [](value x) { x.linear("a", 4).mse_loss("loss"); }));
  CHECK_FALSE(classifies(input_kind::tokens, {2, 3}, [](value x) {
    x.embedding("e", 7, 4).flatten("flat").linear("a", 4).cross_entropy_loss("loss");
  }));
}

TEST_CASE("what Devices check of shapes is refused with the shapes, and taken where it just fits") {
  CHECK(text(shape{}) == "()");
  CHECK(text(shape{64, 3}) == "(64,3)");
  CHECK(why_refused([] {
          require_some("relu", {2, 0});
        }) == "relu of a tensor of shape (2,0) (it has no elements): leave out empty batches");
  CHECK(why_refused([] { require_some("relu", {1, 1}); }) == "");
  CHECK(why_refused([] {
          require_vector("batch_norm", {3}, {2, 4}, 4);
        }) == "batch_norm of x (2,4) with a parameter of (3) (it needs one value for each of 4): make it (4)");
  CHECK(why_refused([] { require_vector("batch_norm", {4}, {2, 4}, 4); }) == "");
  CHECK(why_refused([] { require_vector("batch_norm", {5}, {2, 4}, 4); }) != "");
  const shape three{3}, four{4};
  CHECK(why_refused([&] { require_linear({2, 5}, {4, 5}, &four); }) == "");
  CHECK(why_refused([&] {
          require_linear({2, 5}, {4, 5}, &three);
        }) == "linear with weights (4,5) and a bias of (3) (the first sizes must be equal): make the bias (4)");
  CHECK(why_refused([] {
          require_linear({2, 5}, {5, 4}, nullptr);
        }) == "linear of x (2,5) with weights (5,4) (the last sizes must be equal): make the weights (N,5)");
  const shape image{2, 6, 7, 8};
  CHECK(convolved(image, {4, 3, 3, 2}, &four, {.stride = {2, 3}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2}) ==
        shape{2, 4, 4, 2});
  CHECK(why_refused([&] {
          convolved(image, {4, 6, 3, 3}, &three, {});
        }) == "conv2d with weights (4,6,3,3) and a bias of (3) (the first sizes must be equal): make the bias (4)");
  for (const shape& w : {shape{4, 5, 3, 3}, {3, 3, 3, 3}, {4, 3, 3}}) {
    CHECK(
        why_refused([&] { convolved(image, w, nullptr, {.groups = 2}); }) ==
        fmt::format("conv2d of x (2,6,7,8) with weights {} in 2 groups (they must be (B,C,H,W) and (O,C/groups,R,S)): "
                    "fix the shapes",
                    text(w)));
  }
  CHECK(channels("batch_norm", {2, 5}) == 5);
  const auto lengths = [](std::int64_t count, std::int64_t least, std::int64_t most) {
    return why_refused([&] { require_lengths({2, 4, 7}, count, least, most); });
  };
  CHECK(lengths(2, 0, 7) == "");
  CHECK(lengths(3, 0, 7) ==
        "softmax of x (2,4,7) with 3 lengths from 0 to 7 (one for each example, from 0 to the last size): fix them");
  CHECK(lengths(2, -1, 7) != "");
  CHECK(lengths(2, 0, 8) != "");
  CHECK(pooled("max_pool2d", image, {{3, 2}, {2, 3}, {1, 0}}) == shape{2, 6, 4, 3});
  CHECK(even_bins(image, {7, 4}));
  CHECK_FALSE(even_bins(image, {7, 3}));
  CHECK_FALSE(even_bins(image, {2, 4}));
  CHECK(bin_windows(image, {7, 4}).kernel == std::array<std::int64_t, 2>{1, 2});
  CHECK(bin_windows(image, {7, 4}).stride == std::array<std::int64_t, 2>{1, 2});
  const auto attends = [](const shape& k, const shape& v, op::softmax_mask mask, double dropout) {
    return why_refused([&] { require_attention({2, 5, 6}, k, v, {.heads = 2, .mask = mask, .dropout = dropout}); });
  };
  using enum op::softmax_mask;
  CHECK(attends({2, 4, 6}, {2, 4, 6}, none, 0) == "");
  CHECK(
      attends({2, 4, 6}, {2, 4, 6}, causal, 0) ==
      "attention of (2,5,6) to (2,4,6), causal, (batches and channels must be equal, and causal as many tokens): change "
      "one");
  CHECK(attends({2, 4, 6}, {2, 3, 6}, none, 0) ==
        "attention's keys and values of (2,4,6) and (2,3,6) (the shapes must be equal): reshape one of them");
  for (const shape& k : {shape{3, 4, 6}, {2, 4, 8}, {2, 0, 6}, {8, 6}}) CHECK(attends(k, k, none, 0) != "");
  CHECK(attends({3, 4, 6}, {3, 4, 6}, none, 0) ==
        "attention of (2,5,6) to (3,4,6) (batches and channels must be equal, and causal as many tokens): change one");
  CHECK(attends({2, 4, 6}, {2, 4, 6}, none, -0.1) == "attention with dropout -0.1 (it must be in [0, 1)): change it");
  CHECK(attends({2, 4, 6}, {2, 4, 6}, none, 1) == "attention with dropout 1 (it must be in [0, 1)): change it");
}

TEST_CASE("elements of a matrix know their rows, and are sorted by column") {
  const host_csr m{.rows = 3, .columns = 4, .begin = {0, 2, 2, 5}, .column = {3, 1, 1, 0, 3}};
  CHECK(rows_of(m) == std::vector<std::int32_t>{0, 0, 2, 2, 2});
  CHECK(sorted_by_column(m).begin == std::vector<std::int32_t>{0, 1, 3, 3, 5});
  CHECK(sorted_by_column(m).element == std::vector<std::int32_t>{3, 1, 2, 0, 4});
}

TEST_CASE("each precision is stored as the format that holds it, those below 16 bits as BF16") {
  for (const precision p : comp::all_precisions) {
    if (p == precision::fp64) continue;  // no device has it
    const bool whole = p == precision::fp32 || p == precision::tf32, half = p == precision::fp16;
    CHECK(storage_of(p) == (whole ? storage::fp32 : half ? storage::fp16 : storage::bf16));
    CHECK(with_storage(p, []<class T>(std::type_identity<T>) { return sizeof(T); }) ==
          static_cast<std::size_t>(bytes_of(storage_of(p))));
    CHECK(bytes_of(storage_of(p)) == (whole ? 4 : 2));
  }
}
