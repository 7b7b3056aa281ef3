// SPDX-License-Identifier: Apache-2.0
// The graphs that attention asks cuDNN for, given to cuDNN itself, without a GPU: it plans for devices that it is told
// about (its ahead-of-time compilation). Up to whether it has a plan; to make code and run it takes the GPU.
// Inert if cuDNN is older than 9.11, which does not plan like that.
#include "../../backends/cuda/graphs/attention_nodes.hpp"
#include "planned_gpus.hpp"

namespace {

using namespace comp::cuda;
using namespace comp::cuda::graphs;

int failures = 0;
/// Prints a line; a failure if cuDNN says otherwise than expected: a plan, or these words.
void expect(const gpu& on, const attention_case& of, bool backward, const std::string& refusal) {
  const std::int64_t most = (std::int64_t{256} << 20) + 2 * of.batch * of.heads * (of.queries + 127) * (of.keys + 127);
  const std::string why = planned_on(on, *described(of, backward), most, of.any_order);
  const bool good = refusal.empty() ? why.empty() : why.find(refusal) != std::string::npos;
  failures += !good;
  fmt::print("{} {} {}: ({},{},{},{}) to {} {}{}{}{}: {}\n", good ? "ok" : "FAILED", on.name,
             backward ? "backward" : "forward", of.batch, of.heads, of.queries, of.width, of.keys,
             of.fp16 ? "fp16" : "bf16", of.causal ? ", causal" : "", of.dropout > 0 ? ", dropout" : "",
             of.any_order ? ", any order" : "", why.empty() ? "a plan" : why.substr(0, 160));
}

}  // namespace

/// argv[1]: the toolkit's stub of libcuda, for machines without a driver.
int main(int count, char** arguments) {
  if (!can_plan(count < 2 ? nullptr : arguments[1])) return 77;
  const attention_case gpt{16, 4, 64, 64, 32, false, true, 0.177, 0}, odd{2, 3, 50, 77, 64, true, false, 0.125, 0},
      large{2, 16, 4096, 4096, 64, false, true, 0.125, 0}, bert{16, 12, 384, 384, 64, false, false, 0.125, 0};
  for (const attention_case& one : {gpt, odd, large, bert}) {
    for (const double dropout : {0.0, 0.1}) {
      attention_case of = one;
      of.dropout = dropout;
      for (const gpu& on : {ampere, ada, hopper, blackwell}) {
        of.any_order = false;
        expect(on, of, false, "");
        expect(on, of, true, on.version == 1000 && dropout > 0 ? "not supported on blackwell" : "");
        of.any_order = true;
        expect(on, of, true, "");
      }
    }
  }
  expect(turing, gpt, false, "requires SM80");
  attention_case narrow = gpt;
  narrow.width = 12;
  expect(hopper, narrow, false, "multiple of 8");
  return failures ? 1 : 0;
}
