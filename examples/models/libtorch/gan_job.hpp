// SPDX-License-Identifier: Apache-2.0
// A GAN on MNIST: two networks, two optimizers, two losses. The generator's step comes first, and the discriminator
// then judges the images of that step. The batch is that of the CoMP paper, section 4.1.
// Source: Radford et al. 2015 (the hyper-parameters)
#pragma once

#include <cmath>
#include <libtorch/gan.hpp>
#include <libtorch/image_data.hpp>

namespace torch_models {
namespace detail {

/// Returns: the loss of logits that should all say real (1), or made (0).
inline torch::Tensor gan_loss(const torch::Tensor& logits, double real) {
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, real));
}

inline std::shared_ptr<torch::optim::Optimizer> gan_optimizer(const torch::nn::Module& network, const job_options& o) {
  return std::make_shared<torch::optim::Adam>(network.parameters(),
                                              torch::optim::AdamOptions(rate(o, 2e-4)).betas({0.5, 0.999}));
}

/// The two phases of a step, which share the images that the generator makes.
inline std::vector<phase> gan_phases(generator make, discriminator judge, std::int64_t latent) {
  const auto fakes = std::make_shared<torch::Tensor>();
  return {{"generator",
           [=](const columns& rows) mutable {
             const torch::Tensor noise = torch::randn({rows[0].size(0), latent}, rows[0].options());
             *fakes = make->forward(noise);
             return gan_loss(judge->forward(*fakes), 1.0);
           },
           0},
          {"discriminator",
           [=](const columns& rows) mutable {
             return (gan_loss(judge->forward(rows[0]), 1.0) + gan_loss(judge->forward(fakes->detach()), 0.0)) / 2;
           },
           1}};
}

/// The validation columns are images and noise. Returns: 1 if the discriminator distinguishes real and made images no
/// better than a coin, 0 if it is always right or always wrong.
inline double undecided(generator make, discriminator judge, const job& of) {
  const columns& data = of.validation;
  double right = 0, total = 0;
  for (const torch::Tensor& rows : torch::arange(data[0].size(0)).to(data[0].device()).split(of.batch)) {
    const columns batch = pick(of, data, rows);
    right += judge->forward(batch[0]).gt(0).sum().item<double>();
    right += judge->forward(make->forward(batch[1])).le(0).sum().item<double>();
    total += static_cast<double>(rows.size(0));
  }
  return 1 - std::abs(right / total - 1);
}

}  // namespace detail

/// Throws: `comp::error` for images that are not 28 x 28 in one channel.
inline job gan_job(const job_options& o) {
  torch::manual_seed(o.seed);
  image_set set = o.data.empty() ? made_up_images(1, 28, detail::chosen(o.limit, 2048)) : read_images(o.data);
  const auto image = set.train.front().sizes().slice(1);
  comp::require<comp::error>(image.equals({1, 28, 28}),
                             "images of {}x{}x{} for the GAN (it makes 1x28x28): give it a folder in MNIST's layout",
                             image[0], image[1], image[2]);
  const gan_options shape{.convolutional = o.size == "convolutional"};
  generator make(shape);
  discriminator judge(shape);
  make->to(o.device);
  judge->to(o.device);
  job task{.name = "gan",
           .modules = {{"generator", make.ptr()}, {"discriminator", judge.ptr()}},
           .optimizers = {detail::gan_optimizer(*make, o), detail::gan_optimizer(*judge, o)},
           .phases = detail::gan_phases(make, judge, shape.latent),
           .batch = detail::chosen(o.batch, 156)};
  task.train = detail::on_device(detail::first_rows({set.train[0]}, o.limit), o.device);
  task.description = fmt::format("{} GAN on {} images of {}", shape.convolutional ? "convolutional" : "connected",
                                 task.examples(), set.source);
  const columns images = detail::first_rows({set.validation[0]}, o.limit);
  task.validation = detail::on_device({images[0], torch::randn({images[0].size(0), shape.latent})}, o.device);
  task.collate = [](columns rows) {
    rows[0] = rows[0].to(torch::kFloat).div_(127.5).sub_(1);  // to [-1,1], the range of the generator's tanh
    return rows;
  };
  task.score_name = "undecided";
  task.score = [make, judge](const job& of) { return detail::undecided(make, judge, of); };
  return task;
}

}  // namespace torch_models
