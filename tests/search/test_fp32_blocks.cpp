// SPDX-License-Identifier: Apache-2.0
// FP32's blocks among a plan's batches show harm that builds up slowly, and nothing where there is none.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <comp/search/post_training.hpp>
#include <comp/search/training/fp32_blocks.hpp>
#include <cstddef>
#include <random>
#include <vector>

#include "fake_search.hpp"

namespace {

struct world_of_losses {
  double harm = 0, delay = 100, noise = 0.2;
  double fall = 0;  // of the loss's logarithm, per batch
};

struct watched {
  std::size_t given_up = 0;  // after so many batches; 0: never
  std::size_t by_fp32 = 0;   // batches
};

watched watch(const world_of_losses& world, std::uint64_t seed, std::size_t batches = 15000) {
  std::mt19937_64 random{seed};
  std::normal_distribution<double> normal;
  comp::detail::fp32_blocks blocks{batches, 0.01};
  watched got;
  double harm = world.harm;
  for (std::size_t k = 0; k < batches; ++k) {
    const bool fp32 = blocks.in_block();
    got.by_fp32 += fp32 ? 1 : 0;
    harm += ((fp32 ? 0 : world.harm) - harm) / world.delay;
    const double level = std::exp(-world.fall * static_cast<double>(k));
    if (blocks.add({level * (1 + harm) * std::exp(world.noise * normal(random))})) {
      got.given_up = k + 1;
      return got;
    }
  }
  return got;
}

}  // namespace

TEST_CASE("harm of 10% is shown by blocks of FP32, whether it builds up within 5 batches or 300") {
  for (const double delay : {5.0, 50.0, 150.0, 300.0}) {
    CAPTURE(delay);
    std::size_t found = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const std::size_t after = watch({.harm = 0.1, .delay = delay}, seed).given_up;
      found += after > 0 && after < 10000 ? 1 : 0;
    }
    CHECK(found >= 18);
  }
}

TEST_CASE(
    "a plan without harm is not given up, and FP32 trains a thirtieth of the batches at most if nothing is suspicious") {
  std::size_t given_up = 0, by_fp32 = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    for (const double fall : {0.0, 0.0002, 0.002}) {
      const watched got = watch({.fall = fall}, seed);
      given_up += got.given_up > 0 ? 1 : 0;
      by_fp32 += got.by_fp32;
    }
  }
  CHECK(given_up <= 1);
  CHECK(by_fp32 / 120 < 15000 / 20);
}

TEST_CASE("two halves of a plan that harms take turns until one operator is left, and it is the cause") {
  const comp::plan fp32{20}, low{20, comp::precision::bf16};
  for (const double delay : {5.0, 50.0, 150.0, 300.0}) {
    CAPTURE(delay);
    std::size_t found = 0;
    double raised = 0;
    for (std::size_t seed = 0; seed < 20; ++seed) {
      std::mt19937_64 random{seed};
      std::normal_distribution<double> normal;
      comp::detail::block_bisection blocks{low, fp32, fp32, 375};
      double harm = 0.1;
      while (!blocks.is_over()) {
        const comp::plan now = blocks.plan();
        harm += ((comp::is_low(now[seed]) ? 0.1 : 0) - harm) / delay;
        raised += 1 - static_cast<double>(now.count_low()) / 20;
        blocks.add({(1 + harm) * std::exp(0.2 * normal(random))});
      }
      const auto part = blocks.found();
      found += part && part->harmful == std::vector{seed} ? 1 : 0;
    }
    CHECK(found >= 17);
    CHECK(raised / 20 < 1800);  // batches' worth of what the plan saves
  }
}

TEST_CASE("where no half harms more than the other, no operator is named") {
  for (const double harm : {0.0, 0.1}) {  // of all, or none
    std::mt19937_64 random{1};
    std::normal_distribution<double> normal;
    comp::detail::block_bisection blocks{comp::plan{4, comp::precision::bf16}, comp::plan{4}, comp::plan{4}, 375};
    std::size_t batches = 0;
    for (; !blocks.is_over(); ++batches) blocks.add({(1 + harm) * std::exp(0.2 * normal(random))});
    CHECK_FALSE(blocks.found());
    CHECK(batches == 16 * 375);
  }
}

TEST_CASE("losses without noise, that repeat or fall by orders of magnitude, show no harm") {
  for (const double fall : {0.0, 0.0005, 0.005}) {
    CHECK(watch({.noise = 0, .fall = fall}, 1).given_up == 0);
    CHECK(watch({.noise = 1e-6, .fall = fall}, 1, 1600).given_up == 0);
  }
}

TEST_CASE("losses that are not finite are left out, and a block that has no other says nothing") {
  comp::detail::fp32_blocks blocks{1600, 0.01};
  for (int k = 0; k < 1600; ++k) CHECK_FALSE(blocks.add({fake::nan}));
}

TEST_CASE("a training whose trainer cannot restore gives a plan up that harms slowly, and says why") {
  fake::world world{.graph = fake::chain({"allow", "allow"}), .batches = 100, .loss_offset = 1};
  world.seconds = [](const comp::plan& p) {
    return 3.0 - static_cast<double>(std::count(p.begin(), p.end(), comp::precision::bf16));
  };
  fake::minimal_trainer trainer{world};
  const comp::outcome found = comp::two_stage<fake::lists>{}.run(trainer);
  REQUIRE(found.plan.str() == "bb");
  const auto train = [&](const comp::plan& harmful) {
    trainer.change().swing = [&, harm = 0.0](std::uint64_t) mutable {
      bool harms = false;
      for (std::size_t i = 0; i < harmful.size(); ++i)
        harms = harms || (comp::is_low(harmful[i]) && comp::is_low(trainer.now()[i]));
      harm += ((harms ? 0.15 : 0) - harm) / 80;
      return harm;
    };
    auto trained = comp::post_training{.epochs = 100}.run(trainer, found);
    REQUIRE_FALSE(trained.fallbacks.empty());
    CHECK(trained.fallbacks.front().message.find("slow harm: its loss came to be") == 0);
    return trained;
  };
  CHECK(train(found.plan).plan.str() == "11");  // both operators harm
  const auto trained = train(comp::parse_plan("1b"));
  CHECK(trained.plan.str() == "b1");
  CHECK(trained.fallbacks.front().message.ends_with("runs of its parts find the harm in 1 (allow)"));
}
