// SPDX-License-Identifier: Apache-2.0
// Makes a BatchSource of a loader that only goes forward: of torch::data::DataLoader, or of a function of the user's
// own.
//   auto batches = comp::libtorch::replayed(std::move(loader));
// Batches that a saved state may need again are kept in memory, as shared tensors without a copy. They are given again
// in the same order, so even what the loader shuffles or augments is the same for each candidate. What it drew for them
// from LibTorch's generator is passed over then, so that the step draws as it would behind the loader. They are dropped
// with the last state that needs them. A search keeps up to one epoch of batches, and those of its races. If the data
// fit a function of an index, data_order.hpp keeps nothing.
#pragma once

#include <torch/data/dataloader/base.h>
#include <torch/data/example.h>

#include <comp/core/error.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <comp_libtorch/train/data_order.hpp>
#include <concepts>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::libtorch {

namespace detail {
/// A pair, a tuple.
template <class T>
concept several = requires {
  std::tuple_size<T>::value;
}
&&!std::is_trivially_copyable_v<T>;
}  // namespace detail

/// Returns: the bytes of a batch's tensors. A user's own class has such a function of its own, beside it.
inline std::int64_t bytes_of(const at::Tensor& t) { return t.defined() ? static_cast<std::int64_t>(t.nbytes()) : 0; }
/// Of an index, say.
template <class T>
requires std::is_trivially_copyable_v<T> std::int64_t bytes_of(const T& /*number*/) { return sizeof(T); }
template <detail::several T>
std::int64_t bytes_of(const T& all);
template <class T>
std::int64_t bytes_of(const std::vector<T>& all);
template <class D, class T>
std::int64_t bytes_of(const torch::data::Example<D, T>& e) {
  if constexpr (std::is_same_v<T, torch::data::example::NoTarget>) {
    return bytes_of(e.data);
  } else {
    return bytes_of(e.data) + bytes_of(e.target);
  }
}
template <class T>
std::int64_t bytes_of(const std::vector<T>& all) {
  std::int64_t sum = 0;
  for (const T& one : all) sum += bytes_of(one);
  return sum;
}
template <detail::several T>
std::int64_t bytes_of(const T& all) {
  return std::apply([](const auto&... each) { return (bytes_of(each) + ... + std::int64_t{0}); }, all);
}

/// Returns: how often a batch's tensors were written in place. Of a user's own class, also one inside a batch, this is
/// known only if there is such a function beside it.
inline std::uint64_t writes_of(const at::Tensor& t) {
  return t.defined() ? detail::version(*t.unsafeGetTensorImpl()) : 0;
}
template <class D, class T>
std::uint64_t writes_of(const torch::data::Example<D, T>& e);
template <detail::several T>
std::uint64_t writes_of(const T& all);
template <class T>
std::uint64_t writes_of(const std::vector<T>& all);

namespace detail {
/// Returns: writes_of(one); 0 for a class that has none.
template <class T>
std::uint64_t known_writes(const T& one) {
  if constexpr (requires { writes_of(one); }) {
    return writes_of(one);
  } else {
    return 0;
  }
}
}  // namespace detail

template <class D, class T>
std::uint64_t writes_of(const torch::data::Example<D, T>& e) {
  if constexpr (std::is_same_v<T, torch::data::example::NoTarget>) {
    return detail::known_writes(e.data);
  } else {
    return detail::known_writes(e.data) + detail::known_writes(e.target);
  }
}
template <class T>
std::uint64_t writes_of(const std::vector<T>& all) {
  std::uint64_t sum = 0;
  for (const T& one : all) sum += detail::known_writes(one);
  return sum;
}
template <detail::several T>
std::uint64_t writes_of(const T& all) {
  return std::apply([](const auto&... each) { return (detail::known_writes(each) + ... + std::uint64_t{0}); }, all);
}

struct replay_options {
  std::int64_t limit_bytes = std::int64_t{4} << 30;  // of kept batches, at most
  std::int64_t read_ahead = 10'000;                  // batches at most that are read to find out how many an epoch has
  std::string about = "loader";                      // for signatures: data, batch size, seed
};

template <class Batch>
class replayed_batches {
 public:
  using batch_type = Batch;
  /// A place in the stream of batches; while it exists, the batches from there on are kept.
  struct position_type {
    std::shared_ptr<const std::uint64_t> number = {};
    std::int64_t in_epoch = 0;  // batches of the epoch before it
  };
  using puller = std::function<std::optional<Batch>()>;

  /// `pull` gives the next batch, or nothing at the end of each epoch. The call after that begins the next epoch.
  replayed_batches(puller pull, replay_options options) : pull_{std::move(pull)}, options_{std::move(options)} {}

  /// Throws: `settings_error` for a batch that is given again and was written since the first time.
  std::optional<Batch> next() {
    drop_unneeded();
    if (next_ < first_ + kept_.size()) {
      const kept& again = kept_[next_++ - first_];
      require<settings_error>(
          writes_to(again.batch) == again.writes,
          "batch {} was written in place since it was given (plans are compared on the same batches, and it now holds "
          "other values): let the step write to a copy, and the loader give each batch memory of its own",
          in_epoch_);
      if (again.drawn && again.drawn->before == generator_states::save(at::kCPU)) again.drawn->after.restore(at::kCPU);
      count(again.batch.has_value());
      return again.batch;
    }
    const bool keeps = first_needed() <= next_;
    const generator_states before = keeps ? generator_states::save(at::kCPU) : generator_states{};
    std::optional<Batch> batch = pull_();
    if (keeps) {
      keep(batch, before);
    } else {
      first_ = next_ + 1;
    }
    ++next_;
    count(batch.has_value());
    return batch;
  }

  void begin_epoch() {
    if (in_epoch_ == 0) return;
    while (next()) continue;
  }

  /// Returns: the batches of the last epoch that ended. If none has ended, the rest of this one is read ahead and kept,
  /// since it is trained next. Returns 0 if that would take more than half of replay_options::limit_bytes, or more
  /// batches than replay_options::read_ahead, because the data may have no end.
  std::int64_t batches_per_epoch() {
    if (last_epoch_ > 0 || too_large_) return last_epoch_;
    const position_type here = position();
    for (std::int64_t read = 0; next() && bytes_ <= options_.limit_bytes / 2; ++read) {
      if (read == options_.read_ahead) break;
    }
    too_large_ = last_epoch_ == 0;
    seek(here);
    return last_epoch_;
  }

  position_type position() {
    drop_unneeded();
    auto number = std::make_shared<const std::uint64_t>(next_);
    marks_.push_back(number);
    return {std::move(number), in_epoch_};
  }

  /// Throws: `error` if the batches since then took more than the limit.
  void seek(const position_type& to) {
    require<error>(
        to.number != nullptr && *to.number >= first_,
        "batches since the saved state are no longer kept (they were more than {} bytes, and this loader cannot "
        "go back): raise {}",
        options_.limit_bytes, by_language("replay_options::limit_bytes, or use indexed_batches", "keep_bytes"));
    next_ = *to.number;
    in_epoch_ = to.in_epoch;
  }

  std::int64_t kept_bytes() const { return bytes_; }
  std::string signature() const { return options_.about; }

 private:
  void count(bool is_batch) {
    if (!is_batch) last_epoch_ = in_epoch_;
    in_epoch_ = is_batch ? in_epoch_ + 1 : 0;
  }

  struct kept {
    struct generators {
      generator_states before, after;
    };
    std::optional<Batch> batch;
    std::uint64_t writes;
    std::optional<generators> drawn = {};  // if the loader drew from LibTorch's generator
  };
  static std::uint64_t writes_to(const std::optional<Batch>& batch) { return batch ? detail::known_writes(*batch) : 0; }

  void keep(const std::optional<Batch>& batch, const generator_states& before) {
    kept_.push_back({batch, writes_to(batch)});
    if (const auto after = generator_states::save(at::kCPU); after != before) kept_.back().drawn = {before, after};
    if (batch) bytes_ += bytes_of(*batch);
    if (bytes_ <= options_.limit_bytes) return;
    first_ = next_ + 1;  // no state from before can be restored any more; training itself goes on
    kept_.clear();
    bytes_ = 0;
  }

  /// Returns: the number of the first batch that a state may ask for again.
  std::uint64_t first_needed() const {
    std::uint64_t first = ~std::uint64_t{0};
    for (const auto& mark : marks_) {
      if (const auto p = mark.lock(); p && *p >= first_) first = std::min(first, *p);
    }
    return first;
  }

  void drop_unneeded() {
    std::erase_if(marks_, [](const auto& mark) { return mark.expired(); });
    const std::uint64_t needed = std::min(first_needed(), next_);
    while (first_ < needed && !kept_.empty()) {
      if (kept_.front().batch) bytes_ -= bytes_of(*kept_.front().batch);
      kept_.pop_front();
      ++first_;
    }
  }

  puller pull_;
  replay_options options_;
  std::deque<kept> kept_;               // from number first_ on; nothing: an epoch's end
  std::uint64_t first_ = 0, next_ = 0;  // numbers in the stream of batches and ends
  std::int64_t bytes_ = 0;
  std::int64_t in_epoch_ = 0, last_epoch_ = 0;  // batches of this epoch so far, of the last that ended (0: none)
  bool too_large_ = false;                      // the epoch is too large to be read ahead
  std::vector<std::weak_ptr<const std::uint64_t>> marks_;  // places of saved states
};

/// Takes batches from a function. It returns nothing at the end of an epoch, and its next call begins another.
template <class F>
requires std::invocable<F&>
auto replayed(F pull, replay_options options = {}) {
  using batch = typename std::invoke_result_t<F&>::value_type;
  return replayed_batches<batch>{std::move(pull), std::move(options)};
}

/// Takes batches from a torch::data::DataLoader.
template <class Loader>
requires requires(Loader& l) {
  typename Loader::BatchType;
  l.begin() != l.end();
}
auto replayed(std::unique_ptr<Loader> loader, replay_options options = {}) {
  using batch = typename Loader::BatchType;
  using iterator = decltype(loader->begin());
  struct stream {
    std::unique_ptr<Loader> loader;
    std::optional<iterator> at = {};
  };
  // The iterator loads ahead when it is advanced, so it is advanced only when the next batch is asked for.
  auto from = std::make_shared<stream>(stream{std::move(loader)});
  const auto pull = [from]() -> std::optional<batch> {
    if (from->at) {
      ++*from->at;
    } else {
      from->at.emplace(from->loader->begin());
    }
    if (*from->at != from->loader->end()) return **from->at;
    from->at.reset();
    return std::nullopt;
  };
  return replayed_batches<batch>{pull, std::move(options)};
}

}  // namespace comp::libtorch
