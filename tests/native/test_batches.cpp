// SPDX-License-Identifier: Apache-2.0
// Batches on a Device: one that uploads them, one that turns bytes into values itself, and one that copies ahead give
// what the data set wrote, wherever a training goes on.
#include <doctest/doctest.h>

#include <array>
#include <comp_native/batch_feed.hpp>
#include <comp_native/model_builder.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <tuple>
#include <vector>

#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;
using namespace comp::native::testing;

namespace {

/// Turns bytes into values itself.
struct byte_device : reference::device {
  using reference::device::upload;
  tensor upload(std::span<const std::uint8_t> bytes, shape s, const tensor& of_bytes) {
    CHECK(of_bytes.shape() == shape{s[1], 256});
    const std::int64_t plane = elements(s) / s[0] / s[1];
    tensor result{s, comp::precision::fp32};
    for (std::int64_t i = 0; i < result.size(); ++i) {
      result[i] = of_bytes[256 * (i / plane % s[1]) + bytes[static_cast<std::size_t>(i)]];
    }
    return result;
  }
};

/// Copies ahead: what a copy brings is known when it has arrived, or been waited for.
struct copying_device : byte_device {
  struct arriving {
    std::span<const float> values = {};
    std::span<const std::int32_t> indices = {};
    std::span<const std::uint8_t> bytes = {};
  };
  int under_way = 0, copied = 0;
  bool full = false;

  std::pmr::memory_resource& staging_memory() { return memory_; }
  arriving copy_ahead(std::span<const float> from) { return begun({.values = from}); }
  arriving copy_ahead(std::span<const std::int32_t> from) { return begun({.indices = from}); }
  arriving copy_ahead(std::span<const std::uint8_t> from) { return begun({.bytes = from}); }
  void await_copies() { under_way = 0; }
  tensor arrived(arriving a, shape s) {
    comp::require<comp::out_of_memory>(!full, "no room (a test's): wait");
    return upload(a.values, std::move(s), comp::precision::fp32);
  }
  indices arrived_indices(arriving a, shape s) {
    CHECK(std::ssize(a.indices) == elements(s));
    return upload(a.indices, std::move(s));
  }
  tensor arrived(arriving a, shape s, const tensor& of_bytes) { return upload(a.bytes, std::move(s), of_bytes); }

 private:
  arriving begun(arriving a) {
    const auto* from = reinterpret_cast<const std::byte*>(a.values.data());
    if (!a.indices.empty()) from = reinterpret_cast<const std::byte*>(a.indices.data());
    if (!a.bytes.empty()) from = reinterpret_cast<const std::byte*>(a.bytes.data());
    CHECK((from >= staging_.data() && from < staging_.data() + staging_.size()));
    ++under_way, ++copied;
    return a;
  }
  std::array<std::byte, 1 << 16> staging_;
  std::pmr::monotonic_buffer_resource memory_{staging_.data(), staging_.size(), std::pmr::null_memory_resource()};
};
static_assert(CopiesAhead<copying_device> && !CopiesAhead<byte_device> && ReadsBytes<byte_device>);
static_assert(!ReadsBytes<reference::device>);

/// Eleven examples of any layout, whose parts tell which example, place and draw they are of. Nothing is written while
/// copies from staging memory are under way.
struct anything {
  example_layout parts = {};
  const copying_device* device = nullptr;
  std::size_t unknown = 99;  // an example with a label that no model has
  std::size_t unreadable = 99;
  std::size_t size() const { return 11; }
  example_layout layout() const { return parts; }
  void write(std::size_t i, const example_spans& to) const {
    if (device) CHECK(device->under_way == 0);
    if (i == unreadable) throw std::runtime_error{"unreadable"};
    const auto n = static_cast<std::int32_t>(i);
    for (std::size_t k = 0; k < to.values.size(); ++k) to.values[k] = static_cast<float>(i + 16 * k + (to.draw >> 50));
    for (std::size_t k = 0; k < to.bytes.size(); ++k) to.bytes[k] = static_cast<std::uint8_t>(37 * i + 11 * k);
    for (std::size_t k = 0; k < to.tokens.size(); ++k) to.tokens[k] = (n + static_cast<std::int32_t>(k)) % 9;
    if (parts.input_shape.size() == 2 && parts.input == input_kind::tokens) {  // with segments: 0, 1, and padding
      const auto row = to.tokens.subspan(to.tokens.size() / 2);
      for (std::size_t t = 0; t < row.size(); ++t) row[t] = t > i % 4 + 1 ? -1 : t > 1 ? 1 : 0;
    }
    for (std::size_t k = 0; k < to.labels.size(); ++k) to.labels[k] = (n + static_cast<std::int32_t>(k)) % 4 - 1;
    if (i == unknown) to.labels[0] = 5;
    for (std::size_t k = 0; k < to.targets.size(); ++k) to.targets[k] = static_cast<float>(100 * i + k);
  }
  std::string signature() const { return "anything"; }
};

struct kind_of_batch {
  const char* name;
  model net;
  example_layout parts;
};
std::vector<kind_of_batch> kinds() {
  const auto of = [](input_kind kind, shape input, auto build) {
    model_builder net{"net", kind, std::move(input)};
    build(net.input(), net);
    return net.finish();
  };
  const auto rows = [](value x, auto&) { x.linear("a", 3).cross_entropy_loss("loss"); };
  std::vector<float> table;
  for (int i = 0; i < 768; ++i) table.push_back(static_cast<float>(i * i));
  constexpr auto values = input_kind::values, tokens = input_kind::tokens;
  return {
      {"values", of(values, {4, 3, 2}, rows), {.input_shape = {3, 2}, .target_shape = {3}}},
      {"bytes", of(values, {4, 3, 2}, rows), {.input_shape = {3, 2}, .target_shape = {3}, .of_bytes = table}},
      {"targets",
       of(values, {4, 3}, [](value x, auto&) { x.linear("a", 2).mse_loss("loss"); }),
       {.input_shape = {3}, .target = values, .target_shape = {2}}},
      {"no targets for a GAN", small_gan(4), {.input_shape = {1, 2, 3}, .target = values, .target_shape = {2}}},
      {"no labels for a GAN", small_gan(4), {.input_shape = {1, 2, 3}}},
      {"tokens",
       of(tokens, {4, 5}, [](value x, auto&) { x.embedding("e", 9, 4).linear("a", 3).cross_entropy_loss("loss"); }),
       {.input = tokens, .input_shape = {5}, .target_shape = {5}}},
      {"segments",
       of(tokens, {4, 2, 5},
          [](value x, auto& net) {
            x.embedding("e", 9, 4)
                .add("sum", net.input().embedding("s", 2, 4, op::looked_up::segments))
                .linear("a", 3)
                .masked_columns("spans")
                .masked_columns("again")  // of another size, by the same numbers
                .cross_entropy_loss("loss");
          }),
       {.input = tokens, .input_shape = {2, 5}, .target_shape = {3}}},
  };
}

/// Batch `at` of the examples in the order of its epoch, four by four, against what the data set writes for each.
template <class D>
void require_batch(const device_batch<D>& got, const anything& data, const model& m, loader_position at) {
  const auto order = permutation(11, 7, at.epoch);
  const std::size_t first = 4 * at.batch, size = std::min<std::size_t>(4, 11 - first);
  const auto n = static_cast<std::int64_t>(size);
  const auto &input = data.parts.input_shape, &target = data.parts.target_shape;
  const auto inputs = static_cast<std::size_t>(elements(input)), outputs = static_cast<std::size_t>(elements(target));
  const bool bytes = !data.parts.of_bytes.empty(), tokens = m.input == input_kind::tokens;
  std::vector<double> values, targets, hidden;
  std::vector<std::int32_t> words, positions, segments, lengths, labels;
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t example = order[first + i];
    std::vector<float> x(bytes || tokens ? 0 : inputs), y(data.parts.target == input_kind::values ? outputs : 0);
    std::vector<std::uint8_t> b(bytes ? inputs : 0);
    std::vector<std::int32_t> t(tokens ? inputs : 0), l(y.empty() ? outputs : 0);
    data.write(example, {x, b, t, l, y, mix_seed(mix_seed(7, ~at.epoch), example)});
    values.insert(values.end(), x.begin(), x.end());
    for (std::size_t k = 0; k < b.size(); ++k) values.push_back(data.parts.of_bytes[256 * (k / 2) + b[k]]);
    targets.insert(targets.end(), y.begin(), y.end());
    labels.insert(labels.end(), l.begin(), l.end());
    for (std::int32_t k = 0; k < 5 && tokens; ++k)
      words.push_back(t[static_cast<std::size_t>(k)]), positions.push_back(k);
    if (!m.reads_segments()) continue;
    const auto length = static_cast<std::int32_t>(std::min<std::size_t>(example % 4 + 2, 5));
    lengths.push_back(length);
    for (std::size_t k = 5; k < 10; ++k) segments.push_back(std::max(t[k], 0));
    for (int k = 0; k < 15; ++k) hidden.push_back(k % 5 < length ? 0 : op::masked_columns::low);
  }
  REQUIRE(got.size == n);
  CHECK(got.number == 3 * at.epoch + at.batch);
  CHECK(got.judged == (labels.empty() ? n : std::ranges::count_if(labels, [](auto label) { return label >= 0; })));
  const auto same = [](const auto& t, const auto& wanted, const shape& s) {
    if (wanted.empty()) return t.shape().empty();
    if constexpr (requires { t.values(); })
      return t.values() == wanted && t.shape() == s;
    else
      return t.values == wanted && t.shape() == s;
  };
  if (!m.reads_labels()) labels.clear();
  if (!m.predicts_values()) targets.clear();
  CHECK(same(got.values, values, with_batch(n, input)));
  CHECK(same(got.targets, targets, with_batch(n, target)));
  CHECK(same(got.labels, labels, {std::ssize(labels)}));
  CHECK(same(got.tokens, words, {n, 5}));
  CHECK(same(got.positions, positions, {n, 5}));
  CHECK(same(got.segments, segments, {n, 5}));
  CHECK(same(got.lengths, lengths, {n}));
  CHECK(same(got.hidden, hidden, {n, 3, 5}));
}

template <class D>
void check_feed(const kind_of_batch& kind, int threads) {
  CAPTURE(kind.name);
  CAPTURE(threads);
  D device;
  anything data{kind.parts};
  if constexpr (CopiesAhead<D>) data.device = threads == 0 ? &device : nullptr;  // no thread that writes beside
  batch_feed<D> feed{device, kind.net, data, {.batch = 4, .seed = 7, .keep_last = true, .threads = threads}};
  data.device = nullptr;
  CHECK(feed.batches_per_epoch() == 3);
  random_stream draws{4, 0};
  loader_position at;
  for (int i = 0; i < 60; ++i) {
    switch (draws.below(5)) {
      case 0:
        at = {draws.below(3), draws.below(3)};
        feed.seek(at);
        break;
      case 1:
        feed.ahead();
        break;
      case 2:
        feed.rest();
        if constexpr (CopiesAhead<D>) CHECK(device.under_way == 0);
        break;
      default:
        require_batch<D>(feed.next(), data, kind.net, at);
        at = at.batch == 2 ? loader_position{at.epoch + 1, 0} : loader_position{at.epoch, at.batch + 1};
    }
    CHECK(feed.at() == at);
  }
}

}  // namespace

TEST_CASE("batches are what the data set wrote, in the epoch's order, on every kind of Device and behind every seek") {
  for (const kind_of_batch& kind : kinds()) {
    for (const int threads : {0, 2}) {
      check_feed<reference::device>(kind, threads);
      check_feed<byte_device>(kind, threads);
      check_feed<copying_device>(kind, threads);
    }
  }
}

TEST_CASE("a batch with room is filled in the memory that it has") {
  for (const kind_of_batch& kind : kinds()) {
    CAPTURE(kind.name);
    std::array<std::byte, 4096> room;
    std::pmr::monotonic_buffer_resource memory{room.data(), room.size(), std::pmr::null_memory_resource()};
    host_batch batch = batch_with_room(kind.parts, 4, &memory);
    const auto places = [&] {
      return std::tuple{static_cast<const void*>(batch.values.data()), static_cast<const void*>(batch.bytes.data()),
                        static_cast<const void*>(batch.tokens.data()), static_cast<const void*>(batch.labels.data()),
                        static_cast<const void*>(batch.targets.data())};
    };
    const auto before = places();
    resize(batch, kind.parts, 4);
    CHECK(places() == before);
  }
}

TEST_CASE("a batch is copied once, while the one before it is in use, and the one behind it is made by then") {
  copying_device device;
  const kind_of_batch kind = kinds()[0];
  batch_feed<copying_device> feed{device, kind.net, anything{kind.parts}, {.batch = 4}};
  for (int copied = 2; copied <= 6; copied += 2) {  // values and labels
    feed.rest();
    feed.rest();
    feed.ahead();
    CHECK(device.copied == copied);
    (void)feed.next();
    CHECK(device.copied == copied);
  }
  feed.rest();
  feed.seek(feed.at());  // what is there already is not copied again
  (void)feed.next();
  CHECK(device.copied == 8);
}

TEST_CASE("a batch that cannot be copied ahead is refused when it is asked for, and is still the next one") {
  copying_device device;
  const kind_of_batch kind = kinds()[0];
  const anything data{kind.parts};
  const auto make_feed = [&](std::size_t unknown) {
    return batch_feed<copying_device>{
        device, kind.net, anything{kind.parts, nullptr, unknown}, {.batch = 4, .seed = 7, .keep_last = true}};
  };
  auto feed = make_feed(permutation(11, 7, 0)[5]);  // of the second batch
  require_batch<copying_device>(feed.next(), data, kind.net, {});
  for (int times = 0; times < 2; ++times) {
    feed.rest();
    CHECK_THROWS_WITH_AS(
        feed.next(), "label 5 in the data (model \"net\" has 3, from 0): check the reader or the model", comp::error);
    CHECK(feed.at() == loader_position{0, 1});
  }
  feed.seek({0, 2});
  require_batch<copying_device>(feed.next(), data, kind.net, {0, 2});
  auto other = make_feed(99);
  other.rest();
  device.full = true;
  CHECK_THROWS_WITH_AS(other.next(), "no room (a test's): wait", comp::out_of_memory);
  device.full = false;
  CHECK(other.at() == loader_position{});
  require_batch<copying_device>(other.next(), data, kind.net, {});
  batch_feed<copying_device> third{
      device, kind.net, anything{kind.parts, nullptr, 99, 4}, {.batch = 4, .shuffle = false}};
  (void)third.next();
  CHECK_NOTHROW(third.ahead());  // in the middle of a step
  CHECK_THROWS_AS(third.next(), std::runtime_error);
  auto fourth = make_feed(99);
  (void)fourth.next();
  fourth.rest();
  CHECK_THROWS_AS(fourth.seek({0, 9}), comp::error);
  CHECK(fourth.at() == loader_position{0, 1});  // the batch that was ahead of the refused seek
  require_batch<copying_device>(fourth.next(), data, kind.net, {0, 1});
}
