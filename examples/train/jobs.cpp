// SPDX-License-Identifier: Apache-2.0
#include "jobs.hpp"

#include <algorithm>
#include <cmath>
#include <comp/files/plan_file.hpp>
#include <examples/data/cifar.hpp>
#include <examples/data/digits.hpp>
#include <examples/data/idx.hpp>
#include <examples/data/made_up_graph.hpp>
#include <examples/data/read_graph.hpp>
#include <examples/data/read_squad.hpp>
#include <examples/data/squad_spans.hpp>
#include <examples/data/text.hpp>
#include <examples/models/native/datasets.hpp>
#include <examples/models/native/graph_data.hpp>
#include <examples/models/native/models.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "outputs.hpp"
#include "span_data.hpp"

namespace train {

namespace {

native::optimizer optimizer_for(const options& chosen) {
  const auto rate = [&](double usual) { return chosen.learning_rate > 0 ? chosen.learning_rate : usual; };
  if (chosen.model == "transformer") return native::adamw(rate(1e-3));
  if (chosen.model == "bert") return native::adamw(rate(1e-4));
  if (chosen.model == "gan") return native::adam_options{.learning_rate = rate(2e-4), .beta1 = 0.5};
  if (chosen.model == "vgg16") return native::sgd(rate(0.02), 0.9, 5e-4);
  if (chosen.model == "gcn") return native::adam(rate(0.01), 5e-4);
  if (chosen.model == "gat") return native::adam(rate(0.005), 5e-4);
  if (chosen.model == "simplenet") return native::sgd(rate(1e-4));
  return native::sgd(rate(0.01), 0.9);
}

native::training settings_for(const options& chosen) {
  auto scaling = comp::scaling::preset(chosen.scaling);
  scaling.micro_batches = static_cast<std::int64_t>(chosen.accumulate);
  return {.optimizer = optimizer_for(chosen),
          .clip_norm = chosen.model == "transformer" || chosen.model == "bert" ? 1.0 : 0.0,
          .seed = chosen.seed,
          .scaling = scaling,
          .moments = keeps_moments(chosen)};
}

/// Returns whether attention is one operator: on cuda, unless parts are asked for. What cuDNN lacks runs in parts
/// there.
bool one_attention(const options& chosen) {
  return chosen.attention == "one" || (chosen.attention == "auto" && chosen.backend == "cuda");
}

std::int64_t batch_for(const options& chosen, std::int64_t usual) {
  return chosen.batch > 0 ? static_cast<std::int64_t>(chosen.batch) : usual;
}

/// A text for the transformer. The last tenth is for validation; --limit counts windows of the rest.
job text_job(const options& chosen) {
  const auto text = data_sets::read_text(chosen.data);
  const data_sets::vocabulary letters{text};
  std::vector<std::int32_t> tokens = letters.encode(text);
  const auto cut = static_cast<std::ptrdiff_t>(tokens.size() - tokens.size() / 10);
  std::vector<std::int32_t> held_out(tokens.begin() + cut, tokens.end());
  tokens.resize(static_cast<std::size_t>(cut));
  const auto window = static_cast<std::size_t>(chosen.context);
  if (chosen.limit > 0) {
    tokens.resize(std::min(tokens.size(), chosen.limit * window + 1));
    held_out.resize(std::min(held_out.size(), std::max<std::size_t>(chosen.limit / 10, 16) * window + 1));
  }
  const native_models::gpt_options shape{.batch = batch_for(chosen, 16),
                                         .vocabulary = static_cast<std::int64_t>(letters.size()),
                                         .context = chosen.context,
                                         .layers = chosen.layers,
                                         .width = chosen.width,
                                         .heads = chosen.heads,
                                         .one_attention = one_attention(chosen)};
  std::string description =
      fmt::format("transformer of {} layers, width {}, on {} characters of {} ({} letters)", chosen.layers,
                  chosen.width, tokens.size(), chosen.data.filename().string(), letters.size());
  return {native_models::gpt(shape), native_models::token_data{std::move(tokens), chosen.context},
          native_models::token_data{std::move(held_out), chosen.context}, settings_for(chosen), std::move(description)};
}

/// A graph for GCN and GAT: the one that --data names, else a made-up one. A step reads the whole graph.
job node_job(const options& chosen) {
  const bool made_up = chosen.data.empty();
  const auto graph = made_up ? data_sets::made_up_graph(chosen.seed) : data_sets::read_graph(chosen.data);
  auto set = native_models::graph_data(graph, chosen.seed);
  native::model model =
      chosen.model == "gcn"
          ? native_models::gcn({.features = set.features, .adjacency = set.adjacency, .classes = graph.classes})
          : native_models::gat({.features = set.features, .edges = set.adjacency, .classes = graph.classes});
  std::string description = fmt::format("{} on {} nodes and {} edges of {} ({} classes)", chosen.model, graph.nodes,
                                        set.adjacency->column.size(),
                                        made_up ? "a made-up graph" : chosen.data.filename().string(), graph.classes);
  return {std::move(model), std::move(set.train), std::move(set.validation), settings_for(chosen),
          std::move(description)};
}

job simple_net_job(const options& chosen) {
  const native_models::simple_net_options shape{.batch = batch_for(chosen, 256)};
  const std::int64_t examples = chosen.limit > 0 ? static_cast<std::int64_t>(chosen.limit) : 10 * shape.batch;
  std::string description = fmt::format("simplenet of {} layers, width {}, on {} rows of random numbers", shape.layers,
                                        shape.width, examples);
  return {native_models::simple_net(shape), native_models::random_examples{shape.width, examples, chosen.seed},
          native_models::random_examples{shape.width, shape.batch, chosen.seed + 1}, settings_for(chosen),
          std::move(description)};
}

/// SQuAD for BERT, with the windows, sizes and settings of LibTorch's job (models/libtorch/bert_job.hpp), so that the
/// two backends can be compared.
job bert_job(const options& chosen) {
  using namespace data_sets;
  using native_models::bert_options;
  bert_options shape = chosen.size == "base"   ? native_models::bert_base()
                       : chosen.size == "tiny" ? native_models::bert_tiny()
                                               : native_models::bert_small();
  auto [train, held_out, pieces] = read_squad_folder(chosen.data);
  if (chosen.limit > 0) held_out.questions.resize(std::min(held_out.questions.size(), chosen.limit));
  const auto length = static_cast<std::size_t>(shape.length);
  const window_options cut{.length = length, .stride = length / 2, .question = length / 6};
  auto first = windows(train, pieces, cut);
  if (chosen.limit > 0) first.resize(std::min(first.size(), chosen.limit));
  const auto to_train = std::make_shared<const span_data::windows>(std::move(first));
  const auto to_judge = std::make_shared<const span_data::windows>(windows(held_out, pieces, cut));
  shape.batch = batch_for(chosen, shape.batch);
  shape.vocabulary = pieces.size();
  shape.one_attention = one_attention(chosen);
  native::training settings = settings_for(chosen);
  settings.score = {.reads = {"spans"},
                    .score = [to_judge, questions = std::move(held_out)](std::span<const std::vector<float>> logits) {
                      return span_f1(questions, *to_judge, logits[0]);
                    }};
  return {native_models::bert(shape), span_data{to_train, shape.length, pieces.pad},
          span_data{to_judge, shape.length, pieces.pad}, std::move(settings),
          fmt::format("bert of {} layers, width {}, on {} windows of {} tokens of {}", shape.layers, shape.width,
                      to_train->size(), shape.length, chosen.data.filename().string())};
}

/// Reads images in any standard layout, which is recognised by the names of files and folders.
data_sets::images_split read_images(const std::filesystem::path& path) {
  using namespace data_sets;
  const std::string name = path.filename().string();
  if (name.ends_with(".csv.gz") || name.ends_with(".csv")) return split(read_digits(path), 0.1);
  if (is_mnist(path)) return {read_mnist(path, part::train), read_mnist(path, part::test)};
  if (std::filesystem::is_directory(path)) return {read_cifar(path, part::train), read_cifar(path, part::test)};
  return split(read_cifar(path, part::train), 0.1);  // the last tenth of a single file is for validation
}

void keep_first(data_sets::images& all, std::size_t count) {
  if (count == 0 || count >= all.labels.size()) return;
  all.count = static_cast<std::int64_t>(count);
  all.labels.resize(count);
  all.pixels.resize(count * static_cast<std::size_t>(all.pixels_each()));
}

/// Returns: mean and deviation of each channel of the training images, with pixels in [0,1].
std::pair<std::vector<float>, std::vector<float>> channel_moments(const data_sets::images& all) {
  const auto channels = static_cast<std::size_t>(all.channels);
  const auto plane = static_cast<std::size_t>(all.height * all.width);
  std::vector<double> sums(channels), squares(channels);
  for (std::size_t at = 0; at < all.pixels.size(); ++at) {
    const double value = all.pixels[at] / 255.0;
    sums[at / plane % channels] += value;
    squares[at / plane % channels] += value * value;
  }
  const double count = static_cast<double>(all.pixels.size()) / static_cast<double>(channels);
  std::vector<float> means, deviations;
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = sums[c] / count;
    means.push_back(static_cast<float>(mean));
    deviations.push_back(static_cast<float>(std::sqrt(std::max(squares[c] / count - mean * mean, 1e-6))));
  }
  return {std::move(means), std::move(deviations)};
}

native::model image_model(const options& chosen, const data_sets::images& of) {
  using namespace native_models;
  const std::int64_t classes = of.classes, batch = batch_for(chosen, 64);
  comp::require<comp::error>(chosen.size != "convolutional",
                             "--size {} with backend {} (it has the connected GAN): use --backend libtorch",
                             chosen.size, chosen.backend);
  if (chosen.model == "mlp") {
    return mlp({.batch = batch, .input = {of.channels, of.height, of.width}, .hidden = {512, 512}, .outputs = classes});
  }
  if (chosen.model == "gan") return gan({.batch = batch_for(chosen, 156)});
  if (chosen.model == "lenet5") return lenet5({.batch = batch, .classes = classes});
  if (chosen.model == "alexnet") return alexnet({.batch = batch, .classes = classes});
  return vgg16({.batch = batch, .classes = classes, .batch_norm = chosen.size != "plain"});
}

job image_job(const options& chosen) {
  auto [train, test] = read_images(chosen.data);
  keep_first(train, chosen.limit);
  keep_first(test, chosen.limit);
  native::model model = image_model(chosen, train);
  const native::shape image{train.channels, train.height, train.width};
  const native::shape wanted{model.input_shape.begin() + 1, model.input_shape.end()};
  comp::require<comp::error>(image == wanted,
                             "{} has images of {} ({} reads {}): choose another model, mlp reads any size",
                             chosen.data.string(), native::text(image), chosen.model, native::text(wanted));
  std::string description = fmt::format("{} on {} images of {} ({} classes)", model.name, train.count,
                                        chosen.data.filename().string(), train.classes);
  auto [mean, deviation] = channel_moments(train);
  native::training settings = settings_for(chosen);
  if (chosen.model == "gan") {  // its generator ends in tanh, so real images must be in [-1,1] too
    mean = deviation = {0.5F};
    settings.score = native_models::undecided();
  }
  return {std::move(model),
          native_models::image_data{image, std::move(train.pixels), std::move(train.labels), mean, deviation},
          native_models::image_data{image, std::move(test.pixels), std::move(test.labels), mean, deviation},
          std::move(settings), std::move(description)};
}

}  // namespace

job load_job(const options& chosen) {
  job task = naming("--data", [&] {
    if (chosen.model == "transformer") return text_job(chosen);
    if (chosen.model == "bert") return bert_job(chosen);
    if (chosen.model == "gcn" || chosen.model == "gat") return node_job(chosen);
    if (chosen.model == "simplenet") return simple_net_job(chosen);
    return image_job(chosen);
  });
  task.model.separate_products = separates_products(chosen);
  return task;
}

}  // namespace train
