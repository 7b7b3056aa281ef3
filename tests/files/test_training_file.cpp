// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/files/training_file.hpp>
#include <limits>

#include "scratch.hpp"

namespace {

comp::stored_training some_training() {
  comp::stored_training t{.signature = "mlp | batch 64 | seed 1"};
  t.state.tensors = {{"fc.weight", {2}, {1, 2}}, {"optimizer.first.fc.weight", {2}, {3, 4}}};
  t.state.numbers = {{"step", 12}, {"loss scale", 65536}};
  auto& p = t.progress;
  p.so_far.epochs = {{.loss = 0.1 + 0.2, .seconds = 1.5, .batches = 3, .curve = {1, 2, 3}, .score = 0.75}};
  p.so_far.fallbacks = {{1, comp::parse_plan("bb"), comp::parse_plan("b1"), comp::status::diverged, "up"}};
  p.so_far.later = {{4, comp::parse_plan("1b"), "in 16 batches"}};
  p.later = {{7, comp::parse_plan("bb")}, {9, comp::parse_plan("11")}};
  p.raise_tried = true;
  p.so_far.warnings = {"a \"warning\""};
  p.so_far.compared = 2;
  p.plans = {comp::parse_plan("bb"), comp::parse_plan("b1"), comp::parse_plan("11")};
  p.current = 1;
  p.begun = comp::sample{.loss = 1, .seconds = 1, .batches = 2, .curve = {1, 1}};
  p.normal = {.epochs = {{0.5, 1}, {0.25, 0.75}}, .window = 3, .leeway = 2};
  p.checks = {.began = 1, .next = 8, .passed = 2, .beginning_passed = true, .known = -1.5};
  p.batches_per_epoch = 3;
  p.baseline_loss = std::numeric_limits<double>::quiet_NaN();
  p.higher_is_better = true;
  return t;
}

}  // namespace

TEST_CASE_FIXTURE(with_folder, "a training comes back from its file as it was, but for the batches of its epochs") {
  comp::stored_training t = some_training();
  comp::write_training(t, folder / "t");
  const auto back = comp::read_training(folder / "t");
  CHECK(back.signature == t.signature);
  CHECK(back.state.tensors == t.state.tensors);
  CHECK(back.state.numbers == t.state.numbers);
  const auto& p = back.progress;
  REQUIRE(p.so_far.epochs.size() == 1);
  CHECK(p.so_far.epochs[0].loss == 0.1 + 0.2);
  CHECK(p.so_far.epochs[0].score == 0.75);
  CHECK(p.so_far.epochs[0].curve.empty());
  REQUIRE(p.so_far.fallbacks.size() == 1);
  CHECK(p.so_far.fallbacks[0].to.str() == "b1");
  CHECK(p.so_far.fallbacks[0].message == "up");
  CHECK(p.so_far.warnings == t.progress.so_far.warnings);
  CHECK(p.so_far.compared == 2);
  CHECK(p.so_far.later == t.progress.so_far.later);
  CHECK(p.later == t.progress.later);
  CHECK(p.raise_tried);
  CHECK(p.plans == t.progress.plans);
  CHECK(p.current == 1);
  CHECK(p.begun->curve == t.progress.begun->curve);
  CHECK(p.normal.epochs == t.progress.normal.epochs);
  CHECK(p.normal.window == 3);
  CHECK(p.normal.leeway == 2);
  CHECK(p.checks.next == 8);
  CHECK(p.checks.beginning_passed);
  CHECK(p.checks.known == -1.5);
  CHECK(p.batches_per_epoch == 3);
  CHECK(std::isnan(p.baseline_loss));
  CHECK(p.higher_is_better);
}

TEST_CASE("a training of a file that knows nothing of evidence begins it anew") {
  const comp::json old{{"began", 1}, {"next", 8}, {"acquittals", 2}};
  const comp::check_state checks = comp::read_json<comp::check_state>(comp::json_reader{old, {"old", 0, ""}});
  CHECK(checks.next == 8);
  CHECK_FALSE(checks.beginning_passed);
  CHECK(checks.known == 0);
}

TEST_CASE_FIXTURE(with_folder, "any changed byte of a training's file is noticed") {
  comp::write_training(some_training(), folder / "t");
  const std::string text = text_of(folder / "t");
  const auto refused = [&](const std::string& changed) {
    write_text(folder / "u", changed);
    return message_of<comp::file_error>([&] { (void)comp::read_training(folder / "u"); });
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CAPTURE(i);
    const bool layout = text[i] == ' ';  // what fills up the header
    if (!layout) CHECK_FALSE(refused(changed).empty());
  }
  CHECK(has(refused(text.substr(0, text.size() - 1)), "data_offsets"));
  std::string scale = text;
  scale.replace(scale.find("65536"), 5, "65537");
  CHECK(has(refused(scale), "is damaged (its checksum is not that of its contents)"));
}

TEST_CASE_FIXTURE(with_folder, "a file with tensors alone is no training, and one that contradicts itself is refused") {
  comp::write_safetensors(folder / "w", some_training().state.tensors);
  CHECK(has(message_of<comp::file_error>([&] { (void)comp::read_training(folder / "w"); }),
            "holds no training (its metadata have no \"comp_training\")"));
  const auto refused = [&](auto change) {
    comp::stored_training t = some_training();
    change(t.progress);
    comp::write_training(t, folder / "t");
    return message_of<comp::file_error>([&] { (void)comp::read_training(folder / "t"); });
  };
  CHECK(refused([](auto&) {}).empty());
  CHECK(has(refused([](auto& p) { p.current = 3; }), "rung is 3 (a whole number from 0 to 2"));
  CHECK(has(refused([](auto& p) { p.plans.clear(); }), "a plan at least"));
  CHECK(has(refused([](auto& p) { p.normal.window = 0; }), "window is 0"));
  CHECK(has(refused([](auto& p) { p.normal.epochs = {{1, 0}}; }), "the lower one first"));
  CHECK(has(refused([](auto& p) { p.checks.began = 2; }), "began is 2 (a whole number from 0 to 1"));
  CHECK(has(refused([](auto& p) { p.begun->batches = 3; }), "fewer batches than an epoch has"));
}
