// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/decision/starting_plans.hpp>

#include "fake_trainer.hpp"

using comp::precision;

namespace {

struct signed_trainer : fake::trainer {
  using fake::trainer::trainer;
  std::string signature() const { return "batch=64, seed=1"; }
};

std::string signature_of(auto trainer, const fake::world& world, const comp::search_settings& settings = {},
                         const comp::hardware& machine = {}) {
  comp::outcome log{.graph = world.graph, .hardware = machine};
  return comp::search_signature(comp::trainer_of{trainer}, log, settings);
}

}  // namespace

TEST_CASE("FP32 comes first among the precisions that are searched, none twice") {
  fake::world world;
  world.precisions = {precision::fp16, precision::fp32, precision::bf16};
  fake::trainer trainer{world};
  fake::minimal_trainer minimal{world};
  CHECK(comp::searched_precisions(comp::trainer_of{trainer}, trainer.graph(), {}) ==
        std::vector{precision::fp32, precision::fp16, precision::bf16});
  comp::search_settings settings;
  settings.precisions = {precision::bf16, precision::bf16};
  CHECK(comp::searched_precisions(comp::trainer_of{trainer}, trainer.graph(), settings) ==
        std::vector{precision::fp32, precision::bf16});
  CHECK(comp::searched_precisions(comp::trainer_of{minimal}, minimal.graph(), {}) ==
        std::vector{precision::fp32, precision::bf16, precision::fp16});
}

TEST_CASE(
    "a search's signature differs with the model, the backend and when epochs are cut, not with what only chooses") {
  const fake::world world{.graph = fake::chain({"a"})}, other{.graph = fake::chain({"b"})};
  const std::string plain = signature_of(fake::trainer{world}, world);
  CHECK(plain.ends_with("; cut=1.5,1.2,6,4,2,8"));  // as recorded by comp 0.2, whose ledgers are resumed
  CHECK(plain == signature_of(fake::trainer{world}, world));
  CHECK(plain != signature_of(fake::trainer{other}, other));
  CHECK(plain != signature_of(signed_trainer{world}, world));
  CHECK(signature_of(signed_trainer{world}, world).find("backend=batch=64, seed=1;") != std::string::npos);
  comp::search_settings settings;
  settings.tolerance = 0.5;
  settings.losses_tie = comp::tie::none;
  CHECK(plain == signature_of(fake::trainer{world}, world, settings));
  for (const comp::hardware& machine :
       {comp::hardware{.name = "another CPU"}, comp::hardware{.compute_capability = 90}, comp::hardware{.threads = 7}})
    CHECK(plain != signature_of(fake::trainer{world}, world, {}, machine));
  SUBCASE("criterion") { settings.criterion = comp::criterion::scores; }
  SUBCASE("the paper's, whose epochs are never cut") { settings.verbatim = true; }
  CHECK(plain != signature_of(fake::trainer{world}, world, settings));
}

TEST_CASE("recorded turns are of use only to a search whose turns have the same lengths") {
  const fake::world world{.graph = fake::chain({"a"})};
  const auto planned = [&](auto trainer, std::size_t epochs, std::size_t batches) {
    const comp::search_settings settings{.planned_epochs = epochs};
    const comp::outcome log{.graph = world.graph, .batches_per_epoch = batches};
    return comp::search_signature(comp::trainer_of{trainer}, log, settings);
  };
  CHECK(planned(fake::minimal_trainer{world}, 100, 150).find("; turns=11/33/16; ") != std::string::npos);
  CHECK(planned(fake::minimal_trainer{world}, 100, 150) != planned(fake::minimal_trainer{world}, 50, 150));
  CHECK(planned(fake::minimal_trainer{world}, 100, 0) != planned(fake::minimal_trainer{world}, 50, 0));
  CHECK(planned(fake::trainer{world}, 100, 150) == planned(fake::trainer{world}, 50, 150));
}
