// SPDX-License-Identifier: Apache-2.0
// Sources of batches, in an order that can be put back: the concept BatchSource, and the batches of tensors in memory.
//   auto batches = comp::libtorch::tensor_batches(images, labels, {.batch = 64, .seed = 1});
// A loader that cannot go back (torch::data::DataLoader) is wrapped by replayed.hpp.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/data/example.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/core/fnv1a.hpp>
#include <comp/core/unmet.hpp>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace comp::libtorch {

// clang-format off
/// Gives the batches of an endless training, epoch by epoch. After seek(p) it gives the batches that it gave after
/// position() was p, bit for bit: this makes candidates comparable.
template <class S>
concept BatchSource =
    (requires(S& s) { { s.next() } -> std::same_as<std::optional<typename S::batch_type>>; }
     || unmet<"a BatchSource needs: std::optional<batch_type> next(), nothing at the end of each epoch">()) &&
    (requires(S& s) { s.begin_epoch(); }
     || unmet<"a BatchSource needs: void begin_epoch(), which leaves an epoch that was begun">()) &&
    (requires(S& s) { s.seek(s.position()); }
     || unmet<"a BatchSource needs position() and seek(position): wrap a loader that cannot go back in comp::libtorch::replayed">()) &&
    (requires(const S& s) { { s.signature() } -> std::same_as<std::string>; }
     || unmet<"a BatchSource needs: std::string signature() const">());
// clang-format on

struct batch_options {
  std::int64_t batch = 64;  // [examples]
  bool shuffle = true;      // anew in each epoch
  std::uint64_t seed = 0;
  bool keep_last = false;  // true: a last batch that is not full is given, too; its operators have other sizes
};

/// Gives n examples in an order that depends on seed and epoch alone; `gather` makes a batch of some of them. What
/// `gather` draws (augmentation) it draws from the generator that it is given, which depends on seed, epoch and batch.
template <class Batch>
class indexed_batches {
 public:
  using batch_type = Batch;
  using gatherer = std::function<Batch(const at::Tensor& indices, at::Generator& generator)>;
  struct position_type {
    std::uint64_t epoch = 0;
    std::int64_t batch = 0;
    friend bool operator==(const position_type&, const position_type&) = default;
  };

  /// `about` says in the signature what the data are. Throws: `settings_error` when there is not one full batch.
  indexed_batches(std::int64_t n, batch_options options, gatherer gather, std::string about = "data")
      : n_{n}, options_{options}, gather_{std::move(gather)}, about_{std::move(about)} {
    require<settings_error>(options_.batch > 0 && batches_per_epoch() > 0,
                            "batches of {} from {} examples (not one is full): give a smaller batch, or keep_last",
                            options_.batch, n);
  }

  std::optional<Batch> next() {
    if (at_.batch == batches_per_epoch()) {
      begin_epoch();
      return std::nullopt;
    }
    const std::int64_t first = at_.batch * options_.batch;
    const at::Tensor indices = order().narrow(0, first, std::min(options_.batch, n_ - first));
    at::Generator generator = at::detail::createCPUGenerator(mixed(at_.epoch, static_cast<std::uint64_t>(++at_.batch)));
    return gather_(indices, generator);
  }

  void begin_epoch() { at_ = {at_.batch == 0 ? at_.epoch : at_.epoch + 1, 0}; }
  position_type position() const { return at_; }
  void seek(const position_type& to) { at_ = to; }
  std::int64_t batches_per_epoch() const {
    return (n_ + (options_.keep_last ? options_.batch - 1 : 0)) / options_.batch;
  }
  std::string signature() const {
    return fmt::format("{} of {} in batches of {}{}{} seed {}", about_, n_, options_.batch,
                       options_.shuffle ? " shuffled" : "", options_.keep_last ? " with last" : "", options_.seed);
  }

 private:
  /// Returns: splitmix64 of seed, epoch and batch (batch 0 stands for the epoch's order). Source: Steele, Lea, Flood
  /// 2014.
  std::uint64_t mixed(std::uint64_t epoch, std::uint64_t batch) const {
    std::uint64_t z = options_.seed;
    for (const std::uint64_t part : {epoch, batch}) {
      z += part + 0x9e3779b97f4a7c15ULL;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
      z ^= z >> 31;
    }
    return z;
  }

  const at::Tensor& order() {
    if (order_.defined() && order_of_ == at_.epoch) return order_;
    order_of_ = at_.epoch;
    const auto generator = at::detail::createCPUGenerator(mixed(at_.epoch, 0));
    order_ = options_.shuffle ? at::randperm(n_, generator, at::kLong) : at::arange(n_, at::kLong);
    return order_;
  }

  std::int64_t n_;
  batch_options options_;
  gatherer gather_;
  std::string about_;
  position_type at_ = {};
  at::Tensor order_;
  std::uint64_t order_of_ = 0;
};

/// Changes a batch before it is trained on. It may draw from `generator` only.
using augmentation = std::function<at::Tensor(at::Tensor data, at::Generator& generator)>;

namespace detail {

inline void require_batch(bool any) {
  require<error>(any, "epoch without a batch (there is nothing to train on): check the data");
}

/// Returns: a hash (FNV-1a) of fewer than 8192 values, spread over a tensor. It tells data sets and weights apart, but
/// does not see every bit of them.
inline std::uint64_t sampled_hash(const at::Tensor& t) {
  const at::Tensor flat = t.detach().reshape({-1});
  const std::int64_t stride = std::max<std::int64_t>(1, flat.numel() / 4096);
  const at::Tensor some = flat.slice(0, 0, {}, stride).to(at::kCPU, at::kDouble).contiguous();
  comp::detail::fnv1a of;
  of.add_bytes(some.const_data_ptr(), some.nbytes());
  return of.hash;
}

}  // namespace detail

/// Returns: batches of data (N, ...) and target (N, ...). They are gathered on the device of the tensors, and go from
/// there to `device`. Throws: `settings_error` when the two differ in N.
inline indexed_batches<torch::data::Example<>> tensor_batches(const at::Tensor& data, const at::Tensor& target,
                                                              batch_options options = {}, augmentation augment = {},
                                                              std::optional<c10::Device> device = {}) {
  require<settings_error>(data.dim() > 0 && target.dim() > 0 && data.size(0) == target.size(0),
                          "data of {} examples with targets of {} (one target per example): give as many of both",
                          data.dim() > 0 ? data.size(0) : 0, target.dim() > 0 ? target.size(0) : 0);
  std::string about = fmt::format("tensors {:016x} {:016x}{}", detail::sampled_hash(data), detail::sampled_hash(target),
                                  augment ? " augmented" : "");
  const auto gather = [=](const at::Tensor& indices, at::Generator& generator) {
    const at::Tensor where = indices.to(data.device());
    at::Tensor x = data.index_select(0, where), y = target.index_select(0, where);
    if (augment) x = augment(std::move(x), generator);
    return torch::data::Example<>{device ? x.to(*device) : x, device ? y.to(*device) : y};
  };
  return {data.size(0), options, gather, std::move(about)};
}

}  // namespace comp::libtorch
