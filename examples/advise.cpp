// SPDX-License-Identifier: Apache-2.0
// Says, before anything is trained, which operators of a model cannot use the tensor cores of a device, and which
// padding would change that:
//   advise --model lenet5 --device A100 --precision fp16
//   advise --table                                         prints which precisions each device has
#include <CLI/CLI.hpp>
#include <comp/core/cpu.hpp>
#include <comp/policy/advice.hpp>
#include <comp/policy/devices.hpp>
#include <comp_native/model_graph.hpp>
#include <cstdio>
#include <examples/models/native/models.hpp>
#include <string>

namespace {

using comp::precision;

struct options {
  std::string model = "vgg16", device = "this", precision = "fp16";
  std::int64_t batch = 64, classes = 10;
  bool table = false;
};

comp::native::model model_of(const options& o) {
  if (o.model == "mlp") return native_models::mlp({.batch = o.batch, .outputs = o.classes});
  if (o.model == "lenet5") return native_models::lenet5({.batch = o.batch, .classes = o.classes});
  if (o.model == "alexnet") return native_models::alexnet({.batch = o.batch, .classes = o.classes});
  if (o.model == "vgg16") return native_models::vgg16({.batch = o.batch, .classes = o.classes});
  if (o.model == "gan") return native_models::gan({.batch = o.batch});
  if (o.model == "bert") return native_models::bert({.batch = o.batch});
  return native_models::gpt({.batch = o.batch, .vocabulary = o.classes});
}

comp::hardware device_of(const options& o) {
  return o.device == "this" ? comp::this_cpu() : comp::policy::device_named(o.device);
}

void print_table() {
  constexpr std::array columns{precision::fp16, precision::bf16, precision::tf32, precision::fp8_e4m3};
  fmt::print("{:<12} {:>10}", "device", "capability");
  for (const precision p : columns) fmt::print(" {:>8}", name(p));
  for (const auto& d : comp::policy::known_devices) {
    fmt::print("\n{:<12} {:>8}.{}", d.name, d.compute_capability / 10, d.compute_capability % 10);
    for (const precision p : columns) {
      fmt::print(" {:>8}", d.compute_capability >= comp::unit_for(p).capability ? "yes" : "-");
    }
  }
  fmt::print("\n");
}

void print_advice(const options& o) {
  const auto model = model_of(o);
  const auto graph = comp::native::graph_of(model);
  const comp::hardware machine = device_of(o);
  const auto low = comp::precision_of(std::string_view{o.precision});
  comp::require<comp::settings_error>(low.has_value(), "\"{}\" is no precision: one is {}", o.precision,
                                      comp::names_of(comp::all_precisions));
  const auto found = comp::policy::advise(graph, *low, machine);
  std::size_t excluded = 0;
  for (const auto& sizes : found.sizes) excluded += sizes.excluded;
  fmt::print(
      "{} in {} on {}: {} of {} operators are matrix products or convolutions, which move {:.0f}% of the bytes\n",
      model.name, o.precision, machine.name, found.contractions, graph.size(), 100 * found.contraction_bytes);
  for (const std::string& text : found.machine) fmt::print("  {}\n", text);
  for (const std::string& text : found.model) fmt::print("  {}\n", text);
  if (found.sizes.empty()) return;
  fmt::print("  sizes that tensor cores do not take (-): {}; that run below full rate (~): {}\n", excluded,
             found.sizes.size() - excluded);
  for (const auto& sizes : found.sizes) {
    fmt::print("    {} {:<28} {}\n", sizes.excluded ? "-" : "~", graph[sizes.op].name, sizes.text);
  }
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  CLI::App app{"Says which operators of a model cannot use a device's tensor cores, and which padding would fix it."};
  app.add_option("--model", chosen.model)
      ->check(CLI::IsMember({"mlp", "lenet5", "alexnet", "vgg16", "transformer", "gan", "bert"}))
      ->capture_default_str();
  app.add_option("--device", chosen.device, "A GPU by name (--table lists them), or this: this CPU")
      ->capture_default_str();
  app.add_option("--precision", chosen.precision, "the precision that the sizes are for: fp16, bf16, mxfp8, ...")
      ->capture_default_str();
  app.add_option("--batch", chosen.batch)->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--classes", chosen.classes, "Of the transformer its vocabulary")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_flag("--table", chosen.table, "Which precisions each device's tensor cores take, and nothing else");
  CLI11_PARSE(app, argc, argv);
  try {
    chosen.table ? print_table() : print_advice(chosen);
  } catch (const comp::error& failed) {
    fmt::print(stderr, "advise: {}\n", failed.what());
    return 1;
  }
}
