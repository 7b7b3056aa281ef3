// SPDX-License-Identifier: Apache-2.0
// A loader makes the batches of a data set, ahead of their use, in threads of its own while an earlier batch trains.
// Seed and epoch fix the order of examples, so that batches are the same for any number of threads and on every
// machine.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <comp_native/host_batch.hpp>
#include <comp_native/random.hpp>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace comp::native {

/// What is chosen of a loader.
struct loader_settings {
  std::int64_t batch = 64;  // [examples]
  std::uint64_t seed = 0;
  bool shuffle = true;     // true: each epoch has an order of its own
  bool keep_last = false;  // true: an epoch ends with a smaller batch of the examples that are left
  bool goes_on = true;     // false: batches of the next epoch are not made before next() asks for one
  int threads = 1;         // threads that make batches ahead; 0: next() makes its own batch
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();  // the memory of batches
};

struct loader_position {
  std::uint64_t epoch = 0;
  std::uint64_t batch = 0;  // its number in the epoch
  friend bool operator==(const loader_position&, const loader_position&) = default;
};

/// Returns `batch`, or the size of the data set if that is smaller: a validation set may be smaller than a batch.
inline std::int64_t batch_within(const data_source& source, std::int64_t batch) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(source.size()), 1, batch);
}

/// A loader. It is used by one thread at a time. Its own threads only call the data set's write().
class loader {
 public:
  /// Throws: `error` for an empty data set, or one with fewer examples than a batch.
  loader(data_source source, const loader_settings& settings)
      : source_{std::move(source)}, settings_{settings}, layout_{source_.layout()} {
    const auto size = static_cast<std::int64_t>(source_.size());
    require<error>(settings.batch > 0, "batches of {} examples (at least one): change the batch size", settings.batch);
    require<error>(settings.threads >= 0, "{} threads to make batches (0 is the least): change it", settings.threads);
    require<error>(size > 0, "the data set has {} examples (nothing to train on): check the reader and its path", size);
    require<error>(size >= settings.batch,
                   "batches of {} examples of a data set of {} (none is full): "
                   "make the batch smaller or the data set larger",
                   settings.batch, size);
    const std::size_t channels = layout_.input_shape.empty() ? 1 : static_cast<std::size_t>(layout_.input_shape[0]);
    require<error>(
        layout_.of_bytes.empty() || (layout_.input == input_kind::values && layout_.of_bytes.size() == 256 * channels),
        "values of {} bytes for {} channels of {} (256 for each are needed): check the layout", layout_.of_bytes.size(),
        channels, layout_.input == input_kind::values ? "values" : "tokens");
    require<error>(size <= std::numeric_limits<std::uint32_t>::max(),
                   "{} examples (indices have 32 bits): split the data set", size);
    const std::int64_t partial = settings.keep_last && size % settings.batch != 0;
    batches_ = static_cast<std::uint64_t>(size / settings.batch + partial);
    const std::size_t depth = settings.threads > 0 ? 3 : 1;  // the batch in use and two ahead, so that one may be late
    slots_.reserve(depth);
    for (std::size_t i = 0; i < depth; ++i) {
      slots_.push_back({.batch = batch_with_room(layout_, settings.batch, settings.memory)});
    }
    for (int i = 0; i < settings.threads; ++i) {
      workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }
  loader(const loader&) = delete;
  loader& operator=(const loader&) = delete;

  const data_source& source() const { return source_; }
  const example_layout& layout() const { return layout_; }
  std::uint64_t batches_per_epoch() const { return batches_; }

  /// Returns the position of the next batch.
  loader_position at() const { return at_; }
  /// Goes to a position. Batches that were made ahead and are not needed any more are dropped, and the next ones begun.
  void seek(loader_position to) {
    require<error>(to.batch < batches_,
                   "batch {} of an epoch of {} (it is past the end): restore a state of this trainer", to.batch,
                   batches_);
    const std::lock_guard lock{mutex_};
    at_ = to;
    if (settings_.threads > 0) want();
  }

  /// Returns the next batch, which is valid until the next call. Behind the last batch of an epoch comes the first of
  /// the next one.
  /// Throws: what the data set's write() throws for the first example that throws, whichever thread wrote it; the same
  /// batch is then still the next one.
  const host_batch& next() {
    std::unique_lock lock{mutex_};
    in_use_ = nullptr;
    slot& current = wait_for(at_, lock);
    if (current.failure) {
      current.holds = false;
      std::rethrow_exception(std::exchange(current.failure, nullptr));
    }
    in_use_ = &current;
    at_ = after(at_);
    if (settings_.threads > 0) want();
    return current.batch;
  }

  /// Returns when all batches that are to be made ahead are made.
  void prepare() {
    std::unique_lock lock{mutex_};
    loader_position p = at_;
    const std::size_t count = std::min(slots_.size() - 1, ahead());
    for (std::size_t i = 0; i < count; ++i, p = after(p)) (void)wait_for(p, lock);
  }
  /// Returns whether next() would return at once.
  bool prepared() {
    const std::lock_guard lock{mutex_};
    const slot* s = of(at_);
    return s && s->done() && !s->failure;
  }

 private:
  using order = std::vector<std::uint32_t>;
  /// The memory of a batch. A batch is made in pieces, by any thread that has time.
  struct slot {
    host_batch batch;
    bool holds = false;  // true: it belongs to the batch at `at`, of which some examples may be missing
    loader_position at = {};
    std::shared_ptr<const order> examples = {};        // the order of the epoch's examples; null: not begun
    std::size_t count = 0, claimed = 0, finished = 0;  // its examples: all, taken by a thread, written
    bool beginning = false;                            // a thread is preparing it with the lock open
    std::exception_ptr failure = {};                   // the exception of the first example that has one
    std::size_t failed_at = 0;

    bool done() const { return examples && finished == count; }
    bool busy() const { return beginning || claimed != finished; }
  };

  loader_position after(loader_position p) const {
    return p.batch + 1 < batches_ ? loader_position{p.epoch, p.batch + 1} : loader_position{p.epoch + 1, 0};
  }
  slot* of(loader_position p) {
    for (slot& s : slots_) {
      if (s.holds && s.at == p) return &s;
    }
    return nullptr;
  }
  /// Returns whether the batch at `p` is among those that are made ahead.
  bool wanted(loader_position p) const {
    loader_position q = at_;
    for (std::size_t i = 0; i < ahead(); ++i, q = after(q)) {
      if (q == p) return true;
    }
    return false;
  }
  /// Returns how many batches are made ahead: one for each slot, except the one that is in use.
  std::size_t ahead() const {
    const std::size_t room = std::max<std::size_t>(slots_.size() - (in_use_ ? 1 : 0), 1);
    if (settings_.goes_on) return room;
    if (in_use_ && at_.batch == 0) return 0;  // the last batch of the epoch is in use
    return std::min<std::size_t>(room, batches_ - at_.batch);
  }

  /// Gives free slots to the next batches, as far as there are some.
  void want() {
    loader_position p = at_;
    bool given = false;
    for (std::size_t i = 0; i < ahead(); ++i, p = after(p)) {
      if (of(p)) continue;
      const auto free = std::ranges::find_if(
          slots_, [this](const slot& s) { return &s != in_use_ && !s.busy() && !(s.holds && wanted(s.at)); });
      if (free == slots_.end()) break;
      free->holds = given = true;
      free->at = p;
      free->examples = nullptr;
      free->failure = nullptr;
      free->count = free->claimed = free->finished = 0;
    }
    if (given) changed_.notify_all();
  }

  /// Returns the batch at `p` once it is made. While it waits, this thread makes pieces of it itself.
  slot& wait_for(loader_position p, std::unique_lock<std::mutex>& lock) {
    for (;;) {
      want();
      slot* s = of(p);
      if (s && s->done()) return *s;
      if (!s || !advance(*s, lock)) changed_.wait(lock);
    }
  }

  /// Makes a piece of a batch, with the lock open. Returns: false if no piece is left.
  bool advance(slot& s, std::unique_lock<std::mutex>& lock) {
    if (s.beginning) return false;
    if (!s.examples) {
      begin(s, lock);
    } else if (s.claimed < s.count) {
      write(s, lock);
    } else {
      return false;
    }
    changed_.notify_all();
    return true;
  }
  /// Finds the examples of a batch and makes room for them.
  void begin(slot& s, std::unique_lock<std::mutex>& lock) {
    s.beginning = true;
    const loader_position p = s.at;
    lock.unlock();
    std::shared_ptr<const order> examples;
    std::exception_ptr failure;
    std::size_t count = 0;
    try {
      examples = order_of(p.epoch);
      const auto full = static_cast<std::size_t>(settings_.batch);
      count = std::min(full, examples->size() - static_cast<std::size_t>(p.batch) * full);
      resize(s.batch, layout_, count);
    } catch (...) {
      failure = std::current_exception();
      examples = std::make_shared<const order>();
      count = 0;
    }
    lock.lock();
    s.beginning = false;
    s.examples = std::move(examples);
    s.count = count;
    s.failure = failure;
  }
  /// Writes some examples of a batch. There are several pieces for each thread, so that all of them finish at about the
  /// same time.
  void write(slot& s, std::unique_lock<std::mutex>& lock) {
    const std::size_t pieces = 4 * (static_cast<std::size_t>(settings_.threads) + 1), from = s.claimed;
    const std::size_t to = std::min(s.count, from + std::max<std::size_t>(s.count / pieces, 1));
    s.claimed = to;
    const loader_position p = s.at;
    const order& examples = *s.examples;
    lock.unlock();
    std::exception_ptr failure;
    std::size_t i = from;
    try {
      const std::size_t first = static_cast<std::size_t>(p.batch) * static_cast<std::size_t>(settings_.batch);
      for (const std::uint64_t epoch_seed = mix_seed(settings_.seed, ~p.epoch); i < to; ++i) {
        const std::size_t example = examples[first + i];
        example_spans spans = spans_of(s.batch, i);
        spans.draw = mix_seed(epoch_seed, example);
        source_.write(example, spans);
      }
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    s.finished += to - from;
    if (failure && (!s.failure || i < s.failed_at)) {
      s.failure = failure;
      s.failed_at = i;
    }
  }

  /// Returns the order of an epoch's examples. The orders of two epochs are kept, because batches of two may be made at
  /// once.
  std::shared_ptr<const order> order_of(std::uint64_t epoch) {
    const std::lock_guard lock{orders_mutex_};
    auto& [of, examples] = orders_[epoch % orders_.size()];
    if (!examples || of != epoch) {
      const auto size = static_cast<std::uint32_t>(source_.size());
      order all = settings_.shuffle ? permutation(size, settings_.seed, epoch) : order(size);
      if (!settings_.shuffle) std::iota(all.begin(), all.end(), 0U);
      examples = std::make_shared<const order>(std::move(all));
      of = epoch;
    }
    return examples;
  }

  /// Returns: the earliest of the next batches that has a piece left to make; null if none has.
  slot* with_work() {
    want();
    loader_position p = at_;
    for (std::size_t i = 0; i < ahead(); ++i, p = after(p)) {
      slot* s = of(p);
      if (s && !s->beginning && (!s->examples || s->claimed < s->count)) return s;
    }
    return nullptr;
  }
  void work(const std::stop_token& stop) {
    std::unique_lock lock{mutex_};
    slot* s = nullptr;
    while (changed_.wait(lock, stop, [&] { return (s = with_work()) != nullptr; }) && !stop.stop_requested()) {
      (void)advance(*s, lock);
    }
  }

  data_source source_;
  loader_settings settings_;
  example_layout layout_;
  std::uint64_t batches_ = 0;
  loader_position at_ = {};
  std::vector<slot> slots_;
  slot* in_use_ = nullptr;  // the batch that next() returned last
  std::array<std::pair<std::uint64_t, std::shared_ptr<const order>>, 2> orders_;
  std::mutex mutex_, orders_mutex_;
  std::condition_variable_any changed_;
  std::vector<std::jthread> workers_;  // declared last, so that threads stop before the members that they use go
};

}  // namespace comp::native
