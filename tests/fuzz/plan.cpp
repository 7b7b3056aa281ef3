// SPDX-License-Identifier: Apache-2.0
// Plan files for a fixed model of three operators.
#include <comp/files/plan_file.hpp>

#include "fuzz.hpp"

namespace {
const comp::op_graph model{
    {{.name = "stem", .kind = "conv2d"}, {.name = "norm", .kind = "batch_norm"}, {.name = "head", .kind = "softmax"}}};
const comp::hardware here{.name = "cpu", .kind = comp::device_kind::cpu, .isa = {"avx2"}, .threads = 2};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  fuzz::read_or_refuse([&] {
    const auto read = comp::read_plan(text, model, &here, "f");
    fuzz::must(read.plan.size() == model.size());
    const std::string again = comp::detail::plan_text(comp::detail::listing_of(read.plan, model, here));
    const auto back = comp::read_plan(again, model, &here, "f");
    fuzz::must(back.plan == read.plan && back.warnings.empty());
  });
  return 0;
}
