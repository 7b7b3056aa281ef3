// SPDX-License-Identifier: Apache-2.0
// Images as tensors for the jobs: pixels stay bytes, a batch is normalised when it is picked.
#pragma once

#include <comp_native/data/cifar.hpp>
#include <comp_native/data/idx.hpp>
#include <libtorch/job.hpp>

namespace torch_models {

/// Columns: images (N,C,H,W) as bytes, labels (N).
struct image_set {
  columns train, validation;
  std::int64_t classes = 0;
  std::string source;
};

namespace detail {

inline columns as_columns(const comp::native::data::images& from) {
  const torch::Tensor pixels = torch::tensor(torch::ArrayRef<std::uint8_t>(from.pixels), torch::kByte);
  return {pixels.view({from.count, from.channels, from.height, from.width}),
          torch::tensor(torch::ArrayRef<std::int32_t>(from.labels), torch::kLong)};
}

/// Images that can be learnt: each class has a pattern of its own, under noise.
inline columns noisy(std::int64_t count, const torch::Tensor& patterns) {
  const torch::Tensor labels = torch::randint(patterns.size(0), {count});
  const torch::Tensor noise = torch::rand({count, patterns.size(1), patterns.size(2), patterns.size(3)});
  return {((patterns.index_select(0, labels) + noise) * 127.5).to(torch::kByte), labels};
}

}  // namespace detail

/// `channels` 1 is MNIST's form, 28 x 28 in 10 classes; 3 CIFAR-100's or, with another side, ImageNet's in 100 classes.
inline image_set made_up_images(std::int64_t channels, std::int64_t side, std::int64_t count) {
  const std::int64_t classes = channels == 1 ? 10 : 100;
  const torch::Tensor patterns = torch::rand({classes, channels, side, side});
  return {detail::noisy(count, patterns), detail::noisy(std::max<std::int64_t>(count / 5, 1), patterns), classes,
          "made-up images"};
}

/// CIFAR or MNIST as they are published; of a single file the last tenth is for validation.
/// Throws: `comp::file_error`.
inline image_set read_images(const std::filesystem::path& path) {
  using namespace comp::native::data;
  const images_split read = is_mnist(path) ? images_split{read_mnist(path, part::train), read_mnist(path, part::test)}
                            : std::filesystem::is_directory(path)
                                ? images_split{read_cifar(path, part::train), read_cifar(path, part::test)}
                                : split(read_cifar(path, part::train), 0.1);
  return {detail::as_columns(read.train), detail::as_columns(read.test), read.train.classes, path.filename().string()};
}

/// Bytes to numbers of mean 0 and deviation 1 in each channel, moments taken over (at most 10,000 of) `images`.
inline std::function<columns(columns)> normalization(const torch::Tensor& images) {
  const torch::Tensor some = images.narrow(0, 0, std::min<std::int64_t>(images.size(0), 10'000)).to(torch::kFloat);
  const torch::Tensor mean = some.mean({0, 2, 3}, true);
  const torch::Tensor scale = some.std(at::OptionalIntArrayRef{{0, 2, 3}}, 0, true).clamp_min(1.0).reciprocal();
  return [mean, scale](columns rows) {
    rows.front() = rows.front().to(torch::kFloat).sub_(mean).mul_(scale);
    return rows;
  };
}

}  // namespace torch_models
