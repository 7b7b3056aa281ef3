// SPDX-License-Identifier: Apache-2.0
// A plan file goes between languages that call different operators for one layer.
#include <comp/comp.hpp>
#include <comp/files/json.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::precision;

namespace {

using listed = std::vector<std::tuple<std::string, std::string, std::string>>;  // name, kind, precision

/// The first name for each, as they are called one after the other.
std::vector<std::string> layers_of(const listed& operators) {
  lt::detail::layer_names layers;
  std::vector<std::string> names;
  for (const auto& [name, kind, chosen] : operators) names.push_back(layers.next(name, kind));
  return names;
}

void write(const listed& operators, const std::string& path) {
  nlohmann::json document{{"comp_plan", 1}, {"hardware", comp::json_of(lt::probe(at::kCPU))}};
  for (const auto& [name, kind, chosen] : operators)
    document["operators"].push_back({{"name", name}, {"kind", kind}, {"precision", chosen}});
  comp::detail::write_file(path, document.dump());
}

/// Attention scores behind two linear layers, which C++ calls by t, matmul and add_.
struct attention : torch::nn::Module {
  torch::nn::Linear q = register_module("q", torch::nn::Linear{16, 16});
  torch::nn::Linear k = register_module("k", torch::nn::Linear{16, 16});
  std::vector<at::ScalarType> formats;
  torch::Tensor forward(const torch::Tensor& x) {
    const auto a = q->forward(x), b = k->forward(x);
    const auto scores = torch::matmul(a, b.transpose(-1, -2));
    formats = {a.scalar_type(), b.scalar_type(), scores.scalar_type()};
    return torch::softmax(scores, -1).sum();
  }
};

/// As Python's modules have it: each linear layer is one operator.
listed of_python(const std::string& q, const std::string& k, const std::string& scores) {
  return {{"q.linear", "aten::linear", q},
          {"k.linear", "aten::linear", k},
          {"k.transpose", "aten::transpose.int", "fp32"},
          {"q.matmul", "aten::matmul", scores},
          {"q.softmax", "aten::softmax.int", "fp32"},
          {"q.sum", "aten::sum", "fp32"}};
}

constexpr auto low = at::kBFloat16, full = at::kFloat;

}  // namespace

TEST_CASE("a layer is called the same in C++, Python and TorchScript, another call of its module is not") {
  const listed cpp{{"q.t", "aten::t", ""},
                   {"q.matmul", "aten::matmul", ""},
                   {"q.add", "aten::add_.Tensor", ""},
                   {"q.matmul_2", "aten::matmul", ""},
                   {"q.add_2", "aten::add.Tensor", ""},
                   {"head.t", "aten::t", ""},
                   {"head.addmm", "aten::addmm", ""},
                   {"head.t_2", "aten::t", ""},
                   {"head.addmm_2", "aten::addmm", ""},
                   {"conv.conv2d", "aten::conv2d", ""},
                   {"t", "aten::t", ""},
                   {"mm", "aten::mm", ""},
                   {"head.addmm.input_gradient", "aten::addmm", ""},
                   {"head.addmm_2.weight_gradient", "aten::addmm", ""}};
  CHECK(layers_of(cpp) == std::vector<std::string>{"q.t", "q.linear", "q.bias", "q.matmul", "q.add", "head.t",
                                                   "head.linear", "head.t_2", "head.linear_2", "conv.conv", "t",
                                                   "linear", "head.linear.input_gradient",
                                                   "head.linear_2.weight_gradient"});
  const listed python{{"q.linear", "aten::linear", ""},      {"q.matmul", "aten::matmul", ""},
                      {"q.add", "aten::add.Tensor", ""},     {"head.linear", "aten::linear", ""},
                      {"head.linear_2", "aten::linear", ""}, {"conv._convolution", "aten::_convolution", ""}};
  CHECK(layers_of(python) ==
        std::vector<std::string>{"q.linear", "q.matmul", "q.add", "head.linear", "head.linear_2", "conv.conv"});
  const listed apart{{"a.t", "aten::t", ""},
                     {"a.relu", "aten::relu", ""},
                     {"a.mm", "aten::mm", ""},
                     {"a.t_2", "aten::t", ""},
                     {"b.mm", "aten::mm", ""}};
  CHECK(layers_of(apart) == std::vector<std::string>{"a.t", "a.relu", "a.mm", "a.t_2", "b.mm"});
}

TEST_CASE("a plan file of Python's lowers in C++ what it lowers there: the layers, or the scores that they make") {
  const scratch_file file;
  const auto net = std::make_shared<attention>();
  const auto x = torch::randn({2, 4, 16});
  for (const auto& [q, k, scores] : {std::tuple{low, full, full}, {full, full, low}, {low, low, full}}) {
    const auto word = [](at::ScalarType format) { return format == low ? "bf16" : "fp32"; };
    write(of_python(word(q), word(k), word(scores)), file.str());
    lt::planned_region planned{{{"", *net}}, file.str()};
    {
      const torch::NoGradGuard no_gradients;
      const auto on = planned.evaluate();
      net->forward(x);
      CHECK(bool{net->formats == std::vector{q, k, scores}});
    }
    for (int i = 0; i < 3; ++i) {
      const auto on = planned.enter();
      net->forward(x);
      CHECK(bool{net->formats == std::vector{q, k, scores}});
    }
    CHECK(planned.planned());
    CHECK(planned.warnings().empty());
    const torch::NoGradGuard no_gradients;
    const auto on = planned.evaluate();
    net->forward(x);
    CHECK(bool{net->formats == std::vector{q, k, scores}});
  }
}

TEST_CASE("a file that does not have the scores says so, and one whose modules are named otherwise is refused") {
  const scratch_file file;
  const auto net = std::make_shared<attention>();
  const auto x = torch::randn({2, 4, 16});
  auto operators = of_python("bf16", "bf16", "fp32");
  operators.erase(operators.begin() + 3);
  write(operators, file.str());
  lt::planned_region planned{{{"", *net}}, file.str()};
  for (int i = 0; i < 2; ++i) inside(planned, [&] { net->forward(x); });
  CHECK(bool{net->formats == std::vector{low, low, full}});
  REQUIRE(planned.warnings().size() == 1);
  CHECK(planned.warnings()[0] == "\"" + file.str() +
                                     "\" does not have 1 of the model's 5 operators, first \"q.matmul_2\" "
                                     "(aten::matmul): they run as most of their kind do in it");

  lt::planned_region other{{{"encoder", *net}}, file.str()};
  {
    const auto on = other.enter();
    net->forward(x);
  }
  CHECK_THROWS_WITH_AS((void)other.enter(),
                       doctest::Contains("is for another model: it does not have 5 of this one's 5 operators, first "
                                         "\"encoder.q.matmul\" (aten::matmul"),
                       comp::plan_error);
  lt::planned_region near{{{"r", net->q}}, file.str()};
  inside(near, [&] { net->q->forward(x); });
  CHECK_THROWS_WITH_AS((void)near.enter(), doctest::Contains("first \"r.matmul\" (aten::matmul; did you mean \""),
                       comp::plan_error);
}

TEST_CASE("a layer that the first forward left out has its precision of the file, whichever operator it calls") {
  const scratch_file file;
  const auto a = std::make_shared<torch::nn::LinearImpl>(8, 8), b = std::make_shared<torch::nn::LinearImpl>(8, 8);
  const auto c = std::make_shared<torch::nn::Conv2dImpl>(torch::nn::Conv2dOptions{2, 2, 1});
  const auto x = torch::randn({4, 8});
  write({{"a.linear", "aten::linear", "bf16"},
         {"b.linear", "aten::linear", "fp32"},
         {"other.linear", "aten::linear", "bf16"},
         {"c._convolution", "aten::_convolution", "fp32"},
         {"other._convolution", "aten::_convolution", "bf16"},
         {"more._convolution", "aten::_convolution", "bf16"},
         {"a.tanh", "aten::tanh", "fp32"}},
        file.str());
  lt::planned_region planned{{{"a", *a}, {"b", *b}, {"c", *c}}, file.str()};
  for (int i = 0; i < 3; ++i) {
    const auto on = planned.enter();
    const auto h = a->forward(x);
    CHECK(bool{h.scalar_type() == low});
    torch::tanh(h);
    if (i == 2) {
      CHECK(bool{b->forward(x).scalar_type() == full});
      CHECK(bool{c->forward(torch::randn({1, 2, 2, 2})).scalar_type() == full});
    }
  }
}
