// SPDX-License-Identifier: Apache-2.0
// Many steps: block formats by hand, findings by made-up steps, and their texts. Trainings: python/test_doctor.py.
#include <doctest/doctest.h>

#include <comp/doctor/history_text.hpp>
#include <string>
#include <vector>

#include "examinations.hpp"

using comp::fault_kind;
using comp::precision;

namespace {

comp::parameter_step updated(std::uint64_t moved, std::uint64_t stayed, precision format = precision::bf16) {
  return {.name = "fc.weight",
          .format = format,
          .optimized = true,
          .rate = 0.1,
          .arrived = true,
          .gradient = comp::counted(std::vector<float>{0.5F, 0.25F}),
          .updates = 1,
          .moved = moved,
          .stayed = stayed};
}

/// Twenty of a step.
comp::history twenty(const comp::step_record& record, const comp::examination& examination = made_up::step()) {
  comp::history h;
  for (int i = 0; i < 20; ++i) h.add(examination, record);
  return h;
}
void check_one(const comp::history& h, fault_kind kind, const std::string& text) {
  const auto found = comp::faults(h);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == kind);
  CHECK(found[0].text == text);
}

}  // namespace

TEST_CASE("MXFP8 flushes what is 2^-10 of the scale and less, and its scale lets nothing clamp") {
  std::vector<float> block(32, 0.0F);
  block[0] = 448;       // the scale is 1
  block[1] = 0x1p-10F;  // half of the smallest subnormal rounds to 0
  block[2] = 0x1.1p-10F;
  CHECK(comp::counted_in_blocks(block, 32, precision::mxfp8, 448) ==
        comp::block_counts{.values = 3, .flushed = 1, .blocks = 1});
  block[0] = 449;  // the scale is 2
  CHECK(comp::counted_in_blocks(block, 32, precision::mxfp8, 449).flushed == 2);
  CHECK(comp::counted_in_blocks(block, 32, precision::mxfp8, 449).clamped == 0);
  CHECK(comp::counted_in_blocks(block, 2, precision::mxfp8, 449).blocks ==
        2);  // blocks end with a row; zeros have none
}

TEST_CASE("NVFP4 clamps if its scale is rounded down, and loses blocks that are far below the largest value") {
  std::vector<float> values(32, 0.0F);
  values[0] = 6 * 448;     // a scale of 448, which makes the matrix's factor 1
  values[16] = 6 * 17.0F;  // 17 is halfway between 16 and 18, and rounds to 16
  values[17] = 4.0F;       // a quarter of the scale rounds to 0
  const auto both = comp::counted_in_blocks(values, 32, precision::nvfp4, 6 * 448);
  CHECK(both == comp::block_counts{.values = 3, .clamped = 1, .flushed = 1, .blocks = 2});
  values[16] = 6 * 0x1p-11F;  // below E4M3's smallest scale
  values[17] = 0;
  const auto lost = comp::counted_in_blocks(values, 32, precision::nvfp4, 6 * 448);
  CHECK(lost.flushed == 1);
  CHECK(lost.lost_blocks == 1);
}

TEST_CASE("a sound step has no finding, however often") {
  CHECK(comp::faults(comp::history{}).empty());
  CHECK(comp::faults(twenty({.loss = 0.0, .parameters = {updated(2, 0)}})).empty());
  CHECK(comp::table(twenty({.parameters = {updated(2, 0)}}))
            .starts_with("20 steps; 0 of 1 parameters are frozen\nnothing is wrong\n"));
}

TEST_CASE("updates that the weight's format loses are a finding, in FP32 only if all are lost") {
  check_one(
      twenty({.optimizer_ran = true, .parameters = {updated(0, 2)}}), fault_kind::lost_update,
      "\"fc.weight\" is stored in bf16, and 100% of the updates of its values are smaller than half a unit of it, so "
      "that they are lost: keep FP32 weights and compute in bf16, or raise the learning rate");
  auto other = updated(2, 0, precision::fp32);
  other.name = "fc.bias";
  CHECK(comp::faults(twenty({.parameters = {updated(0, 2, precision::fp32), other}})).empty());
  CHECK(comp::faults(twenty({.parameters = {updated(0, 2, precision::fp32)}})).size() == 1);
}

TEST_CASE("a learning rate of 0 is a finding if it stays") {
  auto still = updated(0, 2);
  still.rate = 0;
  comp::history h = twenty({.parameters = {updated(2, 0)}});
  for (int i = 0; i < 4; ++i) h.add(made_up::step(), {.optimizer_ran = true, .parameters = {still}});
  CHECK(comp::faults(h).empty());
  h.add(made_up::step(), {.optimizer_ran = true, .parameters = {still}});
  check_one(h, fault_kind::zero_rate,
            "\"optimizer\" has a learning rate of 0 since step 20, in 5 updates: look at its scheduler");
}

TEST_CASE("updates that end are a finding, other than updates that never were") {
  comp::history h = twenty({.parameters = {updated(2, 0, precision::fp32)}});
  for (int i = 0; i < 5; ++i)
    h.add(made_up::step(), {.optimizer_ran = true, .parameters = {updated(0, 2, precision::fp32)}});
  REQUIRE(comp::faults(h).size() == 1);
  CHECK(comp::faults(h)[0].kind == fault_kind::no_update);
  CHECK(comp::faults(h)[0].step == 20);
  h.add(made_up::step(), {.optimizer_ran = true, .parameters = {updated(1, 1, precision::fp32)}});
  CHECK(comp::faults(h).empty());
}

TEST_CASE("an evaluation with far larger values is a finding, unless batch norm has learned nothing yet") {
  comp::examination examination = made_up::step({0.5F, -0.25F}, std::vector<float>(64, 2));
  examination.entries.push_back(made_up::entry("fc.linear_2", "aten::linear", std::vector<float>(64, -22), {0}));
  CHECK(comp::faults(twenty({.parameters = {updated(2, 0)}}, examination)).empty());
  examination.entries.back().without_gradients = true;
  check_one(
      twenty({.parameters = {updated(2, 0)}}, examination), fault_kind::evaluation_scale,
      "\"fc.linear\" gave values 11 times as large in a forward without gradients as in one with them, in step 0: "
      "prepare both inputs alike, and run a training forward first if it makes state, as spectral_norm does");
  examination.entries.push_back(made_up::entry("norm.batch_norm", "aten::batch_norm", {1, 2}, {1}));
  CHECK(comp::faults(twenty({.parameters = {updated(2, 0)}}, examination)).empty());
}

TEST_CASE("batches that repeat one before them are a finding, and so are ranks that part") {
  comp::history cycle, repeats, parts;
  for (std::size_t i = 0; i < 20; ++i) {
    cycle.add(made_up::step(), {.batch = i % 2, .batch_number = i});
    repeats.add(made_up::step(), {.batch = i / 2, .batch_number = i});
    parts.add(made_up::step(), {.apart = i < 10 ? std::vector<std::string>{} : std::vector<std::string>{"a", "b"}});
  }
  CHECK(comp::faults(cycle).empty());
  check_one(repeats, fault_kind::same_batch,
            "\"batch\" had the values of the batch before it in 10 of 20 steps: look at how the data set makes its "
            "items, and give each worker of the loader a random seed of its own");
  check_one(
      parts, fault_kind::rank_difference,
      "\"a\" and 1 other parameter had different values on the ranks after 10 of 20 steps, since step 10: gradients "
      "are not averaged, or arrive damaged; wrap the model in DistributedDataParallel once, after it was moved or "
      "converted, and run that in each step");
}

TEST_CASE("one row of a batch that stands for all others is a finding, unless it is always the same") {
  comp::history row, positions;
  for (std::size_t i = 0; i < 20; ++i) {
    row.add(made_up::step(), {.batch = i, .one_row = std::pair{i, 10}});
    positions.add(made_up::step(), {.batch = i, .one_row = std::pair{7, 10}});
  }
  CHECK(comp::faults(positions).empty());
  check_one(row, fault_kind::broadcast,
            "\"batch\" has a tensor of one row, other values in each step, beside one of 10 rows, in 20 steps: the row "
            "stands for all others, too; look at how the batch is put together");
}

TEST_CASE("infinite gradients without an update are a loss scaler's, unless they do not end") {
  comp::examination examination = made_up::step();
  examination.entries[1].gradients = comp::counted(std::vector<float>{1e38F * 10});
  examination.entries[1].backward = 1;
  auto skipped = updated(0, 0);
  skipped.updates = 0;
  comp::history h = twenty({.parameters = {updated(2, 0)}});
  for (int i = 0; i < 3; ++i) h.add(examination, {.parameters = {skipped}});
  CHECK(comp::faults(h).empty());
  for (int i = 0; i < 10; ++i) h.add(examination, {.parameters = {skipped}});
  const auto found = comp::faults(h);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == fault_kind::no_update);
  CHECK(found[0].step == 20);
  h.add(examination, {.parameters = {updated(2, 0)}});  // an update by such gradients is a fault at once
  CHECK(comp::faults(h).front().kind == fault_kind::infinity);
  CHECK(comp::faults(h).front().step == 33);
}

TEST_CASE("a loss that never changes is a finding; one of 0 is a goal that was reached") {
  check_one(twenty({.loss = 2.5, .parameters = {updated(2, 0)}}), fault_kind::same_loss,
            "\"loss\" was 2.5 in all 20 steps: see that it is computed of what the model returns");
}

TEST_CASE("numbers have a name each and the page shows the findings") {
  const auto h = twenty({.loss = 1.5, .optimizer_ran = true, .parameters = {updated(0, 2)}});
  const auto all = comp::numbers(h);
  CHECK(all.at("loss") == 1.5);
  CHECK(all.at("findings") == 1);
  CHECK(all.at("fc.weight/unmoved") == 1);
  CHECK(all.at("fc.relu/zeros") == doctest::Approx(1.0 / 3));
  CHECK(all.at("fc.linear/values") == doctest::Approx(2));
  CHECK(comp::html_text(h.merged(), comp::faults(h)).find("is stored in bf16") != std::string::npos);
}
