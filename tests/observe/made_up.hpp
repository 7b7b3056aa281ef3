// SPDX-License-Identifier: Apache-2.0
// Outcomes made by hand for the tests of observe/: of any size, with each fate that a candidate can have.
#pragma once

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

inline comp::sample epoch(double loss, double per_batch) {
  comp::sample s;
  s.loss = loss;
  s.batches = 40;
  s.seconds = 40 * per_batch;
  s.peak_bytes = 120 << 20;
  for (int i = 0; i < 40; ++i) {
    s.batch_seconds.push_back(per_batch * (1 + 0.02 * ((i * 7) % 5)));
    s.curve.push_back(loss + 1.0 / (1 + i));
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
  t.accepted = t.sample.ok() && t.sample.loss < 2.323;
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

/// A search that found 1.6 times FP32's speed in BF16, with every kind of failure on its way.
inline comp::outcome outcome(std::size_t operators) {
  using comp::stage;
  comp::outcome o;
  o.graph = graph(operators);
  o.hardware = machine();
  o.precisions = {comp::precision::fp32, comp::precision::bf16, comp::precision::fp16};
  const comp::plan fp32{operators};
  const comp::plan rules = low_where(o.graph, [](auto& op) { return op.k > 0; });
  const comp::plan best = low_where(o.graph, [](auto& op) { return op.k > 0 || op.kind == "gelu"; });
  const comp::plan all = low_where(o.graph, [](auto&) { return true; });
  o.baseline = run(o, stage::baseline, fp32, epoch(2.3, 0.050), "fp32").sample;
  run(o, stage::epochs, rules, epoch(2.304, 0.036));
  o.first_epoch = run(o, stage::epochs, best, epoch(2.312, 0.031)).sample;
  run(o, stage::epochs, all, epoch(2.41, 0.029));
  auto bad = epoch(std::nan(""), 0.030);
  bad.status = comp::status::not_finite;
  run(o, stage::epochs, comp::plan(operators, comp::precision::fp16), bad);
  bad = epoch(2.7, 0.092);
  bad.status = comp::status::stopped_early;
  run(o, stage::epochs, low_where(o.graph, [](auto& op) { return op.kind == "softmax"; }), bad);
  bad = {};
  bad.status = comp::status::failed;
  bad.message = "kernel <b>exploded</b>";
  run(o, stage::epochs, comp::plan(operators, comp::precision::fp8_e5m2), bad);
  for (int i = 0; i < 6; ++i) {
    comp::sample batch;
    batch.loss = 2;
    batch.batches = 1;
    batch.seconds = 0.03;
    batch.batch_seconds = {0.03 + 0.001 * i};
    run(o, stage::batches, i % 2 == 0 ? best : rules, batch);
  }
  o.contest = {contestant("fp32", fp32, 0.050, 1), contestant("rule-based bf16", rules, 0.036, 2),
               contestant("comp", best, 0.031, 3)};
  for (auto& c : o.contest) c.over_fp32 = comp::compare_paired(o.contest[0].seconds, c.seconds);
  o.contest[0].epoch = o.baseline;
  o.contest[2].epoch = o.first_epoch;
  o.plan = best;
  o.speedup = o.contest[2].over_fp32.ratio;
  o.speedup_bounds = o.contest[2].over_fp32.bounds;
  o.trained_epochs = 1;
  for (std::size_t i = 0; i < operators; ++i) {
    o.reasons.push_back({o.graph[i].k > 0 ? comp::category::allow : comp::category::deny, i % 2 == 0,
                         o.graph[i].k > 0 ? "on the allow list, and its sizes suit the hardware: bf16"
                                          : "on the deny list: lowering it by epochs was not accepted or not faster"});
  }
  o.fallbacks = {best, fp32};
  o.costs = {{{1, 40, 2.0}, {6, 200, 7.1}, {6, 6, 0.4}, {60, 60, 2.6}, {1, 40, 1.24}}};
  o.warnings = {"two FP32 epochs from the same state differ by 0.001 of the loss"};
  return o;
}

/// A search in which nothing beat FP32.
inline comp::outcome fp32_wins(std::size_t operators) {
  comp::outcome o = outcome(operators);
  o.plan = comp::plan{operators};
  o.speedup = 1;
  o.speedup_bounds = {1, 1};
  o.first_epoch = o.baseline;
  for (auto& t : o.trials) t.accepted = t.stage == comp::stage::baseline;
  return o;
}

}  // namespace made_up
