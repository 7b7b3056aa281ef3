// SPDX-License-Identifier: Apache-2.0
// The placements of TVM and TensorFlow that comp's is compared with are written down here from their sources: TVM casts
// an argument of a call once per precision (CachedCast), TensorFlow an output port once (ChangeTypeAttrsAndAddCasts).
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <comp/autocast/casts.hpp>
#include <set>

#include "model_graphs.hpp"
#include "processor_time.hpp"

namespace casts_tests {
using comp::precision;
using comp::autocast::cast;
using comp::autocast::cast_list;
using comp::autocast::casts;
using comp::autocast::typed;
using comp::autocast::typed_plan;

comp::op_info op(std::string kind, std::vector<std::size_t> producers, std::int64_t elements, bool choosable = true) {
  return {.name = kind,
          .kind = kind,
          .outputs = {{.shape = {elements}}},
          .producers = std::move(producers),
          .choosable = choosable};
}
comp::op_info view(std::vector<std::size_t> producers, std::int64_t elements) {
  return op("view", std::move(producers), elements, false);
}
/// "0:1>0*2" is: the result of operator 0, from FP32 to FP16, for two readers.
std::vector<std::string> text(const std::vector<cast>& all) {
  std::vector<std::string> lines;
  for (const cast& c : all) {
    lines.push_back(std::to_string(c.op) + (c.input ? "." + std::to_string(*c.input) : "") + ":" + letter(c.from) +
                    ">" + letter(c.to) + "*" + std::to_string(c.readers.size()));
  }
  return lines;
}
using lines = std::vector<std::string>;

TEST_CASE("a tied weight is cast once per precision for all of its readers, as are the weights of recurrent steps") {
  const auto step = [](std::vector<std::size_t> reads, std::int32_t weight) {
    comp::op_info info = op("linear", reads, 8);
    for (const std::size_t from : reads)
      info.inputs.push_back({.shape = {8}, .source = static_cast<std::int32_t>(from)});
    if (reads.empty()) info.inputs.push_back({.shape = {8}});
    info.inputs.push_back({.shape = {8, 8}, .parameter = true, .leaf = weight});
    return info;
  };
  // Three recurrent steps: their datum, and one weight for all.
  CHECK(text(casts(comp::op_graph{{step({}, 5), step({0}, 5), step({1}, 5)}}, comp::parse_plan("000")).forward) ==
        lines{"0.0:1>0*1", "0.1:1>0*3"});
  // The second reader wants another precision, the third has another weight.
  CHECK(text(casts(comp::op_graph{{step({}, 5), step({0}, 5), step({1}, 6)}}, comp::parse_plan("0b0")).forward) ==
        lines{"0.0:1>0*1", "0.1:1>0*1", "0:0>b*1", "1.1:1>b*1", "1:b>0*1", "2.1:1>0*1"});
  // Not known to be the same: each reader casts its own.
  CHECK(casts(comp::op_graph{{step({}, -1), step({0}, -1), step({1}, -1)}}, comp::parse_plan("000")).forward.size() ==
        4);
}

TEST_CASE("an in-place write leaves the format of the tensor that it writes") {
  comp::op_info write = op("add_.Tensor", {0, 1}, 8, false);
  write.inputs = {{.shape = {8}, .source = 0}, {.shape = {8}, .source = 1}};
  const comp::op_graph graph{{op("a", {}, 8), op("b", {}, 8), write, op("c", {2}, 8)}};
  CHECK(casts(graph, comp::parse_plan("0110")).forward.empty());
}

TEST_CASE("before a view that makes a tensor larger, after one that makes it smaller") {
  const comp::op_graph expanded{{op("a", {}, 8), view({0}, 800), op("b", {1}, 8)}};
  CHECK(text(casts(expanded, comp::parse_plan("110")).forward) == lines{"0:1>0*1"});
  const comp::op_graph sliced{{op("a", {}, 800), view({0}, 8), op("b", {1}, 8)}};
  CHECK(text(casts(sliced, comp::parse_plan("110")).forward) == lines{"1:1>0*1"});
}

TEST_CASE("query, key and value split from one tensor: one cast of it, or three of its parts, whatever moves less") {
  const comp::op_graph whole{
      {op("a", {}, 24), view({0}, 8), view({0}, 8), view({0}, 8), op("q", {1}, 8), op("k", {2}, 8), op("v", {3}, 8)}};
  CHECK(text(casts(whole, comp::parse_plan("1111000")).forward) == lines{"0:1>0*3"});  // as many bytes: the one cast
  CHECK(text(casts(whole, comp::parse_plan("1111001")).forward) == lines{"1:1>0*1", "2:1>0*1"});
}

TEST_CASE("an FP32 accumulator with an FP16 output is one cast after the operator, and none for FP32 readers") {
  const comp::op_graph graph{{op("conv2d", {}, 8), op("relu", {0}, 8), op("softmax", {0}, 8)}};
  typed_plan types = typed(graph, comp::parse_plan("001"));
  types.written[0] = precision::fp32;
  CHECK(text(casts(graph, types).forward) == lines{"0:1>0*1"});
  types.plan = comp::parse_plan("011");  // nobody reads the FP16 output: it is never made
  CHECK(casts(graph, types).forward.empty());
}

TEST_CASE("what the model hands out is in the precision that the pass says") {
  const comp::op_graph graph{{op("conv2d", {}, 8)}};
  typed_plan types = typed(graph, comp::parse_plan("0"));
  types.written[0] = precision::fp32;
  CHECK(text(casts(graph, types).forward) == lines{"0:1>0*0"});
}

TEST_CASE("parameters and data are cast before their operator, norms keep theirs, data gets no gradient") {
  model_graphs::builder net;
  const std::size_t first =
      net.add("fc", "linear", {}, {4, 8}, {{.shape = {4, 2}}, model_graphs::weight({8, 2}), model_graphs::weight({8})});
  net.norm("norm", first);
  const comp::op_graph graph = std::move(net).finish();
  const cast_list list = casts(graph, comp::parse_plan("00"));
  CHECK(text(list.forward) == lines{"0.0:1>0*1", "0.1:1>0*1", "0.2:1>0*1"});
  CHECK(text(list.backward) == lines{"0.2:0>1*1", "0.1:0>1*1"});
  CHECK(list.bytes() == 6 * (8 + 2 * (16 + 8)));
}

TEST_CASE("parameters that are stored low are cast up for an operator in FP32, and not for one in low precision") {
  const comp::op_graph graph{[] {
    model_graphs::builder net;
    net.linear("b", net.add("a", "relu", {}, {4, 2}, {{.shape = {4, 2}}}), 8);
    return std::move(net).finish();
  }()};
  typed_plan types = typed(graph, comp::parse_plan("11"));
  types.parameters[1] = precision::fp16;
  CHECK(text(casts(graph, types).forward) == lines{"1.1:0>1*1", "1.2:0>1*1"});
  types.plan[1] = precision::fp16;
  CHECK(text(casts(graph, types).forward) == lines{"0:1>0*1"});
}

TEST_CASE("the gradients come back through the same casts, last first") {
  const comp::op_graph graph{{op("a", {}, 8), op("b", {0}, 8), op("c", {1}, 8)}};
  const cast_list list = casts(graph, comp::parse_plan("101"));
  CHECK(text(list.forward) == lines{"0:1>0*1", "1:0>1*1"});
  CHECK(text(list.backward) == lines{"1:1>0*1", "0:0>1*1"});
  CHECK(list.bytes() == 4 * 8 * 6);
}

TEST_CASE("the casts of 100,000 operators are placed in seconds") {
  const comp::op_graph deep = model_graphs::bert(4000);
  REQUIRE(deep.size() > 100'000);
  comp::plan alternating{deep.size()};
  for (std::size_t i = 0; i < deep.size(); i += 2)
    alternating[i] = deep[i].choosable ? precision::bf16 : precision::fp32;
  const double started = processor_seconds();
  CHECK(casts(deep, alternating).forward.size() > 10'000);
  CHECK(processor_seconds() - started < 20);  // with sanitizers, too
}

// Random graphs: views and in-place writes with one or several producers, integers, readers of all precisions.
struct drawn {
  comp::op_graph graph;
  comp::plan plan;
};
drawn draw(const std::vector<precision>& allowed) {
  const auto n = *rc::gen::inRange<std::size_t>(1, 25);
  std::vector<comp::op_info> ops;
  comp::plan plan{n};
  for (std::size_t i = 0; i < n; ++i) {
    const auto what = *rc::gen::weightedElement<int>({{6, 0}, {3, 1}, {1, 2}});
    auto info = op(what == 0 ? "op" : what == 1 ? "view" : "relu_", {}, *rc::gen::inRange(0, 100), what == 0);
    const auto reads = i == 0 ? 0 : *rc::gen::weightedElement<int>({{1, 0}, {5, 1}, {2, 2}, {1, 3}});
    for (int r = 0; r < reads; ++r) info.producers.push_back(*rc::gen::inRange<std::size_t>(i > 6 ? i - 6 : 0, i));
    info.outputs[0].floating = *rc::gen::weightedElement<bool>({{9, true}, {1, false}});
    if (info.choosable) plan[i] = *rc::gen::elementOf(allowed);
    ops.push_back(std::move(info));
  }
  if (std::all_of(ops.begin(), ops.end(), [](const auto& o) { return o.producers.empty(); })) ops.resize(1);
  plan = comp::plan{std::vector<precision>{plan.begin(), plan.begin() + static_cast<std::ptrdiff_t>(ops.size())}};
  return {comp::op_graph{std::move(ops)}, plan};
}
const std::vector<precision> every = [] {
  std::vector<precision> all{comp::all_precisions.begin(), comp::all_precisions.end()};
  std::erase(all, precision::fp64);
  return all;
}();
const std::vector<precision> two{precision::fp32, precision::fp16};

/// What `reader` wants of `from`; nothing when it takes what it gets.
bool reads_floats(const drawn& d, std::size_t reader, std::size_t from) {
  return d.graph[reader].choosable && d.graph[from].outputs[0].floating;
}

/// Every choosable reader finds each float input in its own precision: as written, or by a cast of the tensor or of
/// what it is a view of.
bool legal(const drawn& d, const typed_plan& types, const std::vector<cast>& placed) {
  const auto finds = [&](std::size_t from, precision wanted) {
    for (std::size_t at = from;;) {
      if (std::any_of(placed.begin(), placed.end(),
                      [&](const cast& c) { return !c.input && c.op == at && c.to == wanted; }))
        return true;
      std::vector<std::size_t> sources;
      for (const std::size_t p : d.graph[at].producers) {
        if (d.graph[p].outputs[0].floating) sources.push_back(p);
      }
      if (d.graph[at].kind != "view" || sources.size() != 1) return types.written[at] == wanted;
      at = sources[0];
    }
  };
  for (std::size_t reader = 0; reader < d.graph.size(); ++reader) {
    for (const std::size_t from : d.graph[reader].producers) {
      if (reads_floats(d, reader, from) && !finds(from, comp::read_in(d.plan[reader]))) return false;
    }
  }
  return true;
}

/// TVM: an argument is cast once per precision, whoever asks.
std::pair<std::size_t, std::int64_t> tvm_casts(const drawn& d, const typed_plan& types) {
  std::set<std::pair<std::size_t, precision>> pairs;
  std::int64_t bytes = 0;
  for (std::size_t reader = 0; reader < d.graph.size(); ++reader) {
    for (const std::size_t from : d.graph[reader].producers) {
      const precision wanted = comp::read_in(d.plan[reader]);
      if (!reads_floats(d, reader, from) || wanted == types.handed_on[from] || !pairs.insert({from, wanted}).second)
        continue;
      bytes += d.graph[from].outputs[0].shape[0] * (traits(wanted).bytes + traits(types.handed_on[from]).bytes);
    }
  }
  return {pairs.size(), bytes};
}
/// TensorFlow: one cast at an output when a reader of it has the other colour. A view has the colour of what it reads.
std::size_t tensorflow_casts(const drawn& d, const typed_plan& types) {
  std::size_t count = 0;
  for (std::size_t from = 0; from < d.graph.size(); ++from) {
    const auto readers = d.graph.consumers(from);
    count += std::any_of(readers.begin(), readers.end(), [&](std::size_t to) {
      return reads_floats(d, to, from) && types.handed_on[from] != comp::read_in(d.plan[to]);
    });
  }
  return count;
}

TEST_CASE("on random graphs every operator's inputs are legal and no cast can be removed") {
  CHECK(rc::check("legal and minimal", [] {
    const drawn d = draw(every);
    const typed_plan types = typed(d.graph, d.plan);
    const auto placed = casts(d.graph, types).forward;
    RC_ASSERT(legal(d, types, placed));
    std::set<std::pair<std::size_t, precision>> pairs;
    for (std::size_t i = 0; i < placed.size(); ++i) {
      RC_ASSERT(placed[i].from != placed[i].to);
      RC_ASSERT(pairs.insert({placed[i].op, placed[i].to}).second);
      auto without = placed;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      RC_ASSERT(!legal(d, types, without));
    }
  }));
}

TEST_CASE("on random graphs there are never more casts than TVM's or TensorFlow's, nor more bytes") {
  CHECK(rc::check("never more than theirs", [] {
    const drawn d = draw(two);
    const typed_plan types = typed(d.graph, d.plan);
    const cast_list list = casts(d.graph, types);
    const auto [count, bytes] = tvm_casts(d, types);
    RC_ASSERT(list.forward.size() <= count);
    RC_ASSERT(list.forward.size() <= tensorflow_casts(d, types));
    RC_ASSERT(list.bytes() <= 2 * bytes);
  }));
  CHECK(rc::check("with all precisions, never more than TVM's", [] {
    const drawn d = draw(every);
    const typed_plan types = typed(d.graph, d.plan);
    RC_ASSERT(casts(d.graph, types).forward.size() <= tvm_casts(d, types).first);
  }));
}

TEST_CASE("on random graphs readers are those that the cast serves, and each is served once") {
  CHECK(rc::check("readers", [] {
    const drawn d = draw(every);
    const typed_plan types = typed(d.graph, d.plan);
    for (const cast& c : casts(d.graph, types).forward) {
      RC_ASSERT(!c.readers.empty());
      RC_ASSERT(std::is_sorted(c.readers.begin(), c.readers.end()));
      for (const auto reader : c.readers) RC_ASSERT(comp::read_in(d.plan[reader]) == c.to);
    }
  }));
}
}  // namespace casts_tests
