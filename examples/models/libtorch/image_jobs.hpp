// SPDX-License-Identifier: Apache-2.0
// AlexNet and VGG16 on images with classes. The batches are those of the CoMP paper, section 4.1.
#pragma once

#include <libtorch/alexnet.hpp>
#include <libtorch/image_data.hpp>
#include <libtorch/vgg16.hpp>

namespace torch_models {
namespace detail {

inline image_set classified_images(const job_options& o) {
  if (!o.data.empty()) return read_images(o.data, o.side);
  return made_up_images(3, chosen(o.side, 32), chosen(o.limit, 2048));
}

/// The job shares the classifier with its caller, as LibTorch's module holders do.
job classification(std::string name, auto net, image_set set, const torch::Tensor& some, std::int64_t batch,
                   const job_options& o) {
  net->to(o.device);
  job task{.name = std::move(name), .modules = {{"net", net.ptr()}}, .batch = batch};
  task.train = on_device(first_rows(std::move(set.train), o.limit), o.device);
  task.description =
      fmt::format("{} on {} images of {} ({} classes)", task.name, task.examples(), set.source, set.classes);
  task.validation = on_device(first_rows(std::move(set.validation), o.limit), o.device);
  task.collate = [normal = normalization(some), decode = std::move(set.decode)](columns rows) {
    if (decode) rows.front() = decode(rows.front());
    return normal(std::move(rows));
  };
  task.phases = {{"forward", [net](const columns& rows) mutable {
                    return torch::cross_entropy_loss(net->forward(rows[0]), rows[1]);
                  }}};
  return task;
}

template <class Net>
job image_job(const char* name, const job_options& o, std::int64_t usual_batch, double usual_rate) {
  torch::manual_seed(o.seed);
  image_set set = classified_images(o);
  const torch::Tensor some = set.some(2000).to(o.device);
  const std::int64_t side = some.size(2);
  comp::require<comp::error>(some.size(1) == 3 && some.size(3) == side && side > 0 && side % 32 == 0,
                             "images of {}x{}x{} for {} (it reads three channels of one side, a multiple of 32): "
                             "use CIFAR or a folder of JPEG pictures",
                             some.size(1), side, some.size(3), name);
  Net net{image_options{.side = side, .classes = set.classes, .batch_norm = o.size != "plain"}};
  job task = classification(name, net, std::move(set), some, chosen(o.batch, usual_batch), o);
  task.optimizers = {std::make_shared<torch::optim::SGD>(
      net->parameters(), torch::optim::SGDOptions(rate(o, usual_rate)).momentum(0.9).weight_decay(5e-4))};
  task.score = [net](const job& of) mutable {
    return accuracy(of, of.validation, [&](const columns& rows) { return net->forward(rows[0]); });
  };
  return task;
}

}  // namespace detail

inline job alexnet_job(const job_options& o) { return detail::image_job<alexnet>("alexnet", o, 156, 0.01); }
inline job vgg16_job(const job_options& o) {
  return detail::image_job<vgg16>(o.size == "plain" ? "plain vgg16" : "vgg16", o, 128, 0.02);
}

}  // namespace torch_models
