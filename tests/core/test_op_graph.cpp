// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <comp/core/op_graph.hpp>
#include <fstream>
#include <functional>
#include <set>

#include "processor_time.hpp"

using comp::op_graph;
using comp::op_info;

namespace {

// stem -> left, right -> join: the smallest graph that is no chain.
std::vector<op_info> diamond() {
  return {{.name = "stem", .kind = "conv2d", .outputs = {{.shape = {1, 8, 4, 4}}}},
          {.name = "left", .kind = "relu", .producers = {0}},
          {.name = "right", .kind = "tanh", .producers = {0}},
          {.name = "join", .kind = "add", .producers = {1, 2}}};
}

std::vector<std::uint32_t> consumers(const op_graph& graph, std::size_t i) {
  const auto readers = graph.consumers(i);
  return {readers.begin(), readers.end()};
}

[[maybe_unused]] std::size_t resident_bytes() {
  std::ifstream statm{"/proc/self/statm"};
  std::size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

}  // namespace

TEST_CASE("operators that name no producer are read as a chain") {
  const op_graph chain{{{.name = "a"}, {.name = "b"}, {.name = "c"}}};
  CHECK(chain[0].producers.empty());
  CHECK(chain[1].producers == std::vector<std::size_t>{0});
  CHECK(chain[2].producers == std::vector<std::size_t>{1});
  CHECK(consumers(chain, 1) == std::vector<std::uint32_t>{2});
  CHECK(consumers(chain, 2).empty());
}

TEST_CASE("one named producer is enough for the graph to be taken as it is") {
  const op_graph graph{{{.name = "a"}, {.name = "b"}, {.name = "c", .producers = {0}}}};
  CHECK(graph[1].producers.empty());
  CHECK(consumers(graph, 0) == std::vector<std::uint32_t>{2});
  CHECK(consumers(graph, 1).empty());
}

TEST_CASE("a fork has two consumers and a join two producers") {
  const op_graph graph{diamond()};
  CHECK(consumers(graph, 0) == std::vector<std::uint32_t>{1, 2});
  CHECK(consumers(graph, 1) == std::vector<std::uint32_t>{3});
  CHECK(consumers(graph, 2) == std::vector<std::uint32_t>{3});
  CHECK(consumers(graph, 3).empty());
}

TEST_CASE("an empty graph is a graph") {
  CHECK(op_graph{}.empty());
  CHECK(op_graph{std::vector<op_info>{}}.size() == 0);
  CHECK(op_graph{}.fingerprint() == op_graph{std::vector<op_info>{}}.fingerprint());
}

TEST_CASE("an operator that reads a later one, or itself, is refused by name") {
  CHECK_THROWS_WITH_AS(op_graph({{.name = "a"}, {.name = "b", .producers = {2}}, {.name = "c", .producers = {0}}}),
                       "operator 1 (\"b\") reads operator 2 (a producer comes before its readers): "
                       "give the operators in execution order",
                       comp::graph_error);
  CHECK_THROWS_WITH_AS(op_graph(std::vector<op_info>{{.name = "a", .producers = {0}}}),
                       "operator 0 (\"a\") reads operator 0 (a producer comes before its readers): "
                       "give the operators in execution order",
                       comp::graph_error);
  CHECK_THROWS_AS(op_graph({{.name = "a"}, {.name = "b", .producers = {~std::size_t{0}}}}), comp::graph_error);
}

TEST_CASE("consumers mirror producers in any graph") {
  CHECK(rc::check([] {
    const auto size = *rc::gen::inRange<std::size_t>(2, 16);
    std::vector<op_info> operators(size);
    std::set<std::pair<std::size_t, std::size_t>> edges;
    for (std::size_t i = 1; i < size; ++i) {
      for (std::size_t p = 0; p < i; ++p) {
        if (!*rc::gen::arbitrary<bool>()) continue;
        operators[i].producers.push_back(p);
        edges.emplace(p, i);
      }
    }
    RC_PRE(!edges.empty());
    const op_graph graph{operators};
    std::set<std::pair<std::size_t, std::size_t>> pairs;
    for (std::size_t i = 0; i < size; ++i) {
      const auto readers = consumers(graph, i);
      RC_ASSERT(std::ranges::is_sorted(readers));
      for (const auto reader : readers) pairs.emplace(i, reader);
    }
    RC_ASSERT(pairs == edges);
  }));
}

TEST_CASE("equal models have equal fingerprints and any difference shows") {
  const auto original = op_graph{diamond()}.fingerprint();
  CHECK(op_graph{diamond()}.fingerprint() == original);
  const std::pair<const char*, std::function<void(std::vector<op_info>&)>> changes[] = {
      {"a name", [](auto& ops) { ops[1].name = "centre"; }},
      {"a kind", [](auto& ops) { ops[1].kind = "gelu"; }},
      {"a shape", [](auto& ops) { ops[0].outputs[0].shape[1] = 16; }},
      {"a rank", [](auto& ops) { ops[0].outputs[0].shape.push_back(1); }},
      {"an output more", [](auto& ops) { ops[0].outputs.push_back({}); }},
      {"an input more", [](auto& ops) { ops[0].inputs.push_back({}); }},
      {"an edge", [](auto& ops) { ops[3].producers = {1}; }},
      {"what is choosable", [](auto& ops) { ops[1].choosable = false; }},
      {"an operator more", [](auto& ops) { ops.push_back({.name = "end", .producers = {3}}); }},
      {"letters moved from name to kind", [](auto& ops) { ops[1].name = "lef", ops[1].kind = "trelu"; }}};
  std::set<std::uint64_t> fingerprints{original};
  for (const auto& [what, change] : changes) {
    CAPTURE(what);
    auto operators = diamond();
    change(operators);
    CHECK(fingerprints.insert(op_graph{std::move(operators)}.fingerprint()).second);
  }
}

TEST_CASE("where operators have no shapes their sizes tell models apart") {
  const auto wide = [](std::int64_t op_info::*size, std::int64_t value, bool shaped) {
    op_info op{.name = "head", .kind = "linear"};
    op.*size = value;
    if (shaped) op.outputs = {{.shape = {8, 8}}};
    return op_graph{{op}}.fingerprint();
  };
  for (const auto size : {&op_info::m, &op_info::n, &op_info::k, &op_info::channels_in, &op_info::channels_out}) {
    CHECK(wide(size, 64, false) != wide(size, 128, false));
    CHECK(wide(size, 64, true) == wide(size, 128, true));  // shapes say it, and files of earlier versions stay valid
    CHECK(wide(size, 0, false) == op_graph{{op_info{.name = "head", .kind = "linear"}}}.fingerprint());
  }
}

TEST_CASE("a model has one fingerprint, whether its author's blocks are heeded or freed") {
  auto operators = diamond();
  operators[1].choosable = false;
  operators[1].author = comp::author_choice::autocast_off;
  CHECK(op_graph{std::move(operators)}.fingerprint() == op_graph{diamond()}.fingerprint());
}

TEST_CASE("a fingerprint does not depend on the machine or the version of this file") {
  CHECK(op_graph{}.fingerprint() == 0xcbf29ce484222325ULL);         // FNV-1a of nothing
  CHECK(op_graph{diamond()}.fingerprint() == 0x16b87f2819083aULL);  // computed apart from this code
}

TEST_CASE("a graph of 100,000 operators is made, walked and hashed in under a second and 200 MB") {
#if defined(__SANITIZE_ADDRESS__)
  constexpr double seconds_at_most = 10;  // instrumented code, and memory that says nothing
#else
  constexpr double seconds_at_most = 1;
  const auto bytes_before = resident_bytes();
#endif
  const double start = processor_seconds();
  std::vector<op_info> operators;
  operators.reserve(100'000);
  for (std::size_t i = 0; i < 100'000; ++i) {
    operators.push_back({.name = fmt::format("block{}.attention.query{}", i / 16, i % 16),
                         .kind = "linear",
                         .scopes = {fmt::format("block{}", i / 16), "attention"},
                         .inputs = {{.shape = {32, 128, 768}}, {.shape = {768, 768}}},
                         .outputs = {{.shape = {32, 128, 768}}},
                         .producers = i < 2 ? std::vector<std::size_t>{} : std::vector<std::size_t>{i - 1, i - 2}});
  }
  const op_graph graph{std::move(operators)};
  std::size_t edges = 0;
  for (std::size_t i = 0; i < graph.size(); ++i) edges += graph.consumers(i).size();
  CHECK(edges == 2 * 99'998);
  CHECK(graph.fingerprint() != 0);
  CHECK(processor_seconds() - start < seconds_at_most);
#if !defined(__SANITIZE_ADDRESS__)
  CHECK(resident_bytes() - bytes_before < 200'000'000);
#endif
}
