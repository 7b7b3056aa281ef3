// SPDX-License-Identifier: Apache-2.0
// The graphs that convolutions ask cuDNN for, given to cuDNN itself, without a GPU, as test_attention_graphs.cpp does:
// every convolution of VGG16, AlexNet and LeNet-5 in each pass and precision, on each generation of GPUs. Prints the
// engines that there are, in the order in which cuDNN proposes them.
#include <algorithm>
#include <set>

#include "../../backends/cuda/graphs/convolution_nodes.hpp"
#include "planned_gpus.hpp"

namespace {

using namespace comp::cuda;
using namespace comp::cuda::graphs;

int failures = 0;

struct layer {
  std::int64_t side, in, out, kernel = 3, stride = 1, padding = 1;
};
// VGG16 at 224 and at 32 pixels, AlexNet at both, LeNet-5, one with channels that are no multiples of 8.
constexpr layer layers[] = {
    {224, 3, 64},
    {224, 64, 64},
    {112, 64, 128},
    {112, 128, 128},
    {56, 128, 256},
    {56, 256, 256},
    {28, 256, 512},
    {28, 512, 512},
    {14, 512, 512},  //
    {32, 3, 64},
    {32, 64, 64},
    {16, 64, 128},
    {16, 128, 128},
    {8, 128, 256},
    {8, 256, 256},
    {4, 256, 512},
    {4, 512, 512},
    {2, 512, 512},  //
    {224, 3, 64, 11, 4, 2},
    {27, 64, 192, 5, 1, 2},
    {13, 192, 384},
    {13, 384, 256},
    {13, 256, 256},  //
    {16, 64, 192},
    {8, 192, 384},
    {8, 384, 256},  //
    {28, 1, 6, 5, 1, 2},
    {14, 6, 16, 5, 1, 0},
    {9, 5, 7},
};

convolution_case case_of(const layer& l, conv_pass pass, storage in, bool bias, bool relu) {
  const std::int64_t side = (l.side + 2 * l.padding - l.kernel) / l.stride + 1;
  return {pass,
          in,
          {64, l.in, l.side, l.side},
          {l.out, l.in, l.kernel, l.kernel},
          {64, l.out, side, side},
          {l.stride, l.stride},
          {l.padding, l.padding},
          {1, 1},
          bias,
          relu};
}

/// The engines of a planned graph, in the order in which cuDNN proposes them.
std::string engines(const fe::graph::Graph& g) {
  std::string all;
  std::set<std::string> names;
  for (std::int64_t i = 0; i < g.get_execution_plan_count(); ++i) {
    std::string name;
    if (g.get_plan_name_at_index(i, name).is_bad()) continue;
    const auto at = name.find("eng");
    name = name.substr(at, name.find('_', at) - at);
    if (names.insert(name).second) all += " " + name;
  }
  return all;
}

/// Prints the engines, or cuDNN's reason; a failure if BF16 or FP16 has no plan though the GPU computes in it.
void plan(const gpu& on, const layer& l, conv_pass pass, storage in, bool bias, bool relu) {
  const auto graph = described(case_of(l, pass, in, bias, relu));
  const std::string why = planned_on(on, *graph, std::int64_t{256} << 20);
  const bool good = why.empty() || in == storage::fp32 || (in == storage::bf16 && on.version < 800);
  failures += !good;
  const char *passes[] = {"forward", "data", "weights"}, *names[] = {"tf32", "bf16", "fp16"};
  fmt::print("{} {} {}{}{} in {}: {} of {} x {} to {}, kernel {}:{}\n", good ? "ok" : "FAILED", on.name,
             passes[static_cast<int>(pass)], bias ? " + bias" : "", relu ? " + ReLU" : "", names[static_cast<int>(in)],
             l.in, l.side, l.side, l.out, l.kernel,
             why.empty() ? engines(*graph) : " none (" + why.substr(0, why.find('\n')) + ")");
}

/// A failure if the graph describes a tensor otherwise than channels_last without gaps.
void check_strides(const convolution_case& of) {
  const auto graph = described(of);
  graph->set_device_properties(properties(*current));
  const bool valid = graph->validate().is_good();
  const auto same = [&](convolution_uid number, const std::array<std::int64_t, 4>& s) {
    fe::graph::Tensor_attributes t;
    return graph->query_tensor_attributes_of_uid(number, t).is_good() && std::ranges::equal(t.get_dim(), s) &&
           t.get_stride() == std::vector<std::int64_t>{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  };
  const bool forward = of.pass == conv_pass::forward, data = of.pass == conv_pass::data;
  const bool good = valid && same(of_first, data ? of.w : of.x) && same(of_second, forward ? of.w : of.y) &&
                    same(of_result, forward ? of.y
                                    : data  ? of.x
                                            : of.w) &&
                    (!of.bias || same(of_bias, {1, of.y[1], 1, 1}));
  failures += !good;
  if (!good) fmt::print("FAILED: the tensors of pass {} are not channels_last\n", static_cast<int>(of.pass));
}

}  // namespace

/// argv[1]: the toolkit's stub of libcuda, for machines without a driver.
int main(int count, char** arguments) {
  if (!can_plan(count < 2 ? nullptr : arguments[1])) return 77;
  for (const conv_pass pass : {conv_pass::forward, conv_pass::data, conv_pass::weights})
    check_strides(case_of(layers[0], pass, storage::bf16, pass == conv_pass::forward, false));
  const auto none_fits = described(case_of(layers[1], conv_pass::forward, storage::bf16, false, false));
  const bool limited = planned_on(ampere, *none_fits, -1).find("workspace") != std::string::npos;
  failures += !limited;
  if (!limited) fmt::print("FAILED: a plan needs more workspace than it may\n");
  for (const gpu& on : {turing, ampere, ada, hopper, blackwell}) {
    for (const layer& l : layers) {
      for (const storage in : {storage::bf16, storage::fp16, storage::fp32}) {
        plan(on, l, conv_pass::forward, in, false, false);
        plan(on, l, conv_pass::forward, in, true, false);
        plan(on, l, conv_pass::forward, in, true, true);
        plan(on, l, conv_pass::data, in, false, false);
        plan(on, l, conv_pass::weights, in, false, false);
      }
    }
  }
  return failures ? 1 : 0;
}
