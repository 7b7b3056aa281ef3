// SPDX-License-Identifier: Apache-2.0
// The native trainer's BERT and GAN beside LibTorch's: from the same weights, data and noise the same losses, step by
// step. If this build has no host backend, there is nothing to compare.
#if __has_include(<comp_host/device.hpp>)
#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/bert.hpp>
#include <examples/models/native/datasets.hpp>
#include <examples/models/native/gan.hpp>
#include <libtorch/jobs.hpp>
#include <span>

// clang-format off
#include <doctest/doctest.h>  // last: LibTorch has a CHECK of its own, which ends the program
// clang-format on

namespace {

namespace native = comp::native;
using host_trainer = native::trainer<comp::host::device>;

constexpr std::int64_t length = 16, vocabulary = 50;

/// Windows of several lengths; the answer lies in the text.
struct some_windows {
  std::size_t size() const { return 12; }
  native::example_layout layout() const {
    return {.input = native::input_kind::tokens, .input_shape = {2, length}, .target_shape = {2}};
  }
  void write(std::size_t i, const native::example_spans& to) const {
    native::random_stream draws{i, 4};
    const auto used = static_cast<std::int64_t>(8 + i % 9);
    for (std::int64_t t = 0; t < length; ++t) {
      to.tokens[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(draws.below(vocabulary));
      to.tokens[static_cast<std::size_t>(length + t)] = t >= used ? -1 : t > 4 ? 1 : 0;
    }
    to.labels[0] = 5;
    to.labels[1] = static_cast<std::int32_t>(used - 1);
  }
  std::string signature() const { return "windows"; }
};

/// Pixels of MNIST's size.
native_models::image_data some_images() {
  native::random_stream draws{1, 5};
  std::vector<std::uint8_t> pixels(std::size_t{32} * 784);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(draws.below(256));
  return {{1, 28, 28}, std::move(pixels), std::vector<std::int32_t>(32), {0.5F}, {0.5F}};
}

torch::Tensor as_tensor(std::span<const std::int32_t> from, at::IntArrayRef shape) {
  return torch::tensor(torch::ArrayRef<std::int32_t>(from.data(), from.size()), torch::kLong).view(shape);
}

/// Gives a module the weights that the native trainer calls the same, with `prefix` in the place of `of_theirs`.
void take_weights(const torch::nn::Module& to, host_trainer& from, const std::string& of_theirs,
                  const std::string& prefix) {
  const torch::NoGradGuard no_gradients;
  const auto weights = from.weights();
  std::size_t taken = 0;
  for (const auto& parameter : to.named_parameters()) {
    const std::string name = prefix + parameter.key().substr(of_theirs.size());
    for (const auto& w : weights) {
      if (w.name != name) continue;
      parameter.value().copy_(torch::tensor(torch::ArrayRef<float>(w.values)).view(parameter.value().sizes()));
      ++taken;
    }
  }
  REQUIRE(taken == to.parameters().size());
}

/// Batch `number` of the data in its order, with the values of its bytes.
native::host_batch batch_of(const native::data_source& data, std::uint64_t number, std::int64_t size) {
  native::loader all{data, {.batch = size, .shuffle = false, .threads = 0}};
  all.seek({0, number});
  native::host_batch batch = all.next();
  if (!batch.bytes.empty()) {
    native::shape extents = all.layout().input_shape;
    extents.insert(extents.begin(), size);
    const auto values = native::values_of(batch.bytes, extents, all.layout().of_bytes);
    batch.values.assign(values.begin(), values.end());
  }
  return batch;
}

}  // namespace

TEST_CASE("the native BERT has LibTorch's losses from the same weights, step by step") {
  comp::host::device device;
  const native_models::bert_options shape{.batch = 4,
                                          .length = length,
                                          .layers = 2,
                                          .width = 32,
                                          .heads = 2,
                                          .vocabulary = vocabulary,
                                          .positions = 20,
                                          .dropout = 0};
  host_trainer ours{device,
                    native_models::bert(shape),
                    some_windows{},
                    some_windows{},
                    {.optimizer = native::adamw(1e-3), .clip_norm = 1, .shuffle = false}};
  torch_models::bert_for_spans net(torch_models::bert_options{
      .layers = 2, .width = 32, .heads = 2, .vocabulary = vocabulary, .positions = 20, .dropout = 0});
  take_weights(*net, ours, "", "");
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.01));
  for (std::size_t step = 0; step < 9; ++step) {
    CAPTURE(step);
    const auto batch = batch_of(some_windows{}, step % 3, 4);
    const auto both = as_tensor(batch.tokens, {4, 2, length});
    const auto text = both.select(1, 1).ge(0);
    const torch::Tensor logits = net->forward(both.select(1, 0), both.select(1, 1).clamp_min(0), text);
    const torch::Tensor loss = torch::cross_entropy_loss(logits.flatten(0, 1), as_tensor(batch.labels, {8}));
    optimizer.zero_grad();
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1);
    optimizer.step();
    CHECK(ours.run_batch().loss == doctest::Approx(loss.item<double>()).epsilon(2e-4));
  }
}

TEST_CASE("the native GAN has LibTorch's two losses from the same weights and noise, step by step") {
  comp::host::device device;
  constexpr std::uint64_t seed = 3;
  const auto images = some_images();
  const native::adam_options adam{.learning_rate = 2e-4, .beta1 = 0.5};
  host_trainer ours{
      device, native_models::gan({.batch = 16}), images, images, {.optimizer = adam, .seed = seed, .shuffle = false}};
  torch_models::generator make{torch_models::gan_options{}};
  torch_models::discriminator judge{torch_models::gan_options{}};
  take_weights(*make, ours, "layers", "generator");
  take_weights(*judge, ours, "layers", "discriminator");
  const auto of_maker = torch_models::detail::gan_optimizer(*make, {}),
             of_judge = torch_models::detail::gan_optimizer(*judge, {});
  const auto update = [](torch::optim::Optimizer& optimizer, const torch::Tensor& loss) {
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    return loss.item<double>();
  };
  for (std::size_t step = 0; step < 6; ++step) {
    CAPTURE(step);
    native::random_stream draws{native::mix_seed(seed, ~0ULL), step};
    torch::Tensor noise = torch::empty({16, 100});
    for (std::int64_t i = 0; i < noise.numel(); ++i) {
      noise.mutable_data_ptr<float>()[i] = static_cast<float>(draws.normal());
    }
    const auto batch = batch_of(images, step % 2, 16);
    const torch::Tensor real = torch::tensor(torch::ArrayRef<float>(batch.values)).view({16, 1, 28, 28});
    const torch::Tensor fake = make->forward(noise);
    using torch_models::detail::gan_loss;
    const double first = update(*of_maker, gan_loss(judge->forward(fake), 1.0));
    const double second =
        update(*of_judge, (gan_loss(judge->forward(real), 1.0) + gan_loss(judge->forward(fake.detach()), 0.0)) / 2);
    const comp::sample got = ours.run_batch();
    REQUIRE(got.losses.size() == 2);
    CHECK(got.losses[0] == doctest::Approx(first).epsilon(2e-4));
    CHECK(got.losses[1] == doctest::Approx(second).epsilon(2e-4));
  }
}
#endif
