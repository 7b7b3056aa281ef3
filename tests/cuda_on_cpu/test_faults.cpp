// SPDX-License-Identifier: Apache-2.0
// What goes wrong on a device, at every point that can fail: no memory, a launch or a library that fails, a device that
// is lost. A step ends in an error that says which, the trainer goes on with the bits that it would have had, memory is
// given back, and files of a search are as good as before.
#include <doctest/doctest.h>

#include <array>
#include <comp/comp.hpp>
#include <comp_cuda/device.hpp>
#include <comp_native/trainer.hpp>
#include <memory>
#include <optional>

#include "../native/support.hpp"
#include "../scratch.hpp"

namespace comp::cuda::test {
namespace {

using namespace native::testing;
using cuda_trainer = native::trainer<device>;

/// A little of everything that has memory, kernels or library calls of its own.
native::model network() {
  native::model_builder net{"small", native::input_kind::values, {2, 1, 8, 8}};
  small_convolutional(net, 4, 3).cross_entropy_loss("loss");
  return net.finish();
}
/// A device with a trainer on it, in FP32 but for every second operator; the steps of an epoch are a CUDA graph.
struct training {
  device on{{.measure_algorithms = false}};
  image_data images = bars({1, 8, 8}, 3, 6, 1);
  cuda_trainer trains{on,
                      network(),
                      images,
                      images,
                      {.optimizer = native::sgd(0.05, 0.9), .clip_norm = 1, .captured = native::capture_mode::on}};

  training() {
    simt::watch_races = false;
    plan mixed{trains.graph().size()};
    for (std::size_t i = 0; i < mixed.size(); i += 2) {
      if (trains.graph()[i].choosable) mixed[i] = precision::bf16;
    }
    trains.set_precision(mixed);
  }
};

/// What `work` threw: the type by name, and nothing for nothing. Faults of the stand-in, broken rules, go through.
std::string thrown_by(auto work) {
  try {
    work();
  } catch (const simt::fault&) {
    throw;
  } catch (const out_of_memory&) {
    return "out_of_memory";
  } catch (const device_lost& e) {
    CHECK(std::string{e.what()}.find("start the process again; what was saved is not touched") != std::string::npos);
    return "device_lost";
  } catch (const unsupported&) {
    return "unsupported";
  } catch (const library_error&) {
    return "library_error";
  } catch (const error&) {
    return "error";
  }
  return "";
}

/// Fails `work` at its first point, its second and so on, until it has no more: `order(n)` at the n-th, of which
/// `left()` are to come. After each the trainer is restored and has to go on with the bits of `want`. Returns: at how
/// many points it failed.
int fail_everywhere(training& t, const cuda_trainer::state& start, double want,
                    const std::vector<std::string>& expected, auto work, auto order, auto left) {
  for (int n = 1;; ++n) {
    CAPTURE(n);
    t.trains.restore(start);
    order(n);
    const std::string got = thrown_by([&] { work(t.trains); });
    const bool reached = left() == 0;
    order(0);
    CAPTURE(got);
    if (!reached) {
      CHECK(got.empty());
      return n - 1;
    }
    CHECK(std::ranges::find(expected, got) != expected.end());
    t.trains.restore(start);
    const sample again = t.trains.run_batch();
    CHECK(again.ok());
    CHECK(again.loss == want);
  }
}

struct orders {
  static void allocation(int n) {
    simt::device.fail_allocation = n;
    simt::device.allocations_failing = 2;  // once more, after the pool has given back what it kept
  }
  static void launch(int n) { simt::device.fail_launch = n; }
  static void library(int n) { simt::device.fail_library = n; }
};
int allocations_left() { return simt::device.fail_allocation; }
int launches_left() { return simt::device.fail_launch; }
int calls_left() { return simt::device.fail_library; }

TEST_CASE("a step that fails at any allocation, launch or library call says why, and the trainer goes on") {
  {
    training t;
    (void)t.trains.run_batch();  // what is made once is made
    const auto start = t.trains.save();
    const double want = t.trains.run_batch().loss;
    const auto live = t.on.live_bytes();
    const auto step = [](cuda_trainer& trainer) { (void)trainer.run_batch(); };
    t.trains.restore(start);
    const std::vector<double> whole = t.trains.run_epoch().curve;
    // what fails while a step is captured may be done call by call instead: then nothing may differ
    const auto epoch = [&](cuda_trainer& trainer) {
      const std::vector<double> curve = trainer.run_epoch().curve;
      CHECK(curve == whole);
    };
    SUBCASE("allocations") {
      // the copy of the next batch may fail unnoticed: it is made when its step begins
      CHECK(fail_everywhere(t, start, want, {"", "out_of_memory"}, step, orders::allocation, allocations_left) > 10);
    }
    SUBCASE("launches") {
      CHECK(fail_everywhere(t, start, want, {"unsupported"}, step, orders::launch, launches_left) > 10);
    }
    SUBCASE("library calls") {
      CHECK(fail_everywhere(t, start, want, {"library_error", "unsupported", "out_of_memory"}, step, orders::library,
                            calls_left) > 5);
    }
    SUBCASE("allocations of an epoch") {
      CHECK(fail_everywhere(t, start, want, {"", "out_of_memory"}, epoch, orders::allocation, allocations_left) > 10);
    }
    SUBCASE("library calls of an epoch") {
      CHECK(fail_everywhere(t, start, want, {"", "library_error", "unsupported", "out_of_memory"}, epoch,
                            orders::library, calls_left) > 5);
    }
    SUBCASE("launches of an epoch") {
      CHECK(fail_everywhere(t, start, want, {"", "unsupported"}, epoch, orders::launch, launches_left) > 20);
    }
    t.trains.restore(start);
    CHECK(t.on.live_bytes() <= live);
  }
  simt::device.reset();
}

TEST_CASE("a first step, which makes what later ones use, fails at any point and leaves nothing") {
  const auto at = [](auto order, auto left, int harmless = 0) {
    int n = 1, unnoticed = 0;
    for (bool reached = true; reached; ++n) {
      CAPTURE(n);
      {
        std::optional<training> t;
        order(n);
        const std::string got = thrown_by([&] {
          t.emplace();
          (void)t->trains.run_batch();
        });
        reached = left() == 0;
        order(0);
        CAPTURE(got);
        CHECK((reached || got.empty()));
        CHECK(got != "error");
        unnoticed += reached && got.empty();
      }
      simt::device.reset();
      CHECK(simt::dnn_objects.empty());
    }
    CHECK(unnoticed <= harmless);
    return n;
  };
  // Of bytes and labels copied ahead, which is tried again, and of plans of a convolution, instead of which others are.
  CHECK(at(orders::allocation, allocations_left, 10) > 20);
  CHECK(at(orders::launch, launches_left) > 10);
  CHECK(at(orders::library, calls_left) > 40);
}

/// Fails what `work` makes at its first point, its second and so on, and asks for it again, which gives the same.
void same_when_asked_again(auto work, auto order, auto left) {
  std::vector<float> want;
  bool reached = true;
  for (int n = 0; reached; ++n) {
    CAPTURE(n);
    {
      device d{{.measure_algorithms = false}};
      auto run = work(d);
      d.synchronize();
      order(n);
      (void)thrown_by([&] { (void)run(); });
      reached = n == 0 || left() == 0;
      order(0);
      const std::vector<float> got = run();
      if (n == 0) want = got;
      CHECK(got == want);
    }
    simt::device.reset();
    if (!reached) CHECK(n > 3);
  }
}
void same_when_asked_again(auto work) {
  same_when_asked_again(work, orders::allocation, allocations_left);
  same_when_asked_again(work, orders::launch, launches_left);
}
std::vector<float> numbers(std::int64_t count, std::uint64_t seed) {
  native::random_stream draws{seed, 3};
  std::vector<float> all;
  while (std::ssize(all) < count) all.push_back(static_cast<float>(draws.normal()));
  return all;
}
std::shared_ptr<parameter> made_parameter(device& d, const shape& s, std::uint64_t seed) {
  return std::make_shared<parameter>(d.make_parameter(numbers(elements(s), seed), s));
}

}  // namespace

TEST_CASE("what an operator keeps of weights and graphs is whole or not there, wherever making it failed") {
  simt::watch_races = false;
  SUBCASE("weights that are turned around with their slots") {
    same_when_asked_again([](device& d) {
      const auto w = made_parameter(d, {4, 3, 3, 3}, 1);
      const auto step = [&d, w](precision p) {
        d.zero_gradient(*w);
        const tensor x = d.upload(numbers(2 * 3 * 5 * 5, 2), {2, 3, 5, 5}, p),
                     dy = d.upload(numbers(2 * 4 * 3 * 3, 3), {2, 4, 3, 3}, p);
        (void)d.conv2d(x, *w, nullptr, {});
        (void)d.conv2d_backward(dy, x, *w, nullptr, {}, false);
        d.sgd_step(std::array{w.get()}, {.learning_rate = 0.1, .momentum = 0.9});
      };
      step(precision::fp32);
      return [&d, w, step, stepped = false]() mutable {
        if (!stepped) step(precision::bf16);
        stepped = true;
        return d.values(*w);
      };
    });
  }
  SUBCASE("weights in FP8") {
    same_when_asked_again([](device& d) {
      const auto w = made_parameter(d, {5, 6}, 1);
      return [&d, w] {
        return d.download(d.linear(d.upload(numbers(18, 2), {3, 6}, precision::fp8_e4m3), *w, nullptr));
      };
    });
  }
  SUBCASE("lists of a graph's nodes") {
    same_when_asked_again([](device& d) {
      const auto source = made_parameter(d, {1, 2, 3}, 1), target = made_parameter(d, {1, 2, 3}, 2);
      const auto graph = d.make_sparse({.rows = 3, .columns = 3, .begin = {0, 1, 3, 4}, .column = {1, 0, 2, 1}});
      return [&d, source, target, graph] {
        const tensor x = d.upload(numbers(18, 3), {3, 6}, precision::fp32);
        return d.download(d.edge_scores(graph, x, *source, *target, 0.2).output);
      };
    });
  }
}

TEST_CASE("saving and restoring fail at any point without harm to the trainer or to what was saved") {
  {
    training t;
    (void)t.trains.run_batch();
    const auto start = t.trains.save();
    const double want = t.trains.run_batch().loss;
    for (int n = 1;; ++n) {
      CAPTURE(n);
      t.trains.restore(start);
      orders::allocation(n);
      const std::string got = thrown_by([&] { (void)t.trains.save(); });
      if (std::exchange(simt::device.fail_allocation, 0) > 0) break;
      CHECK(got == "out_of_memory");
      CHECK(t.trains.run_batch().loss == want);
    }
    for (int n = 1;; ++n) {
      CAPTURE(n);
      orders::allocation(n);
      const std::string got = thrown_by([&] { t.trains.restore(start); });
      if (std::exchange(simt::device.fail_allocation, 0) > 0) break;
      CHECK(got == "out_of_memory");
      t.trains.restore(start);
      CHECK(t.trains.run_batch().loss == want);
    }
  }
  simt::device.reset();
}

TEST_CASE("a device that is lost at any piece of an epoch's work ends it in a sentence, and all can be destroyed") {
  bool lost = true;
  for (int n = 1; lost; n += n < 20 ? 1 : 13) {
    CAPTURE(n);
    {
      training t;
      const auto start = t.trains.save();
      t.on.synchronize();
      simt::device.lose_device = n;
      const std::string got = thrown_by([&] { (void)t.trains.run_epoch(); });
      lost = simt::device.lost != cudaSuccess;
      CHECK(got == (lost ? "device_lost" : ""));
      if (lost) {
        CHECK(thrown_by([&] { t.trains.restore(start); }) == "device_lost");
        CHECK(thrown_by([&] { (void)t.trains.save(); }) == "device_lost");
        CHECK(thrown_by([&] { (void)t.trains.run_batch(); }) == "device_lost");
      }
    }
    simt::device.reset();
  }
}

TEST_CASE("a device that is lost in a search stops it, with a ledger that another process goes on from") {
  const scratch files;
  const two_stage search{policy::pytorch{}, strategy::greedy{}, strategy::greedy{},
                         search_settings{.tolerance = 0.5,
                                         .precisions = {precision::fp32, precision::bf16},
                                         .race = {.max_rounds = 6, .contest_rounds = 6}}};
  const auto searched = [&] {
    training t;
    t.trains.set_precision(plan{t.trains.graph().size()});
    ledger kept{files / "search.jsonl"};
    return search.run(t.trains, kept);
  };
  for (const int n : {300, 700}) {
    CAPTURE(n);
    simt::device.lose_device = n;
    CHECK(thrown_by(searched) == "device_lost");
    simt::device.reset();
    CHECK(text_of(files / "search.jsonl").find("\"failed\"") == std::string::npos);
  }
  const outcome found = searched();
  CHECK(found.plan.size() == found.graph.size());
  for (const trial& t : found.trials) CHECK(t.sample.status != status::failed);
  save(found, files / "plan.json");
  const std::string saved = text_of(files / "plan.json"), runs = text_of(files / "search.jsonl");
  simt::device.reset();
  {
    training t;
    const post_training two_more{.epochs = found.trained_epochs() + 2};
    simt::device.lose_device = 100;
    CHECK(thrown_by([&] { (void)two_more.run(t.trains, found); }) == "device_lost");
  }
  simt::device.reset();
  CHECK(text_of(files / "plan.json") == saved);
  CHECK(text_of(files / "search.jsonl") == runs);
}

}  // namespace comp::cuda::test
