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
static_assert(CopiesAhead<copying_device> && ReadsBytes<copying_device>);

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
                  "what is copied ahead arrives as it was, whatever becomes of memory that is not staged") {
  for (const std::int64_t pinned_limit : {1 << 20, 0}) {
    CAPTURE(pinned_limit);
    copying_device device{pinned_limit};
    std::pmr::memory_resource& staging = device.staging_memory();
    void* const staged = staging.allocate(64);
    CHECK((simt::use_of_pinned(staged, 64) != nullptr) == (pinned_limit > 0));
    const auto copied = [&]<class T>(std::vector<T> from, bool is_staged) {
      T* const at = is_staged ? static_cast<T*>(staged) : from.data();
      std::ranges::copy(from, at);
      auto copy = device.copy_ahead(std::span<const T>{at, from.size()});
      if (is_staged) {
        device.await_copies();
      } else {
        std::ranges::fill(from, T{9});
      }
      return copy;
    };
    const std::vector<float> values{1, 2, 3, 4};
    std::vector<float> of_byte(256);
    std::ranges::transform(of_byte, of_byte.begin(), [i = 0](float) mutable { return 0.5F * static_cast<float>(i++); });
    parameter table = device.make_parameter(values, {4, 1});
    const tensor of_bytes = device.upload(of_byte, {1, 256}, precision::fp32);
    for (const bool is_staged : {true, false}) {
      CAPTURE(is_staged);
      CHECK(device.download(device.arrived(copied(values, is_staged), {4})) == values);
      const indices at = device.arrived_indices(copied(std::vector<std::int32_t>{3, 0, 2}, is_staged), {3});
      CHECK(device.download(device.embedding(at, table, precision::fp32)) == std::vector<float>{4, 1, 3});
      CHECK(device.download(device.arrived(copied(std::vector<std::uint8_t>{0, 7, 255}, is_staged), {1, 1, 3},
                                           of_bytes)) == std::vector<float>{0, 3.5F, 127.5F});
    }
    staging.deallocate(staged, 64);
  }
}

}  // namespace comp::cuda::test
