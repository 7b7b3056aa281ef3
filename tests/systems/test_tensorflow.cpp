// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/concepts.hpp>
#include <comp/systems/tensorflow.hpp>
#include <map>
#include <string>

namespace tensorflow_tests {
using comp::category;
using comp::settings_error;
using comp::policy::tensorflow;
using comp::policy::tensorflow_edits;
using comp::policy::tensorflow_level;
using comp::policy::tensorflow_list;
static_assert(comp::OperatorPolicy<tensorflow>);

category on(tensorflow_list list, const std::string& kind) {
  return tensorflow{.list = list}.classify({.kind = kind}).category;
}
tensorflow_edits from(std::map<std::string, std::string> set) {
  return tensorflow_edits::from_environment([set = std::move(set)](const char* name) {
    const auto at = set.find(name);
    return at == set.end() ? nullptr : at->second.c_str();
  });
}
const std::string prefix = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_";

TEST_CASE("TensorFlow's names and ATen's say the same, with namespace or overload") {
  for (const std::string kind : {"Conv2D", "conv2d", "aten::conv2d", "aten::conv2d.padding"}) {
    CAPTURE(kind);
    CHECK(on(tensorflow_list::cuda_fp16, kind) == category::allow);
  }
  CHECK(on(tensorflow_list::cuda_fp16, "softmax.int") == category::infer);
  CHECK(on(tensorflow_list::cuda_fp16, "aten::exp") == category::deny);
  CHECK(on(tensorflow_list::cuda_fp16, "aten::permute") == category::clear);
  CHECK(on(tensorflow_list::cuda_fp16, "aten::_sparse_mm") == category::follow);
}

TEST_CASE("lists differ by device: Mean is deny in FP16 and infer in BF16, cuDNN's RNN only on CUDA") {
  CHECK(on(tensorflow_list::cuda_fp16, "mean") == category::deny);
  CHECK(on(tensorflow_list::onednn_bf16, "mean") == category::infer);
  CHECK(on(tensorflow_list::cuda_fp16, "CudnnRNNV3") == category::allow);
  CHECK(on(tensorflow_list::onednn_fp16, "CudnnRNNV3") == category::follow);
  CHECK(on(tensorflow_list::onednn_fp16, "Rsqrt") == category::infer);
  CHECK(on(tensorflow_list::cuda_fp16, "Rsqrt") == category::follow);
}

TEST_CASE("lists are edited by options, in TensorFlow's names or ATen's") {
  const tensorflow amp{.edits = {.allow = {.add = {"_sparse_mm"}, .remove = {"BatchMatMulV2"}},
                                 .infer = {.remove = {"Softmax"}},
                                 .deny = {.add = {"softmax"}}}};
  amp.check();
  CHECK(amp.classify({.kind = "aten::_sparse_mm"}).category == category::allow);
  CHECK(amp.classify({.kind = "bmm"}).category == category::follow);
  CHECK(amp.classify({.kind = "Softmax"}).category == category::deny);
}

TEST_CASE("lists are edited by the environment variables that TensorFlow reads, old names too") {
  const tensorflow amp{.edits = from({{prefix + "ALLOWLIST_ADD", "Cumsum,,LRN"},
                                      {prefix + "WHITELIST_ADD", "Svd"},
                                      {prefix + "ALLOWLIST_REMOVE", "Einsum"},
                                      {prefix + "INFERLIST_REMOVE", "Softmax"},
                                      {prefix + "GRAYLIST_REMOVE", "Tanh"},
                                      {prefix + "DENYLIST_ADD", "Softmax"},
                                      {prefix + "BLACKLIST_REMOVE", "Sum"},
                                      {prefix + "CLEARLIST_ADD", "Roll"}})};
  amp.check();
  const std::map<std::string, category> expected{
      {"Cumsum", category::allow}, {"LRN", category::allow},   {"Svd", category::allow},  {"Einsum", category::follow},
      {"Softmax", category::deny}, {"Tanh", category::follow}, {"Sum", category::follow}, {"Roll", category::clear}};
  for (const auto& [kind, wanted] : expected) {
    CAPTURE(kind);
    CHECK(amp.classify({.kind = kind}).category == wanted);
  }
}

TEST_CASE("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL is read as TensorFlow reads it, in any case") {
  CHECK(from({}).level == tensorflow_level::normal);
  CHECK(from({{prefix + "LEVEL", "tensor_cores_only"}}).level == tensorflow_level::tensor_cores_only);
  CHECK(from({{prefix + "LEVEL", "TREAT_INFER_AS_DENY"}}).level == tensorflow_level::treat_infer_as_deny);
  CHECK(from({{prefix + "LEVEL", "UNSAFE_FORCE_ALL"}}).level == tensorflow_level::unsafe_force_all);
  CHECK_THROWS_WITH_AS(from({{prefix + "LEVEL", "FAST"}}),
                       "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL is \"FAST\" (TensorFlow knows TENSOR_CORES_ONLY, "
                       "TREAT_INFER_AS_DENY and UNSAFE_FORCE_ALL): correct it or unset it",
                       settings_error);
}

TEST_CASE("TENSOR_CORES_ONLY empties infer, deny and clear on CUDA, and only there") {
  const tensorflow_edits edits{.level = tensorflow_level::tensor_cores_only};
  CHECK(tensorflow{.edits = edits}.classify({.kind = "Exp"}).category == category::follow);
  CHECK(tensorflow{.edits = edits}.classify({.kind = "MatMul"}).category == category::allow);
  CHECK(tensorflow{.list = tensorflow_list::onednn_fp16, .edits = edits}.classify({.kind = "Exp"}).category ==
        category::deny);
}

TEST_CASE("an operator on two lists is an error, also when it was there before") {
  const tensorflow twice{.edits = {.deny = {.add = {"Softmax"}}}};
  CHECK_THROWS_WITH_AS(twice.check(),
                       "\"Softmax\" is on the deny list and on the infer list (one operator, two decisions): take it "
                       "off one of them, with ..._REMOVE or .remove",
                       settings_error);
}

TEST_CASE("UNSAFE_FORCE_ALL is refused with BF16, as TensorFlow refuses it") {
  const tensorflow forced{.list = tensorflow_list::onednn_bf16, .edits = {.level = tensorflow_level::unsafe_force_all}};
  CHECK_THROWS_WITH_AS(forced.check(),
                       "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL is UNSAFE_FORCE_ALL (many operators have no BF16 "
                       "kernel on a CPU): use it with FP16, or add to the allow list",
                       settings_error);
}

TEST_CASE("an edit that names no operator is warned of, with the nearest that there is") {
  const tensorflow amp{.edits = {.allow = {.add = {"Con2D", "my_kernel"}}, .deny = {.remove = {"expm"}}}};
  const auto warnings = amp.warnings();
  REQUIRE(warnings.size() == 3);
  CHECK(warnings[0] ==
        "allow list names \"Con2D\" (no operator that is known has this name): did you mean \"Conv2D\"?");
  CHECK(warnings[1] ==
        "allow list names \"my_kernel\" (no operator that is known has this name): drop it or correct it");
  CHECK(warnings[2].find("did you mean \"exp") != std::string::npos);
  const comp::op_graph graph{{{.name = "k", .kind = "my_kernel"}}};
  CHECK(amp.warnings(graph).size() == 2);
}
}  // namespace tensorflow_tests
