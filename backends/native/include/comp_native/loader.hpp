// SPDX-License-Identifier: Apache-2.0
// Batches of a data set in an order that seed and epoch fix, the next one made on a thread while this one trains.
// The order is the same with and without prefetch, and on every machine.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_native/data_source.hpp>
#include <comp_native/random.hpp>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace comp::native {

struct loader_settings {
  std::int64_t batch = 64;  // [examples]
  std::uint64_t seed = 0;
  bool shuffle = true;     // anew for each epoch
  bool keep_last = false;  // true: an epoch ends with the examples that fill no batch
  bool prefetch = true;    // on a thread of its own
};

struct loader_position {
  std::uint64_t epoch = 0;
  std::uint64_t batch = 0;  // in its epoch
  friend bool operator==(const loader_position&, const loader_position&) = default;
};

/// Examples one after the other; what the layout does not have is empty.
struct host_batch {
  std::int64_t size = 0;
  std::vector<float> values = {};
  std::vector<std::int32_t> tokens = {};
  std::vector<std::int32_t> labels = {};
  std::vector<float> targets = {};
};

/// A validation set may be smaller than a batch.
inline std::int64_t batch_within(const data_source& source, std::int64_t batch) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(source.size()), 1, batch);
}

class loader {
 public:
  /// Throws: `error` for an empty data set, or one that fills no batch.
  loader(data_source source, const loader_settings& settings)
      : source_{std::move(source)}, settings_{settings}, layout_{source_.layout()} {
    const auto size = static_cast<std::int64_t>(source_.size());
    require<error>(settings.batch > 0, "batches of {} examples (at least one): change the batch size", settings.batch);
    require<error>(size > 0, "the data set has {} examples (nothing to train on): check the reader and its path", size);
    require<error>(size >= settings.batch,
                   "batches of {} examples of a data set of {} (none is full): "
                   "make the batch smaller or the data set larger",
                   settings.batch, size);
    require<error>(size <= std::numeric_limits<std::uint32_t>::max(),
                   "{} examples (indices have 32 bits): split the data set", size);
    const std::int64_t partial = settings.keep_last && size % settings.batch != 0;
    batches_ = static_cast<std::uint64_t>(size / settings.batch + partial);
    if (settings.prefetch) worker_ = std::jthread{[this](std::stop_token stop) { work(stop); }};
  }
  loader(const loader&) = delete;
  loader& operator=(const loader&) = delete;

  const data_source& source() const { return source_; }
  std::uint64_t batches_per_epoch() const { return batches_; }

  /// Where the next batch comes from.
  loader_position at() const { return at_; }
  void seek(loader_position to) {
    require<error>(to.batch < batches_,
                   "batch {} of an epoch of {} (it is past the end): restore a state of this trainer", to.batch,
                   batches_);
    at_ = to;
  }

  /// The next batch, valid until the next call; the one after an epoch's last is the next epoch's first.
  /// Throws: what the data set's write() throws.
  const host_batch& next() {
    if (settings_.prefetch) {
      take_prefetched();
    } else {
      fill(current_, at_);
    }
    at_ = after(at_);
    if (settings_.prefetch) ask(at_);
    return current_;
  }

 private:
  loader_position after(loader_position p) const {
    return p.batch + 1 < batches_ ? loader_position{p.epoch, p.batch + 1} : loader_position{p.epoch + 1, 0};
  }

  void shuffle_for(std::uint64_t epoch) {
    if (order_epoch_ == epoch) return;
    const auto size = static_cast<std::uint32_t>(source_.size());
    if (settings_.shuffle) {
      order_ = permutation(size, settings_.seed, epoch);
    } else {
      order_.resize(size);
      std::iota(order_.begin(), order_.end(), 0U);
    }
    order_epoch_ = epoch;
  }

  void fill(host_batch& to, loader_position p) {
    shuffle_for(p.epoch);
    const auto full = static_cast<std::size_t>(settings_.batch), first = static_cast<std::size_t>(p.batch) * full;
    const std::size_t count = std::min(full, order_.size() - first);
    const auto inputs = static_cast<std::size_t>(elements(layout_.input_shape));
    const auto outputs = static_cast<std::size_t>(elements(layout_.target_shape));
    const bool values = layout_.input == input_kind::values, targets = layout_.target == input_kind::values;
    to.size = static_cast<std::int64_t>(count);
    to.values.resize(values ? count * inputs : 0);
    to.tokens.resize(values ? 0 : count * inputs);
    to.targets.resize(targets ? count * outputs : 0);
    to.labels.resize(targets ? 0 : count * outputs);
    const auto part = [](auto& all, std::size_t i, std::size_t each) {
      return all.empty() ? std::span{all} : std::span{all}.subspan(i * each, each);
    };
    for (std::size_t i = 0; i < count; ++i) {
      source_.write(order_[first + i], {part(to.values, i, inputs), part(to.tokens, i, inputs),
                                        part(to.labels, i, outputs), part(to.targets, i, outputs)});
    }
  }

  void ask(loader_position p) {
    {
      const std::lock_guard lock{mutex_};
      asked_ = p;
    }
    changed_.notify_all();
  }

  /// Waits for the batch at `at_`; one made for another position (before a seek) is dropped.
  void take_prefetched() {
    std::unique_lock lock{mutex_};
    const auto idle = [this] { return !asked_; };
    changed_.wait(lock, idle);
    if (made_ != at_) {
      asked_ = at_;
      changed_.notify_all();
      changed_.wait(lock, idle);
    }
    made_.reset();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    std::swap(current_, upcoming_);
  }

  void work(const std::stop_token& stop) {
    std::unique_lock lock{mutex_};
    while (changed_.wait(lock, stop, [this] { return asked_.has_value(); })) {
      const loader_position p = *asked_;
      lock.unlock();
      std::exception_ptr failure;
      try {
        fill(upcoming_, p);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
      made_ = p;
      asked_.reset();
      changed_.notify_all();
    }
  }

  data_source source_;
  loader_settings settings_;
  example_layout layout_;
  std::uint64_t batches_ = 0;
  loader_position at_ = {};
  std::vector<std::uint32_t> order_;  // of order_epoch_; the worker's where there is one
  std::optional<std::uint64_t> order_epoch_;
  host_batch current_;
  host_batch upcoming_;                   // the worker's while something is asked for
  std::optional<loader_position> asked_;  // what the worker is to make
  std::optional<loader_position> made_;   // what it made last
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread worker_;  // last: it stops before what it uses goes
};

}  // namespace comp::native
