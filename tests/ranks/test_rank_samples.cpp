// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp/ranks/rank_samples.hpp>
#include <limits>

using comp::sample;
using comp::status;
using comp::ranks::detail::of_all_ranks;
using comp::ranks::detail::with_history;
using comp::ranks::detail::without_history;

namespace {

sample batch_of(double loss, double seconds) {
  return {.loss = loss, .seconds = seconds, .batches = 1, .batch_seconds = {seconds}, .curve = {loss}};
}

}  // namespace

TEST_CASE("all ranks' batch takes the slowest's time and the greatest memory, and has the mean loss") {
  sample fast = batch_of(1, 0.5), slow = batch_of(4, 2);
  fast.peak_bytes = 200;
  slow.peak_bytes = 100;
  fast.losses = {1, 2};
  slow.losses = {3, 8};
  fast.curves = {{1}, {2}};
  slow.curves = {{3}, {8}};
  const sample all = of_all_ranks({fast, slow});
  CHECK(all.loss == 2.5);
  CHECK(all.losses == std::vector<double>{2, 5});
  CHECK(all.curves == std::vector<std::vector<double>>{{2}, {5}});
  CHECK(all.curve == std::vector<double>{2.5});
  CHECK(all.seconds == 2);
  CHECK(all.batch_seconds == std::vector<double>{2});
  CHECK(all.peak_bytes == 200);
  CHECK(all.batches == 1);
  CHECK(all.ok());
  CHECK(all.message.empty());
}

TEST_CASE("an epoch's batches each take the time of the rank that was slowest in it") {
  sample one = batch_of(1, 1), other = batch_of(1, 2);
  one.batches = other.batches = 2;
  one.curve = other.curve = {1, 1};
  one.batch_seconds = {1, 5};
  other.batch_seconds = {2, 3};
  CHECK(of_all_ranks({one, other}).batch_seconds == std::vector<double>{2, 5});
  other.batch_seconds.clear();  // one that does not time its batches
  CHECK(of_all_ranks({one, other}).batch_seconds.empty());
}

TEST_CASE("a loss that is not finite on one rank is lost for all") {
  const sample nan = batch_of(std::numeric_limits<double>::quiet_NaN(), 1);
  const sample all = of_all_ranks({batch_of(1, 1), nan, batch_of(2, 1)});
  CHECK(std::isnan(all.loss));
  CHECK(all.not_finite == 1);
  CHECK(all.ok());  // whether batch after batch is lost, the search sees itself
}

TEST_CASE("how the worst rank ended is how all did, with its name") {
  sample sound = batch_of(1, 1), nan = batch_of(1, 1), full = batch_of(1, 1);
  sound.message = "a step was skipped";
  nan.status = status::not_finite;
  full.status = status::out_of_memory;
  full.message = "no 5 bytes";
  CHECK(of_all_ranks({sound, nan, full}).status == status::out_of_memory);
  CHECK(of_all_ranks({sound, nan, full}).message == "rank 2: no 5 bytes");
  CHECK(of_all_ranks({sound, nan}).status == status::not_finite);
  CHECK(of_all_ranks({batch_of(1, 1), sound}).message == "rank 1: a step was skipped");
}

TEST_CASE("an epoch of different lengths has failed, and says which rank was shorter") {
  sample four = batch_of(1, 1), five = batch_of(1, 1);
  four.batches = 4;
  five.batches = 5;
  const sample all = of_all_ranks({five, four});
  CHECK(all.status == status::failed);
  CHECK(all.message ==
        "rank 1 trained 4 batches and rank 0 5 (an epoch ends on all ranks at once): give each rank as many, or the "
        "trainer run_epoch(stop) and batches_per_epoch()");
}

TEST_CASE("a run is put together again from what each batch added") {
  sample whole;
  for (const double loss : {3.0, 2.0, 1.0}) {
    sample so_far = batch_of(2, 1);
    so_far.batches = static_cast<std::int64_t>(whole.curve.size()) + 1;
    so_far.curve.assign(whole.curve.size(), -1);  // what came before is not sent again
    so_far.curve.push_back(loss);
    so_far.batch_seconds = so_far.curve;
    so_far.curves = {so_far.curve};
    CHECK(without_history(so_far).curve.size() == 1);
    whole = with_history(whole, without_history(so_far));
  }
  CHECK(whole.curve == std::vector<double>{3, 2, 1});
  CHECK(whole.batch_seconds == whole.curve);
  CHECK(whole.curves.at(0) == whole.curve);
  CHECK(whole.batches == 3);
}
