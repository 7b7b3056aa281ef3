// SPDX-License-Identifier: Apache-2.0
// Feeds batches of a data set to a Device. While one batch trains, the loader's threads make the next one. If the
// Device can copy while it computes, the next batch is copied meanwhile, too.
// Batches that were read ahead are no part of the training's state: at() is the batch that next() will return, and
// after a seek() the batches are those of a feed that has read nothing ahead.
#pragma once

#include <comp_native/batch_upload.hpp>
#include <comp_native/loader.hpp>
#include <concepts>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <utility>

namespace comp::native {

/// A Device that can copy beside its work. A = D::arriving is a copy under way, and movable.
///   memory_resource& staging_memory()               host memory that copies start from
///   A copy_ahead(span<const float | int32 | uint8>) starts a copy from staging memory, and waits for nothing
///   void await_copies()                             returns when the staging memory of all copies may be written again
///   T arrived(A, shape); I arrived_indices(A, shape); T arrived(A of bytes, shape, const T& of_bytes)
///                                                   the copied tensor; work given after this waits for the copy
template <class D>
concept CopiesAhead = ReadsBytes<D> &&
    requires(D& d, typename D::arriving& a, std::span<const float> values, const typename D::tensor& t) {
  { d.staging_memory() } -> std::convertible_to<std::pmr::memory_resource&>;
  { d.copy_ahead(values) } -> std::same_as<typename D::arriving>;
  d.await_copies();
  { d.arrived(std::move(a), shape{}) } -> std::same_as<typename D::tensor>;
  { d.arrived_indices(std::move(a), shape{}) } -> std::same_as<typename D::indices>;
  { d.arrived(std::move(a), shape{}, t) } -> std::same_as<typename D::tensor>;
};

/// Returns how many threads make batches for this Device if the user does not say: the Device's own choice, or one.
int loading_threads_of(const Device auto& device) {
  if constexpr (requires {
                  { device.loading_threads() } -> std::same_as<int>;
                })
    return device.loading_threads();
  return 1;
}

namespace detail {

/// A batch that is being copied. A Device without such copies has none.
template <class D>
struct batch_ahead {};
template <CopiesAhead D>
struct batch_ahead<D> {
  loader_position from;
  std::int64_t size = 0;
  std::int64_t judged = 0;
  std::optional<typename D::arriving> values = {}, bytes = {}, tokens = {}, labels = {}, targets = {};
  token_batch with_segments = {};  // in place of tokens, for a model that reads segments, too
};

}  // namespace detail

template <Device D>
class batch_feed {
 public:
  /// Makes a loader with `settings`, except that the feed chooses `settings.memory`. Throws: as loader does.
  batch_feed(D& device, const native::model& m, data_source source, loader_settings settings)
      : device_{device}, model_{m}, loader_{std::move(source), in_memory_for(device, settings)} {
    const std::span<const float> table{loader_.layout().of_bytes};
    if constexpr (CopiesAhead<D>) {
      if (!table.empty()) of_bytes_ = device.upload(table, {std::ssize(table) / 256, 256}, precision::fp32);
    }
  }

  const data_source& source() const { return loader_.source(); }
  std::uint64_t batches_per_epoch() const { return loader_.batches_per_epoch(); }
  /// Returns the position of the batch that next() will return.
  loader_position at() const {
    if constexpr (CopiesAhead<D>) return ahead_ ? ahead_->from : loader_.at();
    return loader_.at();
  }
  void seek(loader_position to) {
    if (to == at()) return;
    loader_.seek(to);  // if it throws, the batch ahead is still the next one
    ahead_.reset();
  }

  /// Returns the next batch on the Device.
  /// Throws: what the data set throws, and `error` for data that do not fit the model; the same batch is then still the
  /// next one.
  device_batch<D> next() {
    if constexpr (CopiesAhead<D>) {
      if (!ahead_) send();
      const loader_position from = ahead_->from;
      return or_back_to(from, [&] { return numbered(taken(*std::exchange(ahead_, std::nullopt)), from); });
    } else {
      const loader_position from = loader_.at();
      return or_back_to(from, [&] { return numbered(received(loader_.next()), from); });
    }
  }
  /// Starts to copy the next batch if it is made by now. Call it when the work on the current batch has been given to
  /// the Device, and before anything waits for that work. It reports no errors; next() does.
  void ahead() {
    if constexpr (CopiesAhead<D>) {
      if (!ahead_ && loader_.prepared()) try_to_send();
    }
  }
  /// Returns when nothing is being loaded: next() has its batch, and the loader's threads rest. Clocks call it, so that
  /// loading the next batches does not slow the steps that they time.
  void rest() {
    loader_.prepare();
    if constexpr (CopiesAhead<D>) {
      ahead();
      loader_.prepare();  // the batch behind the one that is now being copied
      device_.await_copies();
    }
  }

 private:
  static loader_settings in_memory_for([[maybe_unused]] D& device, loader_settings settings) {
    if constexpr (CopiesAhead<D>) settings.memory = &device.staging_memory();
    return settings;
  }
  auto or_back_to(loader_position from, auto work) {
    try {
      return work();
    } catch (...) {
      loader_.seek(from);
      throw;
    }
  }

  device_batch<D> numbered(device_batch<D> batch, loader_position from) const {
    batch.number = from.epoch * batches_per_epoch() + from.batch;
    return batch;
  }
  device_batch<D> received(const host_batch& batch) {
    return uploaded(device_, model_, batch, std::span<const float>{loader_.layout().of_bytes});
  }

  void try_to_send() {
    try {
      send();
    } catch (const error&) {  // there may be memory for it once the step has ended; if not, next() throws the same
    }
  }
  void send() {
    device_.await_copies();  // the loader is about to overwrite the memory that the last copies read
    const loader_position from = loader_.at();
    or_back_to(from, [&] {
      const host_batch& batch = loader_.next();
      token_batch tokens = tokens_of(model_, batch);
      require_known(model_, batch, tokens);
      detail::batch_ahead<D> sent{.from = from, .size = batch.size, .judged = judged_of(batch)};
      const auto copy = [&](const auto& all, auto& to) {
        if (!all.empty()) to = device_.copy_ahead(std::span{all});
      };
      copy(batch.values, sent.values);
      copy(batch.bytes, sent.bytes);
      if (model_.reads_segments()) {
        sent.with_segments = std::move(tokens);
      } else {
        copy(batch.tokens, sent.tokens);
      }
      if (model_.reads_labels()) copy(batch.labels, sent.labels);
      if (model_.predicts_values()) copy(batch.targets, sent.targets);  // others' outputs have another shape
      ahead_ = std::move(sent);
    });
  }
  device_batch<D> taken(detail::batch_ahead<D> from) {
    device_batch<D> to{.size = from.size, .judged = from.judged};
    shape input = model_.input_shape, output = model_.shape_of(model_.output());
    input[0] = output[0] = from.size;
    if (from.tokens) {
      to.tokens = device_.arrived_indices(std::move(*from.tokens), input);
      to.positions = positions(input);
    }
    if (model_.reads_segments()) upload_tokens(device_, model_, from.with_segments, to);
    if (from.values) to.values = device_.arrived(std::move(*from.values), input);
    if (from.bytes) to.values = device_.arrived(std::move(*from.bytes), input, of_bytes_);
    if (from.targets) to.targets = device_.arrived(std::move(*from.targets), output);
    const std::int64_t labels = from.size * elements(loader_.layout().target_shape);
    if (from.labels) to.labels = device_.arrived_indices(std::move(*from.labels), {labels});
    return to;
  }
  /// Returns the positions of tokens, which are uploaded once for each size of a batch.
  typename D::indices positions(const shape& input) {
    if (positions_.shape() != input) {
      const auto all = positions_of(static_cast<std::size_t>(elements(input)), static_cast<std::size_t>(input[1]));
      positions_ = device_.upload(std::span<const std::int32_t>{all}, input);
    }
    return positions_;
  }

  D& device_;
  const native::model& model_;
  typename D::tensor of_bytes_ = {};
  typename D::indices positions_ = {};
  loader loader_;
  std::optional<detail::batch_ahead<D>> ahead_;
};

}  // namespace comp::native
