// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <comp_native/loader.hpp>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include "support.hpp"

using namespace comp::native;
using native_models::image_data;
using native_models::token_data;

namespace {

/// Example i is the number i.
struct numbers {
  std::size_t count = 10;
  std::size_t fails_at = ~std::size_t{0};
  std::size_t size() const { return count; }
  example_layout layout() const { return {.input_shape = {2}}; }
  void write(std::size_t i, const example_spans& to) const {
    if (i >= fails_at) throw std::runtime_error{fmt::format("{} is unreadable", i)};
    to.values[0] = to.values[1] = static_cast<float>(i);
    to.labels[0] = static_cast<std::int32_t>(i);
  }
  std::string signature() const { return "numbers"; }
};

std::vector<std::int32_t> labels_of(loader& from, std::uint64_t batches) {
  std::vector<std::int32_t> all;
  for (std::uint64_t i = 0; i < batches; ++i) {
    const auto& batch = from.next();
    CHECK(batch.values.size() == 2 * batch.labels.size());
    for (std::size_t k = 0; k < batch.labels.size(); ++k) {
      CHECK(batch.values[2 * k] == static_cast<float>(batch.labels[k]));
    }
    all.insert(all.end(), batch.labels.begin(), batch.labels.end());
  }
  return all;
}

TEST_CASE("an epoch has every example once, in another order than the epoch before") {
  loader all{numbers{12}, {.batch = 4, .seed = 1}};
  auto first = labels_of(all, 3), second = labels_of(all, 3);
  const auto third = labels_of(all, 3);
  CHECK(all.at() == loader_position{3, 0});
  CHECK(first != second);
  CHECK(third != first);
  CHECK(third != second);
  std::ranges::sort(first);
  std::ranges::sort(second);
  CHECK(first == second);
  CHECK(first == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
}

TEST_CASE("the order follows from the seed, whoever makes the batches") {
  loader all{numbers{50}, {.batch = 7, .seed = 5, .keep_last = true}};
  const auto order = labels_of(all, 40);
  for (const int threads : {0, 2, 5}) {
    loader same{numbers{50}, {.batch = 7, .seed = 5, .keep_last = true, .threads = threads}};
    CHECK(order == labels_of(same, 40));
  }
  loader other{numbers{50}, {.batch = 7, .seed = 6, .keep_last = true}};
  CHECK(order != labels_of(other, 40));
}

TEST_CASE("without shuffling examples come as they are") {
  loader all{numbers{6}, {.batch = 3, .shuffle = false}};
  CHECK(labels_of(all, 4) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
}

TEST_CASE("a last batch that is not full is dropped, or kept where asked for") {
  loader dropped{numbers{10}, {.batch = 4, .shuffle = false}};
  CHECK(dropped.batches_per_epoch() == 2);
  CHECK(labels_of(dropped, 3) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3});
  loader kept{numbers{10}, {.batch = 4, .shuffle = false, .keep_last = true}};
  CHECK(kept.batches_per_epoch() == 3);
  CHECK(labels_of(kept, 4) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3});
}

TEST_CASE("a loader goes back to any position") {
  for (const int threads : {0, 1, 3}) {
    CAPTURE(threads);
    loader all{numbers{20}, {.batch = 5, .seed = 2, .threads = threads}};
    const auto order = labels_of(all, 12);
    random_stream draws{3, 0};
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t batch = draws.below(12), count = draws.below(4);
      all.seek({batch / 4, batch % 4});
      CHECK(all.at() == loader_position{batch / 4, batch % 4});
      if (draws.below(2) == 0) all.prepare();
      const auto again = labels_of(all, std::min(count, 12 - batch));
      CHECK(std::equal(again.begin(), again.end(), order.begin() + static_cast<std::ptrdiff_t>(batch) * 5));
    }
  }
  loader all{numbers{20}, {.batch = 5}};
  CHECK_THROWS_WITH_AS(all.seek({0, 4}),
                       "batch 4 of an epoch of 4 (it is past the end): restore a state of this trainer", comp::error);
}

TEST_CASE("a data set that throws is heard of by who asks for the batch, and can be asked again") {
  for (const int threads : {0, 1, 3}) {
    loader all{numbers{6, 4}, {.batch = 2, .shuffle = false, .threads = threads}};
    CHECK(labels_of(all, 2) == std::vector<std::int32_t>{0, 1, 2, 3});
    CHECK_THROWS_WITH(all.next(), "4 is unreadable");
    CHECK_FALSE(all.prepared());
    all.prepare();
    CHECK_FALSE(all.prepared());
    CHECK_THROWS_WITH(all.next(), "4 is unreadable");
    CHECK(all.at() == loader_position{0, 2});
    all.seek({1, 0});
    CHECK(labels_of(all, 1) == std::vector<std::int32_t>{0, 1});
  }
}

TEST_CASE("of several examples that throw the first is heard of, whichever thread ends first, and no failure is lost") {
  struct late : numbers {  // example 0 is written when a later one has thrown
    struct gate {
      std::mutex mutex;
      std::condition_variable changed;
      bool thrown = false;
    };
    std::shared_ptr<gate> at = std::make_shared<gate>();
    bool first_throws = false;
    void write(std::size_t i, const example_spans& to) const {
      std::unique_lock lock{at->mutex};
      if (i == 0) at->changed.wait(lock, [this] { return at->thrown; });
      if (i == 0 && first_throws) throw std::runtime_error{"0 is unreadable"};
      at->thrown = at->thrown || i == 12;
      at->changed.notify_all();
      numbers::write(i, to);
    }
  };
  for (const bool first_throws : {true, false}) {
    loader all{late{{16, 12}, std::make_shared<late::gate>(), first_throws},
               {.batch = 16, .shuffle = false, .threads = 2}};
    CHECK_THROWS_WITH(all.next(), first_throws ? "0 is unreadable" : "12 is unreadable");
  }
}

TEST_CASE("a failure to begin a batch is passed on from whichever thread begins it, and the batch can be asked again") {
  struct shrinking : numbers {  // its size is asked once more for the order of each epoch
    std::shared_ptr<std::atomic<bool>> broken = std::make_shared<std::atomic<bool>>(false);
    std::size_t size() const {
      if (*broken) throw std::runtime_error{"the index is gone"};
      return numbers::size();
    }
  };
  for (const int threads : {0, 1, 3}) {
    const shrinking data{{8}};
    loader all{data, {.batch = 4, .shuffle = false, .threads = threads}};
    CHECK(labels_of(all, 1) == std::vector<std::int32_t>{0, 1, 2, 3});
    *data.broken = true;
    all.seek({7, 1});
    for (int times = 0; times < 2; ++times) CHECK_THROWS_WITH(all.next(), "the index is gone");
    CHECK(all.at() == loader_position{7, 1});
    *data.broken = false;
    if (threads > 0) continue;  // which may have failed once more meanwhile
    CHECK(labels_of(all, 1) == std::vector<std::int32_t>{4, 5, 6, 7});
  }
}

TEST_CASE("data sets that fill no batch are refused") {
  CHECK_THROWS_WITH_AS((loader{numbers{0}, {.batch = 4}}),
                       "the data set has 0 examples (nothing to train on): check the reader and its path", comp::error);
  CHECK_THROWS_WITH_AS(
      (loader{numbers{3}, {.batch = 4}}),
      "batches of 4 examples of a data set of 3 (none is full): make the batch smaller or the data set larger",
      comp::error);
  struct of_a_table : numbers {
    std::size_t values;
    example_layout layout() const { return {.input_shape = {2}, .of_bytes = std::vector<float>(values)}; }
  };
  CHECK_THROWS_WITH_AS((loader{of_a_table{{}, 511}, {.batch = 1}}),
                       "values of 511 bytes for 2 channels of values (256 for each are needed): check the layout",
                       comp::error);
  CHECK_THROWS_WITH_AS((loader{of_a_table{{}, 768}, {.batch = 1}}),  // one of three channels
                       "values of 768 bytes for 2 channels of values (256 for each are needed): check the layout",
                       comp::error);
  struct tokens_of_bytes : numbers {
    example_layout layout() const {
      return {.input = input_kind::tokens, .input_shape = {1}, .of_bytes = std::vector<float>(256)};
    }
  };
  CHECK_THROWS_WITH_AS((loader{tokens_of_bytes{}, {.batch = 1}}),
                       "values of 256 bytes for 1 channels of tokens (256 for each are needed): check the layout",
                       comp::error);
  CHECK_THROWS_WITH_AS((loader{numbers{3}, {.batch = 1, .threads = -1}}),
                       "-1 threads to make batches (0 is the least): change it", comp::error);
  CHECK_THROWS_WITH_AS((loader{numbers{3}, {.batch = 0}}),
                       "batches of 0 examples (at least one): change the batch size", comp::error);
}

TEST_CASE("a permutation has every number, whatever the seed") {
  for (const std::uint64_t seed : {0, 1, 99}) {
    auto order = permutation(1000, seed, 3);
    CHECK(order == permutation(1000, seed, 3));
    CHECK(order != permutation(1000, seed, 4));
    std::ranges::sort(order);
    for (std::uint32_t i = 0; i < 1000; ++i) REQUIRE(order[i] == i);
  }
  // Each number is equally likely in each place: 6 orders of 3 numbers, 6000 seeds.
  std::vector<int> counts(6);
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    const auto p = permutation(3, seed, 0);
    ++counts[2 * p[0] + (p[1] > p[2])];
  }
  for (const int count : counts) CHECK(std::abs(count - 1000) < 150);  // five deviations
}

/// How often which example was written, by whom, and how long one takes. None goes on before `together` threads have
/// written at once.
struct watched {
  struct record {
    std::mutex mutex;
    std::map<std::size_t, int> written;
    std::set<std::thread::id> by;
    std::atomic<int> now = 0, most = 0;
  };
  std::shared_ptr<record> notes = std::make_shared<record>();
  std::chrono::milliseconds each{0};
  int together = 1;
  std::size_t size() const { return 64; }
  example_layout layout() const { return {.input_shape = {1}}; }
  void write(std::size_t i, const example_spans& to) const {
    const int now = ++notes->now;
    if (each.count() > 0) std::this_thread::sleep_for(each);
    {
      const std::lock_guard lock{notes->mutex};
      ++notes->written[i];
      notes->by.insert(std::this_thread::get_id());
      notes->most = std::max<int>(notes->most, now);
    }
    notes->most.notify_all();
    for (int most = notes->most; most < together; most = notes->most) notes->most.wait(most);
    --notes->now;
    to.values[0] = static_cast<float>(to.draw >> 40);
    to.labels[0] = static_cast<std::int32_t>(i);
  }
  std::string signature() const { return "watched"; }
};
TEST_CASE("several threads make one batch, and the next ones while it is in use") {
  const watched data{.together = 2};
  loader all{data, {.batch = 16, .shuffle = false, .threads = 3}};
  (void)all.next();
  all.prepare();
  CHECK(all.prepared());
  CHECK(data.notes->by.size() > 1);
  CHECK(data.notes->written.size() == 48);  // the batch in use and two more
  (void)all.next();
  all.prepare();
  CHECK(data.notes->written.size() == 64);
}

/// Holds the loader's thread once, in size() or in write(), until it is let go.
struct held_back : numbers {
  struct gate {
    std::mutex mutex;
    std::condition_variable changed;
    const std::thread::id maker = std::this_thread::get_id();
    bool reached = false, open = false, left = false;
    void hold() {
      std::unique_lock lock{mutex};
      if (std::this_thread::get_id() == maker || std::exchange(reached, true)) return;
      changed.notify_all();
      changed.wait(lock, [this] { return open; });
    }
    void set(bool& what) {
      const std::lock_guard lock{mutex};
      what = true;
      changed.notify_all();
    }
    void await(const bool& what) {
      std::unique_lock lock{mutex};
      changed.wait(lock, [&what] { return what; });
    }
  };
  std::shared_ptr<gate> at = std::make_shared<gate>();
  bool in_size = false;
  std::size_t size() const {
    if (in_size) at->hold();
    return numbers::size();
  }
  void write(std::size_t i, const example_spans& to) const {
    if (!in_size) at->hold();
    numbers::write(i, to);
    if (std::this_thread::get_id() != at->maker) at->set(at->left);
  }
};
TEST_CASE("a batch is not made where a thread still makes one that nobody wants any more") {
  const loader_settings settings{.batch = 4, .seed = 3};
  loader straight{numbers{40}, settings};
  straight.seek({1, 5});
  const auto expected = labels_of(straight, 1);
  for (const bool in_size : {false, true}) {
    CAPTURE(in_size);
    const held_back data{{40}, std::make_shared<held_back::gate>(), in_size};
    loader all{data, settings};
    data.at->await(data.at->reached);  // its thread is at the first batch
    CHECK_FALSE(all.prepared());
    all.seek({1, 5});
    if (in_size) data.at->set(data.at->open);  // the orders of epochs are made one at a time
    const auto& batch = all.next();
    data.at->set(data.at->open);
    data.at->await(data.at->left);
    CHECK(std::vector<std::int32_t>(batch.labels.begin(), batch.labels.end()) == expected);
  }
}

TEST_CASE("batches lie in the memory that was asked for, taken by who makes the loader") {
  struct counting final : std::pmr::memory_resource {
    const std::thread::id maker = std::this_thread::get_id();
    std::size_t taken = 0, given_back = 0;
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      CHECK(std::this_thread::get_id() == maker);
      taken += bytes;
      return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
      given_back += bytes;
      std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
  } memory;
  {
    loader all{numbers{10}, {.batch = 4, .keep_last = true, .threads = 2, .memory = &memory}};
    CHECK(memory.taken == 3 * 4 * 3 * sizeof(float));  // three batches of four examples of two values and a label
    CHECK(all.next().values.get_allocator().resource() == &memory);
    (void)labels_of(all, 20);
    CHECK(memory.taken == 3 * 4 * 3 * sizeof(float));
  }
  CHECK(memory.given_back == memory.taken);
}

TEST_CASE("what is ahead is used where a restored state comes back to it, and nothing is made twice") {
  const watched data;
  loader all{data, {.batch = 16, .shuffle = false, .threads = 1}};
  for (int i = 0; i < 5; ++i) {
    all.seek({0, 0});
    CHECK(all.next().labels[0] == 0);
    all.prepare();
  }
  for (const auto& [example, times] : data.notes->written) CHECK(times == 1);
}

TEST_CASE("a loader that does not go on makes nothing of the next epoch, until it is asked for") {
  const watched data;
  const auto written = [&] {  // a moment later: threads would have begun
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    const std::lock_guard lock{data.notes->mutex};
    int all = 0;
    for (const auto& [example, times] : data.notes->written) all += times;
    return all;
  };
  for (const int threads : {0, 1, 3}) {
    CAPTURE(threads);
    data.notes->written.clear();
    loader all{data, {.batch = 24, .shuffle = false, .keep_last = true, .goes_on = false, .threads = threads}};
    for (int epoch = 1; epoch <= 3; ++epoch) {
      if (epoch > 2) all.seek({});  // or straight on
      for (std::int32_t first = 0; first < 64; first += 24) {
        CHECK(all.next().labels[0] == first);
        all.prepare();
      }
      CHECK(written() == 64 * epoch);
    }
  }
}

TEST_CASE("a loader ends in the middle of a batch") {
  const watched data{.each = std::chrono::milliseconds{10}};
  { const loader never_asked{data, {.batch = 32, .threads = 2}}; }
  {
    loader asked{data, {.batch = 32, .threads = 2}};
    (void)asked.next();
  }
  CHECK(data.notes->written.size() < 64);
}

TEST_CASE("what is drawn for an example depends on seed, epoch and example alone") {
  const auto draws = [](std::uint64_t seed, int threads, std::int64_t batch, std::uint64_t epoch, bool shuffle = true) {
    loader all{watched{}, {.batch = batch, .seed = seed, .shuffle = shuffle, .threads = threads}};
    all.seek({epoch, 0});
    std::map<std::int32_t, float> of;
    while (all.at().epoch == epoch) {
      const auto& got = all.next();
      for (std::size_t i = 0; i < got.labels.size(); ++i) of[got.labels[i]] = got.values[i];
    }
    return of;
  };
  const auto first = draws(1, 0, 16, 2);
  CHECK(first.size() == 64);
  CHECK(first == draws(1, 3, 16, 2));
  CHECK(first == draws(1, 2, 4, 2));
  CHECK(first == draws(1, 1, 16, 2, false));
  CHECK(first != draws(2, 0, 16, 2));
  CHECK(first != draws(1, 0, 16, 3));
  CHECK(first.at(0) != first.at(1));
}

TEST_CASE("images are shifted and flipped as drawn, and as they are without") {
  std::vector<std::uint8_t> pixels(2 * 3 * 4);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{1});
  const image_data plain{{2, 3, 4}, pixels, {0}};
  const auto written = [](const image_data& data, std::uint64_t draw) {
    std::vector<std::uint8_t> to(2 * 3 * 4, 99);
    std::int32_t label = 0;
    data.write(0, {.bytes = to, .labels = {&label, 1}, .draw = draw});
    return to;
  };
  const image_data random = plain.augmented({.shift = 5, .flip = true});
  std::set<std::vector<std::uint8_t>> images;
  for (std::uint64_t draw = 0; draw < 3000; ++draw) {
    const auto got = written(random, draw);
    const auto down = static_cast<std::int64_t>(mix_seed(draw, 0) % 11) - 5;
    const auto right = static_cast<std::int64_t>(mix_seed(draw, 1) % 11) - 5;
    const bool flipped = mix_seed(draw, 2) % 2 == 1;
    for (std::int64_t c = 0; c < 2; ++c) {
      for (std::int64_t y = 0; y < 3; ++y) {
        for (std::int64_t x = 0; x < 4; ++x) {
          const std::int64_t from_y = y - down, from_x = (flipped ? 3 - x : x) - right;
          const bool inside = from_y >= 0 && from_y < 3 && from_x >= 0 && from_x < 4;
          const int want = inside ? pixels[static_cast<std::size_t>((c * 3 + from_y) * 4 + from_x)] : 0;
          REQUIRE(got[static_cast<std::size_t>((c * 3 + y) * 4 + x)] == want);
        }
      }
    }
    images.insert(got);
  }
  CHECK(images.size() > 70);  // 7 x 5 places inside, two ways each, and nothing
  CHECK(written(plain, 7) == pixels);
  CHECK(random.signature() != plain.signature());
  CHECK_THROWS_WITH_AS((void)plain.augmented({.shift = -1}),
                       "images shifted by -1 pixels at most (it must not be negative): change it", comp::error);
}

TEST_CASE("images are normalised by channel") {
  const image_data images{{2, 1, 2}, {0, 255, 51, 102}, {3}, {0.5F, 0.2F}, {0.5F, 0.4F}};
  loader all{images, {.batch = 1}};
  const auto& batch = all.next();
  CHECK(values_of(batch.bytes, {1, 2, 1, 2}, images.layout().of_bytes) == std::vector<float>{-1, 1, 0, 0.5F});
  CHECK(batch.values.empty());
  CHECK(batch.labels == std::pmr::vector<std::int32_t>{3});
  const auto same_with = [](std::uint8_t pixel, float mean) {
    return image_data{{1, 1, 1}, {pixel}, {0}, {mean}}.signature();
  };
  CHECK(same_with(1, 0.5F) == same_with(1, 0.5F));
  CHECK(same_with(1, 0.5F) != same_with(2, 0.5F));
  CHECK(same_with(1, 0.5F) != same_with(1, 0.4F));
  CHECK_THROWS_WITH_AS((image_data{{2, 1, 2}, {0, 1, 2}, {3}}),
                       "3 pixels for 1 images of (2,1,2) (they must agree): check the reader", comp::error);
  CHECK_THROWS_WITH_AS((image_data{{4}, {0}, {3}}),
                       "images of shape (4) (it must be (C,H,W), all positive): give the shape of one image",
                       comp::error);
  CHECK_THROWS_AS((image_data{{1, 1, 1}, {0}, {3}, {}, {0.0F}}), comp::error);
}

TEST_CASE("the label of a token is the next one") {
  loader all{token_data{{1, 2, 3, 4, 5, 6, 7}, 3}, {.batch = 2, .shuffle = false}};
  const auto& batch = all.next();
  CHECK(batch.tokens == std::pmr::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  CHECK(batch.labels == std::pmr::vector<std::int32_t>{2, 3, 4, 5, 6, 7});
  CHECK(token_data{{1, 2, 3, 4, 5, 6}, 3}.size() == 1);
  CHECK(token_data{{1, 2, 3, 4, 5, 6}, 3, 1}.size() == 3);
  CHECK_THROWS_WITH_AS(
      (token_data{{1, 2, 3}, 3}),
      "3 tokens for windows of 3 and the next (at least one window): use more text or a shorter context", comp::error);
  CHECK_THROWS_AS((token_data{{1, -2, 3}, 2}), comp::error);
  CHECK_THROWS_AS((token_data{{1, 2, 3}, 0}), comp::error);
}

TEST_CASE("a hash for signatures is of what the numbers are, parts of one and signs too") {
  std::vector<std::uint64_t> hashes;
  for (const float x : {0.25F, -0.25F, 0.75F, 0.0F}) hashes.push_back(hash_of<float>(std::vector{1.0F, x}));
  std::ranges::sort(hashes);
  CHECK(std::ranges::adjacent_find(hashes) == hashes.end());
  CHECK(hash_of<float>(std::vector{1.0F, 0.25F}) == hash_of<float>(std::vector{1.0F, 0.25F}));
  CHECK(hash_of<std::int32_t>(std::vector{1, -2}) != hash_of<std::int32_t>(std::vector{1, 2}));
}

struct without_size : numbers {
  void size() const = delete;
};
struct writes_elsewhere : numbers {
  void write(std::size_t, float*) const;
};
struct without_signature : numbers {
  int signature() const { return 1; }
};
}  // namespace
static_assert(Dataset<numbers> && Dataset<image_data> && Dataset<token_data>);
static_assert(!Dataset<without_size> && !Dataset<writes_elsewhere> && !Dataset<without_signature>);
