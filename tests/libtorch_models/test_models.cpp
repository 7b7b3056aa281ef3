// SPDX-License-Identifier: Apache-2.0
// The models and jobs of the examples, without comp's backend: they compute what their papers say, they learn, and they
// read the published layouts of their data.
#include <libtorch/jobs.hpp>

#include "data/archives.hpp"  // last: LibTorch has a CHECK of its own, which ends the program

namespace {
using namespace torch_models;

double distance(const torch::Tensor& a, const torch::Tensor& b) { return (a - b).abs().max().item<double>(); }

/// Ten nodes, each with an edge to itself; no edge twice.
edge_list small_graph() {
  const torch::Tensor wanted = (torch::rand({10, 10}) < 0.3) | torch::eye(10).to(torch::kBool);
  const torch::Tensor edges = wanted.nonzero().t();
  return {edges[1].contiguous(), edges[0].contiguous()};
}

TEST_CASE("AlexNet's ImageNet form has the published number of parameters") {
  std::int64_t count = 0;
  for (const torch::Tensor& p : alexnet(image_options{.side = 224, .classes = 1000})->parameters()) count += p.numel();
  CHECK(count == 61'100'840);
}

TEST_CASE("GCN along edges computes what it does with a dense adjacency matrix") {
  torch::manual_seed(1);
  const edge_list edges = small_graph();
  const torch::Tensor adjacency = torch_models::detail::normalized_adjacency(edges, 10), x = torch::rand({10, 6});
  gcn net(gcn_options{.features = 6, .hidden = 4, .classes = 3});
  net->eval();
  const torch::Tensor dense = adjacency.to_dense();
  const torch::Tensor hidden = torch::relu(dense.mm(x.mm(net->layers[0]->weight)) + net->layers[0]->bias);
  const torch::Tensor expected = dense.mm(hidden.mm(net->layers[1]->weight)) + net->layers[1]->bias;
  CHECK(distance(net->forward(x, adjacency), expected) < 1e-5);
  CHECK(distance(net->forward(x.to_sparse(), adjacency), expected) < 1e-5);
  CHECK(dense[0][0].item<float>() == doctest::Approx(1 / edges.target.eq(0).sum().item<double>()));
}

TEST_CASE("GAT along edges computes what a masked softmax over all pairs of nodes does") {
  torch::manual_seed(2);
  const edge_list edges = small_graph();
  const torch::Tensor x = torch::rand({10, 6});
  graph_attention layer(6, 5, 3, true, 0.6);
  layer->eval();
  const torch::Tensor h = x.mm(layer->weight).view({10, 3, 5});
  const torch::Tensor from = (h * layer->as_source).sum(-1), to = (h * layer->as_target).sum(-1);
  torch::Tensor scores = torch::leaky_relu(to.unsqueeze(1) + from.unsqueeze(0), 0.2);  // (target, source, head)
  torch::Tensor missing = torch::ones({10, 10}, torch::kBool);
  missing.index_put_({edges.target, edges.source}, torch::zeros({edges.target.size(0)}, torch::kBool));
  const torch::Tensor share = scores.masked_fill(missing.unsqueeze(-1), -INFINITY).softmax(1);
  const torch::Tensor expected = torch::einsum("tsh,shf->thf", {share, h}).flatten(1) + layer->bias;
  CHECK(distance(layer->forward(x, edges), expected) < 1e-5);
  CHECK(distance(layer->forward(x.to_sparse(), edges), expected) < 1e-5);
}

TEST_CASE("BERT's answer does not depend on padding, and never points at it") {
  torch::manual_seed(3);
  bert_for_spans net(bert_options{.layers = 2, .width = 32, .heads = 2, .vocabulary = 50, .positions = 16});
  net->eval();
  const torch::Tensor tokens = torch::randint(50, {2, 12}), segments = torch::zeros({2, 12}, torch::kLong);
  torch::Tensor text = torch::ones({2, 12}, torch::kBool);
  text.slice(1, 8).fill_(false);
  const torch::Tensor padded = net->forward(tokens, segments, text);
  const torch::Tensor bare = net->forward(tokens.slice(1, 0, 8), segments.slice(1, 0, 8), text.slice(1, 0, 8));
  CHECK(distance(padded.slice(2, 0, 8), bare) < 1e-4);
  CHECK(padded.softmax(2).slice(2, 8).max().item<double>() == 0);
}

TEST_CASE("an answer lies in the text, ends where it begins or later, and is compared with none") {
  torch::Tensor logits = torch::zeros({1, 2, 8});
  logits[0][0][1] = 9;  // in the question: not allowed
  logits[0][0][5] = 3;
  logits[0][1][4] = 5;  // before the beginning, unless it begins at 3 or 4
  logits[0][1][6] = 4;
  logits[0][0][0] = 1;
  const torch::Tensor segments = torch::arange(8).ge(3).to(torch::kLong).unsqueeze(0);
  const torch::Tensor span = torch_models::detail::best_spans(logits, segments, torch::ones({1, 8}, torch::kBool));
  CHECK(span[0][0].item<double>() == 5);
  CHECK(span[0][1].item<double>() == 6);
  CHECK(span[0][2].item<double>() == 6);  // 3 + 4 against 1 + 0
}

TEST_CASE("BERT's weights are those of a file with Hugging Face's names, but for the head's") {
  const test_data::folder in;
  std::vector<std::pair<std::string, std::string>> names{
      {"embeddings.token.weight", "embeddings.word_embeddings.weight"},
      {"embeddings.position.weight", "embeddings.position_embeddings.weight"},
      {"embeddings.segment.weight", "embeddings.token_type_embeddings.weight"},
      {"embeddings.norm.weight", "embeddings.LayerNorm.gamma"},
      {"embeddings.norm.bias", "embeddings.LayerNorm.beta"}};
  for (const std::string layer : {"0", "1"}) {
    for (const std::string kind : {".weight", ".bias"}) {
      const std::string ours = layer == "0" ? "block1." : "block2.", theirs = "encoder.layer." + layer + ".";
      for (const std::string part : {"query", "key", "value"})
        names.emplace_back(ours + "attention." + part + kind, theirs + "attention.self." + part + kind);
      names.emplace_back(ours + "attention.output" + kind, theirs + "attention.output.dense" + kind);
      names.emplace_back(ours + "attention_norm" + kind, theirs + "attention.output.LayerNorm" + kind);
      names.emplace_back(ours + "up" + kind, theirs + "intermediate.dense" + kind);
      names.emplace_back(ours + "down" + kind, theirs + "output.dense" + kind);
      names.emplace_back(ours + "norm" + kind, theirs + "output.LayerNorm" + kind);
    }
  }
  const bert_options shape{.layers = 2, .width = 4, .heads = 2, .vocabulary = 7, .positions = 5};
  bert_for_spans net(shape);
  const auto parameters = net->named_parameters();
  REQUIRE(parameters.size() == names.size() + 2);
  const torch::Tensor head = parameters["head.weight"].detach().clone();
  std::vector<comp::named_tensor> tensors{{"bert.pooler.dense.bias", {1}, {1}}};
  for (const auto& [ours, theirs] : names) {
    const torch::Tensor& p = parameters[ours];
    std::vector<float> values(static_cast<std::size_t>(p.numel()));
    for (float& value : values)
      value = static_cast<float>(tensors.size()) + 0.125F * static_cast<float>(&value - values.data());
    tensors.push_back({"bert." + theirs, p.sizes().vec(), values});
  }
  const std::string file = in.path() / "w.safetensors";
  const auto read = [&](const bert_options& o) {
    comp::write_safetensors(file, tensors);
    bert_for_spans other(o);
    return message_of<comp::file_error>([&] { read_bert_weights(other, file); });
  };
  comp::write_safetensors(file, tensors);
  read_bert_weights(net, file);
  for (std::size_t i = 0; i < names.size(); ++i) {
    CAPTURE(names[i].first);
    CHECK(parameters[names[i].first].flatten().equal(torch::tensor(torch::ArrayRef<float>(tensors[i + 1].values))));
  }
  CHECK(parameters["head.weight"].equal(head));
  for (comp::named_tensor& t : tensors) t.name.erase(0, 5);  // without "bert."
  CHECK(read(shape).empty());
  CHECK(read({.layers = 1, .width = 4, .heads = 2, .vocabulary = 7, .positions = 5}) ==
        "\"" + file + "\" has more layers than this bert (which has 1): give weights of this --size");
  CHECK(read({.layers = 2, .width = 4, .heads = 2, .vocabulary = 9, .positions = 5}) ==
        "\"" + file +
            "\": tensor embeddings.word_embeddings.weight is (7,4) ((9,4) is expected): give weights of this "
            "--size, and the vocabulary that they were trained with");
  tensors.pop_back();
  CHECK(read(shape) == "\"" + file +
                           "\" has no tensor encoder.layer.1.output.LayerNorm.bias ((4) is expected): give a file "
                           "of Hugging Face's BERT with as many layers");
}

/// The job's first loss, its loss after training on the same rows over and over, and its score on them.
struct learnt {
  double first = 0, last = 0, score = 0;
};
learnt learn(job task, int steps) {
  const columns rows = pick(task, task.train, torch::arange(task.examples()));
  task.validation = task.train;
  learnt found{.first = train_step(task, rows)[0]};
  for (int i = 1; i < steps; ++i) found.last = train_step(task, rows)[0];
  found.score = score(task);
  return found;
}

TEST_CASE("each network learns a few examples by heart") {
  const learnt alex = learn(make_job("alexnet", {.batch = 4, .limit = 4, .learning_rate = 0.02}), 40);
  CHECK(alex.last < alex.first);
  const learnt vgg = learn(make_job("vgg16", {.batch = 4, .limit = 4}), 12);
  CHECK(vgg.last < 0.5 * vgg.first);
  const learnt plain = learn(make_job("vgg16", {.size = "plain", .batch = 4, .limit = 4}), 12);
  CHECK(plain.last < plain.first);
  const learnt bert = learn(make_job("bert", {.size = "tiny", .batch = 8, .limit = 8, .learning_rate = 2e-3}), 60);
  CHECK(bert.last < 0.3 * bert.first);
  CHECK(bert.score > 0.8);
  const learnt linear = learn(make_job("simplenet", {.batch = 8, .limit = 8, .width = 32, .learning_rate = 0.5}), 40);
  CHECK(linear.last < 0.5 * linear.first);
}

TEST_CASE("GCN and GAT find the classes of nodes that they were not trained on") {
  for (const char* name : {"gcn", "gat"}) {
    job task = make_job(name, {.steps_per_epoch = 25});
    CHECK(score(task) < 0.4);
    train_epoch(task);
    CHECK_MESSAGE(score(task) > 0.8, name);
  }
}

TEST_CASE("both networks of the GAN move, and each by its own loss alone") {
  for (const char* size : {"connected", "convolutional"}) {
    job task = make_job("gan", {.size = size, .batch = 8, .limit = 16});
    REQUIRE(task.phases.size() == 2);
    const columns rows = pick(task, task.train, torch::arange(8));
    CHECK(rows[0].min().item<float>() >= -1);
    CHECK(rows[0].max().item<float>() <= 1);
    std::vector<torch::Tensor> before;
    for (const auto& [name, module] : task.modules) before.push_back(module->parameters().front().detach().clone());
    torch::manual_seed(4);
    const auto losses = train_step(task, rows);
    CHECK(losses.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) CHECK(distance(task.modules[i].second->parameters().front(), before[i]) > 0);
    task.modules[0].second->zero_grad();
    task.phases[1].loss(rows).backward();  // made images are constants to the discriminator
    for (const torch::Tensor& p : task.modules[0].second->parameters()) CHECK_FALSE(p.grad().defined());
    const double found = score(task);
    CHECK(found >= 0);
    CHECK(found <= 1);
  }
}

TEST_CASE("the same seed makes the same training") {
  const auto losses = [](std::uint64_t seed) {
    job task = make_job("gan", {.batch = 8, .limit = 16, .seed = seed});
    return train_epoch(task);
  };
  CHECK(losses(3) == losses(3));
  CHECK(losses(3) != losses(4));
}

TEST_CASE("jobs read the published layouts of their data") {
  const test_data::folder in;
  std::string records;
  for (int i = 0; i < 40; ++i)
    records += std::string{static_cast<char>(i % 20), static_cast<char>(i)} + std::string(3072, static_cast<char>(i));
  in.write("cifar/train.bin", records);
  in.write("cifar/test.bin", records.substr(0, 3074 * 10));
  const job cifar = make_job("alexnet", {.data = in.path() / "cifar", .batch = 4});
  CHECK(cifar.examples() == 40);
  CHECK(cifar.validation[0].size(0) == 10);
  const columns rows = pick(cifar, cifar.train, torch::arange(40));
  CHECK(std::abs(rows[0].mean().item<double>()) < 1e-4);

  for (const char* file : {"train/n1/a.JPEG", "train/n2/b.JPEG", "val/n2/c.JPEG"}) {
    in.write(std::string{"pictures/"} + file, test_data::jpeg(50, 70, {200, 100, 50}));
  }
  const job pictures = make_job("vgg16", {.data = in.path() / "pictures", .batch = 2, .side = 32});
  CHECK(pick(pictures, pictures.train, torch::arange(2))[0].sizes().vec() == std::vector<std::int64_t>{2, 3, 32, 32});
  CHECK(pictures.validation[1].item<std::int64_t>() == 1);
}

TEST_CASE("jobs refuse what they cannot train on, in a sentence") {
  CHECK(message_of<comp::error>([] { make_job("resnet", {}); }) ==
        "\"resnet\" is no job (there are alexnet, vgg16, gan, gcn, gat, bert, simplenet): use one of those");
  const test_data::folder in;
  in.write("train.bin", std::string(3074, '\1'));
  in.write("test.bin", std::string(3074, '\1'));
  CHECK(message_of<comp::error>([&] {
          make_job("gan", {.data = in.path()});
        }).starts_with("images of 3x32x32 for the GAN"));
  CHECK(message_of<comp::error>([] {
          make_job("vgg16", {.batch = 2, .limit = 4, .side = 40});
        }).starts_with("images of 3x40x40 for vgg16"));
}
}  // namespace
