// SPDX-License-Identifier: Apache-2.0
// Batches that are copied while the step before computes: beside it, in time, and the same ones.
#include <atomic>
#include <comp_cuda/comp_cuda.hpp>
#include <comp_native/model_builder.hpp>
#include <comp_native/trainer.hpp>
#include <memory>

#include "../native/support.hpp"
#include "fresh.hpp"

namespace comp::cuda::test {
namespace {

using namespace comp::native;
using namespace comp::native::testing;
using comp::sample;

struct copying_device : cuda::device {
  explicit copying_device(std::int64_t pinned_limit = 1 << 20)
      : cuda::device{{.measure_algorithms = false, .pinned_limit = pinned_limit}} {}
};
/// Copies nothing ahead: each step uploads its own batch.
struct device_that_waits : copying_device {
  void await_copies() = delete;
};
static_assert(CopiesAhead<copying_device> && !CopiesAhead<device_that_waits> && ReadsBytes<device_that_waits>);

/// Notes when copies begin. Each step waits until the loader's thread has begun the batch after the next one: by then
/// the next one is made, since one thread makes them in order.
struct watched_device : copying_device {
  std::shared_ptr<std::atomic<int>> written = std::make_shared<std::atomic<int>>(0);  // examples, 4 in a batch
  int beside_work = 0, alone = 0;                                                     // copies of a batch's images

  arriving copy_ahead(std::span<const std::uint8_t> from) {
    const cudaStream_t compute = shared().stream().get();
    (compute->done < compute->given ? beside_work : alone) += 1;
    CHECK(simt::use_of_pinned(from.data(), from.size()));
    return copying_device::copy_ahead(from);
  }
  template <class T>
  arriving copy_ahead(std::span<const T> from) {
    return copying_device::copy_ahead(from);
  }
  tensor cross_entropy_backward(const saved& s, const indices& target, double scale) {
    await_next_batch();
    return copying_device::cross_entropy_backward(s, target, scale);
  }
  void replay(captured_work& work, std::uint64_t draws, double* loss) {
    await_next_batch();
    copying_device::replay(work, draws, loss);
  }

 private:
  void await_next_batch() const {
    const int of_next = 4 * (beside_work + alone + 1);
    for (int now = *written; now <= of_next; now = *written) written->wait(now);
  }
};
/// Counts examples.
struct counted_images {
  image_data images = bars({1, 8, 8}, 4, 22, 1);
  std::shared_ptr<std::atomic<int>> written = std::make_shared<std::atomic<int>>(0);
  std::size_t size() const { return images.size(); }
  example_layout layout() const { return images.layout(); }
  void write(std::size_t i, const example_spans& to) const {
    images.write(i, to);
    ++*written;
    written->notify_one();
  }
  std::string signature() const { return "counted"; }
};

model one_convolution() {
  model_builder net{"small", input_kind::values, {4, 1, 8, 8}};
  net.input()
      .conv2d("conv", 3, {.padding = 1})
      .relu("relu")
      .flatten("flatten")
      .linear("head", 4)
      .cross_entropy_loss("loss");
  return net.finish();
}

model of_tokens() {
  model_builder net{"tokens", input_kind::tokens, {2, 8}};
  const value token = net.input().embedding("token", 7, 8),
              at = net.input().embedding("at", 8, 8, op::looked_up::positions);
  token.add("sum", at).linear("head", 7).cross_entropy_loss("loss");
  return net.finish();
}

/// What two epochs with a validation and a way back between them give.
template <class D>
std::vector<std::vector<double>> curves(D& device, const model& m, const data_source& data, const training& settings) {
  trainer<D> t{device, m, data, data, settings};
  std::vector<std::vector<double>> got{t.run_epoch().curve, {t.validate()}, t.run_batch().curve};
  const auto saved = t.save();
  got.push_back(t.run_batch().curve);
  got.push_back(t.run_epoch([](const sample& so_far) { return so_far.batches == 2; }).curve);
  t.restore(saved);
  CHECK(t.save().position == saved.position);
  CHECK(t.run_batch().curve == got[3]);
  CHECK(t.save().position.batch == saved.position.batch + static_cast<std::uint64_t>(settings.scaling.micro_batches));
  got.push_back(t.run_epoch().curve);
  return got;
}

}  // namespace

TEST_CASE_FIXTURE(fresh_for_training, "the next batch's copy begins while the compute stream is busy") {
  for (const capture_mode captured : {capture_mode::off, capture_mode::on}) {
    watched_device device;
    trainer<watched_device> t{device,
                              one_convolution(),
                              counted_images{.written = device.written},
                              bars({1, 8, 8}, 4, 4, 2),
                              {.loading_threads = 1, .captured = captured}};
    CHECK(t.batches_per_epoch() == 5);
    device.synchronize();
    CHECK(t.run_epoch().ok());
    CHECK(device.alone == 1);        // the first batch, before the clock starts
    CHECK(device.beside_work == 5);  // the four after it, and the first of the next epoch
    CHECK(t.save().position == loader_position{1, 0});
  }
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "batches that are copied ahead are those that each step would upload, in every way that a step has") {
  const auto check = [](const model& m, const data_source& data, const training& settings) {
    device_that_waits waits;
    const auto want = curves(waits, m, data, settings);
    for (const int threads : {0, 1, 3}) {
      CAPTURE(threads);
      training with = settings;
      with.loading_threads = threads;
      copying_device device;
      CHECK(curves(device, m, data, with) == want);
      copying_device nothing_pinned{0};
      CHECK(curves(nothing_pinned, m, data, with) == want);
      void* const staged = nothing_pinned.staging_memory().allocate(64);
      CHECK_FALSE(simt::use_of_pinned(staged, 64));
      nothing_pinned.staging_memory().deallocate(staged, 64);
    }
  };
  const image_data images = bars({1, 8, 8}, 4, 22, 1);
  SUBCASE("images as bytes, the last batch being short") {
    check(one_convolution(), images.augmented({.shift = 2, .flip = true}), {.keep_last = true});
  }
  SUBCASE("captured, of several micro-batches") {
    check(one_convolution(), images, {.scaling = {.micro_batches = 2}, .captured = capture_mode::on});
  }
  SUBCASE("values and targets") {
    model_builder net{"values", input_kind::values, {8, 6}};
    net.input().linear("in", 5).relu("relu").linear("out", 2).mse_loss("loss");
    check(net.finish(), regression_data{44}, {.keep_last = true});
  }
  SUBCASE("tokens of whose labels not all count, captured") {
    const partly_labelled data{counting_tokens(7, 90, 8), [](std::size_t i) { return 1 + i % 8; }};
    check(of_tokens(), data, {.captured = capture_mode::on});
  }
}

TEST_CASE_FIXTURE(fresh_for_training, "memory that is not staged may change when the call that copies it returns") {
  copying_device device;
  std::vector<float> values(8, 1);
  auto copy = device.copy_ahead(std::span<const float>{values});
  std::ranges::fill(values, 2.0F);
  CHECK(device.download(device.arrived(std::move(copy), {8})) == std::vector<float>(8, 1));
}

}  // namespace comp::cuda::test
