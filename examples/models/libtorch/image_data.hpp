// SPDX-License-Identifier: Apache-2.0
// Images as tensors for the jobs. Pixels stay bytes until their batch is picked, which is then normalised. Pictures of
// JPEG folders are decoded once if they fit into memory, else when their batch is picked.
#pragma once

#include <examples/data/cifar.hpp>
#include <examples/data/idx.hpp>
#include <examples/data/jpeg_folder.hpp>
#include <libtorch/job.hpp>

namespace torch_models {

/// The columns are images (N,C,H,W) as bytes, and labels (N). With `decode`, numbers of pictures (N) replace the
/// images.
struct image_set {
  columns train = {}, validation = {};
  std::int64_t classes = 0;
  std::string source = {};
  std::function<torch::Tensor(const torch::Tensor& numbers)> decode = {};  // -> (B,3,side,side), bytes

  /// Returns: the first training images, as bytes.
  torch::Tensor some(std::int64_t most) const {
    const torch::Tensor first = train[0].narrow(0, 0, std::min(train[0].size(0), most));
    return decode ? decode(first) : first;
  }
};

namespace detail {

inline columns as_columns(const data_sets::images& from) {
  const torch::Tensor pixels = torch::tensor(torch::ArrayRef<std::uint8_t>(from.pixels), torch::kByte);
  return {pixels.view({from.count, from.channels, from.height, from.width}),
          torch::tensor(torch::ArrayRef<std::int32_t>(from.labels), torch::kLong)};
}

/// Made-up images that can be learnt: each class has its own pattern, with noise.
inline columns noisy(std::int64_t count, const torch::Tensor& patterns) {
  const torch::Tensor labels = torch::randint(patterns.size(0), {count});
  const torch::Tensor noise = torch::rand({count, patterns.size(1), patterns.size(2), patterns.size(3)});
  return {((patterns.index_select(0, labels) + noise) * 127.5).to(torch::kByte), labels};
}

}  // namespace detail

/// channels: 1 makes images like MNIST's, 28 x 28 in 10 classes; 3 like CIFAR-100's or, with another side, like
/// ImageNet's in 100 classes.
inline image_set made_up_images(std::int64_t channels, std::int64_t side, std::int64_t count) {
  const std::int64_t classes = channels == 1 ? 10 : 100;
  const torch::Tensor patterns = torch::rand({classes, channels, side, side});
  return {.train = detail::noisy(count, patterns),
          .validation = detail::noisy(std::max<std::int64_t>(count / 5, 1), patterns),
          .classes = classes,
          .source = "made-up images"};
}

namespace detail {

/// Decodes pictures by number, with as many threads as LibTorch has. The numbers of validation pictures follow those of
/// training.
inline std::function<torch::Tensor(const torch::Tensor&)> decoder(std::vector<std::filesystem::path> files,
                                                                  std::int64_t side) {
  return [files = std::move(files), side](const torch::Tensor& numbers) {
    const torch::Tensor wanted = numbers.to(torch::kCPU, torch::kLong).contiguous();
    torch::Tensor images = torch::empty({wanted.size(0), 3, side, side}, torch::kByte);
    const std::int64_t each = 3 * side * side, *number = wanted.data_ptr<std::int64_t>();
    auto* to = images.mutable_data_ptr<std::uint8_t>();
    at::parallel_for(0, wanted.size(0), 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const auto& file = files[static_cast<std::size_t>(number[i])];
        const auto pixels = data_sets::read_picture(file, side, side * 8 / 7);
        std::copy(pixels.begin(), pixels.end(), to + i * each);
      }
    });
    return images.to(numbers.device());
  };
}

/// Reads pictures at a side of 64, which Tiny ImageNet has, or 224, which networks for ImageNet read. It shuffles them,
/// because files are listed class by class.
inline image_set read_pictures(const std::filesystem::path& path, std::int64_t side) {
  using namespace data_sets;
  constexpr std::int64_t in_memory = std::int64_t{2} << 30;  // [bytes]
  picture_files train = list_pictures(path, part::train), test = list_pictures(path, part::test);
  const std::int64_t cut = std::ssize(train.files), all = cut + std::ssize(test.files);
  const auto labels = [](const picture_files& of) {
    return torch::tensor(torch::ArrayRef<std::int32_t>(of.labels), torch::kLong);
  };
  const torch::Tensor order = torch::randperm(cut), order_of_test = torch::randperm(all - cut);
  image_set set{.train = {order, labels(train).index_select(0, order)},
                .validation = {order_of_test + cut, labels(test).index_select(0, order_of_test)},
                .classes = train.classes(),
                .source = path.filename().string()};
  train.files.insert(train.files.end(), test.files.begin(), test.files.end());
  set.decode = decoder(std::move(train.files), side);
  if (all * 3 * side * side > in_memory) return set;
  for (columns* part : {&set.train, &set.validation}) part->front() = set.decode(part->front());
  set.decode = {};
  return set;
}

}  // namespace detail

/// Reads CIFAR, MNIST or a folder of JPEG pictures as they are published. The last tenth of a single file is for
/// validation. side: what JPEG pictures are scaled to; 0: 64. Throws: `comp::file_error`.
inline image_set read_images(const std::filesystem::path& path, std::int64_t side = 0) {
  using namespace data_sets;
  if (is_picture_folder(path)) return detail::read_pictures(path, side > 0 ? side : 64);
  const images_split read = is_mnist(path) ? images_split{read_mnist(path, part::train), read_mnist(path, part::test)}
                            : std::filesystem::is_directory(path)
                                ? images_split{read_cifar(path, part::train), read_cifar(path, part::test)}
                                : split(read_cifar(path, part::train), 0.1);
  return {.train = detail::as_columns(read.train),
          .validation = detail::as_columns(read.test),
          .classes = read.train.classes,
          .source = path.filename().string()};
}

/// Returns: a function that turns bytes into numbers which have mean 0 and deviation 1 in each channel of `images`.
inline std::function<columns(columns)> normalization(const torch::Tensor& images) {
  const torch::Tensor some = images.to(torch::kFloat);
  const torch::Tensor mean = some.mean({0, 2, 3}, true);
  const torch::Tensor scale = some.std(at::OptionalIntArrayRef{{0, 2, 3}}, 0, true).clamp_min(1.0).reciprocal();
  return [mean, scale](columns rows) {
    rows.front() = rows.front().to(torch::kFloat).sub_(mean).mul_(scale);
    return rows;
  };
}

}  // namespace torch_models
