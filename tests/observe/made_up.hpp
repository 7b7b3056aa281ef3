// SPDX-License-Identifier: Apache-2.0
// Outcomes made by hand for the tests of observe/: of any size, with each fate that a candidate can have.
#pragma once

#include <comp/search/losses/loss_test.hpp>
#include <comp/search/observers.hpp>
#include <random>
#include <string>
#include <vector>

namespace made_up {

inline comp::op_graph graph(std::size_t operators) {
  const char* kinds[] = {"linear", "layer_norm", "gelu", "softmax", "matmul", "add"};
  std::vector<comp::op_info> list;
  for (std::size_t i = 0; i < operators; ++i) {
    const std::string block = "block" + std::to_string(i / 12);
    comp::op_info op;
    op.kind = kinds[i % 6];
    op.name = block + "." + op.kind + std::to_string(i % 12);
    op.scopes = {block};
    op.outputs = {{.shape = {8, 64, 256}}};
    if (i % 6 == 0 || i % 6 == 4) op.m = 512, op.n = 256, op.k = 256;
    list.push_back(op);
  }
  return list;
}

inline comp::hardware machine() {
  return {.name = "Made-up CPU <9>",
          .kind = comp::device_kind::cpu,
          .compute_capability = 0,
          .isa = {"avx2", "avx512_core", "avx512_bf16"},
          .threads = 2};
}

inline comp::plan low_where(const comp::op_graph& graph, auto holds) {
  comp::plan p{graph.size()};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (holds(graph[i])) p[i] = comp::precision::bf16;
  }
  return p;
}

/// Batches of a training whose loss falls and is `above` FP32's, give or take.
inline comp::sample batches(int count, double above, double per_batch) {
  comp::sample s;
  s.batches = count;
  s.seconds = count * per_batch;
  s.peak_bytes = 120 << 20;
  s.loss = 0;
  for (int i = 0; i < count; ++i) {
    const double noise = above == 0 ? 0 : 0.004 * ((i * 11) % 7 - 3);
    s.batch_seconds.push_back(per_batch * (1 + 0.02 * ((i * 7) % 5)));
    s.curve.push_back(2.3 + 1.0 / (1 + i) + above + noise);
    s.loss += s.curve.back() / count;
  }
  return s;
}

inline comp::trial run(comp::outcome& of, comp::stage where, comp::plan p, comp::sample s, std::string label = "") {
  comp::trial t;
  t.number = of.trials.size();
  t.stage = where;
  t.plan = std::move(p);
  t.sample = std::move(s);
  t.label = std::move(label);
  t.accepted = t.sample.ok() && t.sample.loss < 2.42;
  if (t.sample.ok()) {
    t.seconds = comp::median(t.sample.batch_seconds);
    t.bounds = comp::median_interval(t.sample.batch_seconds);
  }
  of.trials.push_back(t);
  return t;
}

inline comp::contestant contestant(std::string label, comp::plan p, double per_batch, unsigned seed) {
  comp::contestant c;
  c.label = std::move(label);
  c.plan = std::move(p);
  std::mt19937 noise{seed};
  for (int i = 0; i < 20; ++i) c.seconds.push_back(per_batch * (1 + 1e-4 * static_cast<double>(noise() % 600)));
  c.peak_bytes = static_cast<std::int64_t>(per_batch * 4e9);
  return c;
}

/// What the search says of the loss of a run.
inline void judge(comp::contestant& c, const comp::sample& got, const comp::outcome& o) {
  c.loss = comp::judge({.tolerance = o.tolerance}, {.fp32 = o.baseline.curve, .candidate = got.curve}, true);
  c.loss_batches = static_cast<std::size_t>(got.batches);
}

/// A guided search that found 1.6 times FP32's speed in BF16, with every kind of failure on its way. An epoch has 80
/// batches; FP32 ran 40 of them, and 118 batches of what was accepted are the training so far.
inline comp::outcome outcome(std::size_t operators) {
  using comp::stage;
  comp::outcome o;
  o.graph = graph(operators);
  o.hardware = machine();
  o.precisions = {comp::precision::fp32, comp::precision::bf16, comp::precision::fp16};
  o.batches_per_epoch = 80;
  const comp::plan fp32{operators};
  const comp::plan rules = low_where(o.graph, [](auto& op) { return op.k > 0; });
  const comp::plan best = low_where(o.graph, [](auto& op) { return op.k > 0 || op.kind == "gelu"; });
  const comp::plan all = low_where(o.graph, [](auto&) { return true; });
  o.baseline = run(o, stage::baseline, fp32, batches(40, 0, 0.050), "fp32").sample;
  const comp::sample of_rules = run(o, stage::losses, rules, batches(40, 0.004, 0.036)).sample;
  const comp::sample of_best = run(o, stage::losses, best, batches(40, 0.012, 0.031)).sample;
  run(o, stage::losses, all, batches(16, 0.11, 0.029));
  auto bad = batches(4, 0.1, 0.030);
  bad.loss = bad.curve.back() = std::nan("");
  bad.status = comp::status::not_finite;
  run(o, stage::losses, comp::plan(operators, comp::precision::fp16), bad);
  bad = batches(8, 0.4, 0.092);
  bad.status = comp::status::stopped_early;
  run(o, stage::losses, low_where(o.graph, [](auto& op) { return op.kind == "softmax"; }), bad);
  bad = {};
  bad.status = comp::status::failed;
  bad.message = "kernel <b>exploded</b>";
  run(o, stage::losses, comp::plan(operators, comp::precision::fp8_e5m2), bad);
  const auto one = [&](stage where, const comp::plan& p, double seconds, std::string label = "") {
    comp::sample batch{.loss = 2, .seconds = seconds, .batches = 1, .batch_seconds = {seconds}};
    run(o, where, p, batch, std::move(label));
  };
  for (int i = 0; i < 6; ++i) one(stage::times, i % 2 == 0 ? best : rules, 0.03 + 0.001 * i);
  o.contest = {contestant("fp32", fp32, 0.050, 1), contestant("rule-based bf16", rules, 0.036, 2),
               contestant("comp", best, 0.031, 3)};
  o.contest[1].rule_based = true;
  for (std::size_t round = 0; round < 20; ++round) {
    for (const auto& c : o.contest) one(stage::contest, c.plan, c.seconds[round], c.label);
  }
  for (auto& c : o.contest) c.over_fp32 = comp::compare_paired(o.contest[0].seconds, c.seconds);
  o.contest[0].over_fp32 = {1, {1, 1}};
  judge(o.contest[1], of_rules, o);
  judge(o.contest[2], of_best, o);
  o.plan = best;
  o.speedup = o.contest[2].over_fp32.ratio;
  o.speedup_bounds = o.contest[2].over_fp32.bounds;
  o.trained_batches = 118;
  o.batch_seconds = comp::median(o.contest[2].seconds);
  for (std::size_t i = 0; i < operators; ++i) {
    o.reasons.push_back({o.graph[i].k > 0 ? comp::category::allow : comp::category::deny, i % 2 == 0,
                         o.graph[i].k > 0 ? "bf16 kept the loss, saves 12 us of a batch"
                                          : "bf16 beside 2 accepted operators was not accepted"});
  }
  o.fallbacks = {best, fp32};
  o.costs = {{{1, 40, 2.0}, {6, 108, 4.1}, {6, 6, 0.4}, {60, 60, 2.6}, {}}};
  o.warnings = {"no profile (the device has no timer): costs were estimated from operations and bytes"};
  return o;
}

/// The same with what comes beside: FP32 in two parts and again with its roundings perturbed, and a first look.
inline comp::outcome with_side_runs(std::size_t operators) {
  comp::outcome o = outcome(operators);
  std::vector<comp::trial> runs = std::move(o.trials);
  o.trials.clear();
  const comp::plan fp32{operators};
  const auto part = [&](std::ptrdiff_t from, std::ptrdiff_t to) {
    comp::sample s = o.baseline;
    s.batches = to - from;
    s.curve.assign(o.baseline.curve.begin() + from, o.baseline.curve.begin() + to);
    s.batch_seconds.assign(o.baseline.batch_seconds.begin() + from, o.baseline.batch_seconds.begin() + to);
    return s;
  };
  run(o, comp::stage::baseline, fp32, part(0, 16), "fp32");
  run(o, comp::stage::losses, comp::plan(operators, comp::precision::bf16), batches(1, 0.02, 0.029), "all bf16");
  o.trials.back().purpose = comp::purpose::first_look;
  run(o, comp::stage::baseline, fp32, part(16, 40), "fp32");
  o.trials.back().repeat = 1;
  run(o, comp::stage::baseline, fp32, batches(16, 0.001, 0.050), "fp32, roundings perturbed");
  o.trials.back().purpose = comp::purpose::perturbed;
  o.trials.insert(o.trials.end(), runs.begin() + 1, runs.end());
  for (std::size_t i = 0; i < o.trials.size(); ++i) o.trials[i].number = i;
  return o;
}

/// A rule-based plan that is as fast as the found one.
inline comp::outcome with_tie(std::size_t operators) {
  comp::outcome o = outcome(operators);
  o.contest[1].seconds = contestant("", {}, 0.031, 4).seconds;
  o.contest[1].over_fp32 = comp::compare_paired(o.contest[0].seconds, o.contest[1].seconds);
  o.contest[1].tie = "comp";
  return o;
}

/// A search in which no accepted plan beat FP32, on a trainer that does not say how long an epoch is.
inline comp::outcome fp32_wins(std::size_t operators) {
  comp::outcome o = outcome(operators);
  o.plan = comp::plan{operators};
  o.speedup = 1;
  o.speedup_bounds = {1, 1};
  o.batches_per_epoch = o.trained_batches = 0;
  o.batch_seconds = comp::median(o.contest[0].seconds);
  for (auto& t : o.trials) t.accepted = t.stage == comp::stage::baseline;
  for (auto& c : o.contest) {
    if (c.loss) c.loss->answer = comp::loss_answer::rejected;
  }
  return o;
}

/// One for tests that only read it.
inline const comp::outcome found = outcome(12);
/// And one for a test case that changes it.
struct of_twelve {
  comp::outcome o = outcome(12);
};

}  // namespace made_up
