// SPDX-License-Identifier: Apache-2.0
// A training step of each native model: FP32, TF32, the plan of PyTorch's rules for CUDA, and the found one; step by
// step and captured, with peak memory. Each way has a device of its own; all of a model take turns, a round being a few
// plain steps, an epoch of plain and one of captured ones of each. A model that does not fit the memory is halved until
// it does. Captured steps are compared with those of the plain epoch, in which a step's end is hidden, too.
// A plain step is timed twice: with its batch on the GPU already, and from when the batch before it had its loss, which
// adds what of making and copying the batch the GPU did not hide. Both read the loss. Images are bytes, but for one
// way.
//   bench_cuda_steps [--small] [--model=NAME] [file.json]    --models: only their names
#include <comp/autocast/rule_plan.hpp>
#include <comp/comp.hpp>
#include <comp_cuda/device.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/datasets.hpp>
#include <examples/models/native/models.hpp>
#include <functional>
#include <memory>
#include <utility>

#include "measure.hpp"

namespace comp::cuda::bench {
namespace {

using namespace comp::native;
using native_models::image_data;
using native_models::token_data;
using cuda_trainer = trainer<cuda::device>;

constexpr std::int64_t epoch = 12;  // batches
constexpr std::ptrdiff_t warm = 4;  // of an epoch, until its steps are captured ones

struct task {
  std::string shape;
  native::model model;
  data_source data;
  native::optimizer optimizer;
};

/// Images as a reader has them that hands out numbers.
class fp32_images {
 public:
  explicit fp32_images(data_source bytes) : bytes_{std::move(bytes)} {}
  std::size_t size() const { return bytes_.size(); }
  example_layout layout() const {
    example_layout fp32_layout = bytes_.layout();
    fp32_layout.of_bytes.clear();
    return fp32_layout;
  }
  void write(std::size_t i, const example_spans& to) const {
    const std::vector<float> table = bytes_.layout().of_bytes;
    std::vector<std::uint8_t> read(to.values.size());
    bytes_.write(i, {.bytes = read, .labels = to.labels, .draw = to.draw});
    const std::size_t plane = read.size() / (table.size() / 256);
    for (std::size_t k = 0; k < read.size(); ++k) to.values[k] = table[256 * (k / plane) + read[k]];
  }
  std::string signature() const { return bytes_.signature() + " in FP32"; }

 private:
  data_source bytes_;
};

data_source images(std::int64_t batch, const native::shape& image, std::uint64_t classes) {
  random_stream draws{1, 1};
  const auto count = static_cast<std::size_t>(epoch * batch);
  std::vector<std::uint8_t> pixels(count * static_cast<std::size_t>(elements(image)));
  std::vector<std::int32_t> labels(count);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(draws.below(256));
  for (auto& label : labels) label = static_cast<std::int32_t>(draws.below(classes));
  return image_data{image, std::move(pixels), std::move(labels), {0.5F}, {0.25F}};
}
data_source tokens(std::int64_t batch, std::int64_t context, std::int64_t vocabulary) {
  random_stream draws{1, 2};
  std::vector<std::int32_t> all(static_cast<std::size_t>(epoch * batch * context + 1));
  for (auto& token : all) token = static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(vocabulary)));
  return token_data{std::move(all), context};
}

/// How large a model is: its batch is divided if it did not fit the memory; everything is tiny if nothing is measured.
struct scale {
  std::int64_t divisor = 1;
  bool tiny = false;
  std::int64_t batch(std::int64_t n) const { return tiny ? 4 : std::max<std::int64_t>(n / divisor, 1); }
  std::int64_t wide(std::int64_t n) const { return tiny ? 16 : n; }
  std::int64_t deep(std::int64_t n) const { return tiny ? 1 : n; }
};
task mlp(const scale& of) {
  const std::int64_t batch = of.batch(4096), width = of.wide(4096);
  return {fmt::format("784, 3 x {}, 10, batch {}", width, batch),
          native_models::mlp({.batch = batch, .input = {1, 28, 28}, .hidden = {width, width, width}}),
          images(batch, {1, 28, 28}, 10), sgd(0.01, 0.9)};
}
task lenet5(const scale& of) {
  const std::int64_t batch = of.batch(1024);
  return {fmt::format("28 x 28, batch {}", batch), native_models::lenet5({.batch = batch}),
          images(batch, {1, 28, 28}, 10), sgd(0.01, 0.9)};
}
task alexnet(const scale& of) {
  const std::int64_t batch = of.batch(1024);
  return {fmt::format("32 x 32, 100 classes, batch {}", batch),
          native_models::alexnet({.batch = batch, .classes = 100}), images(batch, {3, 32, 32}, 100), sgd(0.01, 0.9)};
}
task vgg16(const scale& of) {
  const std::int64_t batch = of.batch(64);
  return {fmt::format("224 x 224, batch norm, 1000 classes, batch {}", batch),
          native_models::vgg16({.form = native_models::image_form::imagenet, .batch = batch, .classes = 1000}),
          images(batch, {3, 224, 224}, 1000), sgd(0.01, 0.9, 5e-4)};
}
task transformer(const scale& of) {
  const std::int64_t batch = of.batch(16), context = of.wide(512), vocabulary = of.wide(50304);
  const std::int64_t layers = of.deep(12), width = of.wide(768), heads = of.deep(12);
  return {fmt::format("{} layers, width {}, {} tokens of {}, batch {}", layers, width, context, vocabulary, batch),
          native_models::gpt({.batch = batch,
                              .vocabulary = vocabulary,
                              .context = context,
                              .layers = layers,
                              .width = width,
                              .heads = heads,
                              .one_attention = true}),
          tokens(batch, context, vocabulary), adamw(1e-4)};
}

/// One plan of one model on a device of its own, trained by plain steps and, from the end of the first round on, by
/// captured ones besides.
struct way {
  std::string name;
  std::unique_ptr<cuda::device> device = std::make_unique<cuda::device>();
  std::function<std::unique_ptr<cuda_trainer>(capture_mode)> make = {};
  std::unique_ptr<cuda_trainer> trained = {}, capturing = {};
  std::vector<double> plain = {}, with_upload = {};             // seconds of single steps, and with what batches take
  std::vector<double> in_epochs = {}, captured = {};            // of steps in epochs
  std::vector<double> plain_rounds = {}, captured_rounds = {};  // their medians, for each round
  std::int64_t peak_bytes = 0;                                  // of plain steps

  way(std::string named, const task& t, const comp::plan& p) : way{std::move(named), t, p, t.data} {}
  way(std::string named, const task& t, const comp::plan& p, const data_source& data) : name{std::move(named)} {
    make = [on = device.get(), t, p, data](capture_mode captured) {
      auto new_trainer = std::make_unique<cuda_trainer>(*on, t.model, data, data,
                                                        training{.optimizer = t.optimizer, .captured = captured});
      if (!p.empty()) new_trainer->set_precision(p);
      return new_trainer;
    };
    trained = make(capture_mode::off);
  }
  void run_epoch(cuda_trainer& of, std::vector<double>& steps, std::vector<double>& rounds) const {
    const sample ran = of.run_epoch();
    require<error>(ran.ok(), "{} ended with: {}", name, ran.message);
    const std::vector<double> counted(ran.batch_seconds.begin() + warm, ran.batch_seconds.end());
    steps.insert(steps.end(), counted.begin(), counted.end());
    rounds.push_back(median(counted));
  }
  void round() {
    for (int i = 0; i < 4; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const sample one = trained->run_batch();
      const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
      require<error>(one.ok(), "{} ended with: {}", name, one.message);
      if (capturing == nullptr) peak_bytes = std::max(peak_bytes, one.peak_bytes);
      if (i == 0) continue;  // it waits for its batch
      plain.push_back(one.seconds);
      with_upload.push_back(whole.count());
    }
    run_epoch(*trained, in_epochs, plain_rounds);
    if (capturing == nullptr) capturing = make(capture_mode::on);
    if (capturing->capture_refused().empty()) run_epoch(*capturing, captured, captured_rounds);
  }
  void forget_times() {
    for (auto* times : {&plain, &with_upload, &in_epochs, &captured, &plain_rounds, &captured_rounds}) times->clear();
  }
};

comp::plan everywhere(const op_graph& graph, precision p) {
  comp::plan all{graph.size()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (graph[i].choosable) all[i] = p;
  }
  return all;
}
precision low_of(const capability& card) { return card.has(precision::bf16) ? precision::bf16 : precision::fp16; }

comp::outcome search(const task& t, precision low) {
  const way searched{"search", t, comp::plan{}};
  search_settings settings;
  settings.precisions = {low};
  const policy::pytorch rules{.list = policy::pytorch_list::cuda, .low = low};
  return two_stage{rules, strategy::guided{}, strategy::greedy{}, settings}.run(*searched.trained);
}

nlohmann::json row_of(const way& w, const way& fp32, const way& rules) {
  const auto over = compare_paired(fp32.plain, w.plain);
  nlohmann::json row{{"name", w.name},
                     {"seconds", median(w.plain)},
                     {"quartiles", quartiles(w.plain)},
                     {"with_upload_seconds", median(w.with_upload)},
                     {"in_epochs_seconds", median(w.in_epochs)},
                     {"over_fp32", over.ratio},
                     {"over_fp32_bounds", {over.bounds.low, over.bounds.high}},
                     {"plan", w.trained->network().precisions().str()},
                     {"peak_bytes", w.peak_bytes}};
  if (w.captured.empty()) {
    row["capture_refused"] = w.capturing->capture_refused();
  } else {
    const auto gain = compare_paired(w.plain_rounds, w.captured_rounds);
    row["captured_seconds"] = median(w.captured);
    row["captured_quartiles"] = quartiles(w.captured);
    row["captured_over_plain"] = gain.ratio;
    row["captured_over_plain_bounds"] = {gain.bounds.low, gain.bounds.high};
  }
  if (w.name == "found plan") {
    const auto faster = compare_paired(rules.plain, w.plain);
    row["over_rules"] = faster.ratio;
    row["over_rules_bounds"] = {faster.bounds.low, faster.bounds.high};
  }
  return row;
}

nlohmann::json measured(const task& t, int rounds) {
  const capability card = probe();
  const precision low = low_of(card);
  way{"FP32", t, {}}.round();  // throws if the model does not fit: a search would only say that nothing ran
  const comp::outcome found = search(t, low);
  std::vector<way> ways;
  ways.reserve(5);
  ways.emplace_back("FP32", t, comp::plan{});
  if (card.has(precision::tf32)) ways.emplace_back("TF32", t, everywhere(found.graph, precision::tf32));
  const policy::pytorch policy{.list = policy::pytorch_list::cuda, .low = low};
  const std::size_t rules = ways.size();
  ways.emplace_back(low == precision::bf16 ? "rules BF16" : "rules FP16", t,
                    autocast::rule_plan(policy, found.graph, low));
  ways.emplace_back("found plan", t, found.plan);
  if (!t.data.layout().of_bytes.empty()) {
    ways.emplace_back("found plan, FP32 images", t, found.plan, data_source{fp32_images{t.data}});
  }
  for (way& w : ways) {
    w.round();
    w.forget_times();
  }
  for (int i = 0; i < rounds; ++i) {
    for (way& w : ways) w.round();
  }
  nlohmann::json job{{"model", t.model.name},
                     {"shape", t.shape},
                     {"plan", found.plan.str()},
                     {"search_seconds", found.overhead_seconds()},
                     {"search_share_of_100_epochs", found.overhead_share()},
                     {"ways", nlohmann::json::array()}};
  for (const way& w : ways) job["ways"].push_back(row_of(w, ways[0], ways[rules]));
  return job;
}

/// As large as the device's memory takes.
nlohmann::json measured(task (*make)(const scale&), bool small) {
  for (std::int64_t divisor = 1;; divisor *= 2) {
    try {
      return measured(make({divisor, small}), small ? 1 : 12);
    } catch (const out_of_memory&) {
      if (divisor == 16) throw;
    }
  }
}

void print(const nlohmann::json& job) {
  for (const auto& w : job["ways"]) {
    fmt::print(
        "{:<14} {:<11} {:>9.3f} ms, {:.2f}x FP32, captured {}, peak {:.0f} MiB\n", job["model"].get<std::string>(),
        w["name"].get<std::string>(), w["seconds"].get<double>() * 1e3, w["over_fp32"].get<double>(),
        w.contains("captured_seconds") ? fmt::format("{:.3f} ms", w["captured_seconds"].get<double>() * 1e3) : "not",
        w["peak_bytes"].get<double>() / 0x1p20);
  }
}

using named_task = std::pair<const char*, task (*)(const scale&)>;
const std::vector<named_task> tiny{{"mlp", mlp}, {"transformer", transformer}},
    all_models{{"mlp", mlp}, {"lenet5", lenet5}, {"alexnet", alexnet}, {"vgg16", vgg16}, {"transformer", transformer}};

}  // namespace
}  // namespace comp::cuda::bench

int main(int argc, char** argv) {
  using namespace comp::cuda::bench;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (std::ranges::find(arguments, "--models") != arguments.end()) {
    for (const auto& [name, make] : all_models) fmt::print("{}\n", name);
    return 0;
  }
  const auto chosen = std::ranges::find_if(arguments, [](const std::string& a) { return a.starts_with("--model="); });
  return run_main(argc, argv, "bench_cuda_steps", [&](bool small, const auto& keep) {
    nlohmann::json figures;
    figures["jobs"] = nlohmann::json::array();
    failures failed;
    for (const auto& [name, make] : small ? tiny : all_models) {
      if (chosen != arguments.end() && *chosen != fmt::format("--model={}", name)) continue;
      failed.hold(name, [&, make = make] {
        figures["jobs"].push_back(measured(make, small));
        if (!small) print(figures["jobs"].back());
      });
      keep(figures);
    }
    failed.tell();
    comp::require<comp::error>(!figures["jobs"].empty(), "{} is no model here (--models names them): choose one",
                               chosen == arguments.end() ? "" : *chosen);
  });
}
