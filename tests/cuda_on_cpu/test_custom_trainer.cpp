// SPDX-License-Identifier: Apache-2.0
// The example of a user's own CUDA trainer, its file unchanged, on the SIMT shim.
#define main custom_trainer_main
#include "../../examples/custom_trainer.cu"
#undef main

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

namespace {

/// A new device, and a place for the plan file that is gone afterwards.
struct custom_trainer_run {
  custom_trainer_run() { simt::device = {}; }
  ~custom_trainer_run() {
    CHECK_NOTHROW(simt::device.reset());
    std::filesystem::remove(file);
  }
  std::string file = (std::filesystem::temp_directory_path() / fmt::format("comp_custom_{}.json", ::getpid())).string();
  int operator()() {
    std::string name = "custom_trainer", hidden = "32";
    char* words[] = {name.data(), hidden.data(), file.data(), nullptr};
    return custom_trainer_main(3, words);
  }
};

}  // namespace

TEST_CASE("a trainer of one's own finds a plan, saves it, loads it and learns with it") {
  custom_trainer_run run;
  CHECK(run() == 0);
  CHECK(std::filesystem::exists(run.file));
}

TEST_CASE("a trainer of one's own learns in each precision, with its casts, as in FP32") {
  const custom_trainer_run run;
  perceptron trainer{32, 512};
  const auto start = trainer.save();
  const auto loss = [&](const char* letters) {
    CAPTURE(letters);
    trainer.restore(start);
    trainer.set_precision(comp::parse_plan(letters));
    comp::sample last;
    for (int epoch = 0; epoch < 12; ++epoch) last = trainer.run_epoch();
    CHECK(last.batches == 8);
    CHECK(trainer.validate() > 0.9);
    return last.loss;
  };
  const double exact = loss("1111");
  CHECK(loss("1111") == exact);  // the state that was restored is the whole of it
  for (const char* low : {"bbb1", "0001", "b111", "1b11", "11b1", "0b01"}) {
    const double got = loss(low);
    CHECK(std::abs(got - exact) < 0.05 * exact);
    CHECK(got != exact);
  }
}

TEST_CASE("a trainer of one's own fails in a sentence: without a GPU, and without memory") {
  custom_trainer_run run;
  simt::device.has_driver = false;
  CHECK(run() == 1);
  simt::device.has_driver = true;
  simt::device.properties.totalGlobalMem = 4096;
  CHECK(run() == 1);
  CHECK_THROWS_AS((perceptron{32, 512}), comp::out_of_memory);
}
