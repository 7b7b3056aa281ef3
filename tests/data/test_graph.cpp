// SPDX-License-Identifier: Apache-2.0
#include <examples/data/read_graph.hpp>

#include "archives.hpp"

namespace {
using namespace data_sets;
using namespace test_data;
using ints = std::vector<std::int32_t>;

/// Three nodes in a row, 0 - 1 - 2, the edge to 1 given twice and a loop at 2; node 1 has both features.
std::map<std::string, std::string> row_of_three() {
  return {{"adj_shape.npy", npy<std::int64_t>("<i8", {3, 3})},
          {"adj_indptr.npy", npy<std::int32_t>("<i4", {0, 1, 3, 4})},
          {"adj_indices.npy", npy<std::int32_t>("<i4", {1, 0, 2, 2})},
          {"adj_data.npy", npy<float>("<f4", {1, 1, 1, 1})},
          {"attr_shape.npy", npy<std::int64_t>("<i8", {3, 2})},
          {"attr_indptr.npy", npy<std::int32_t>("<i4", {0, 0, 2, 2})},
          {"attr_indices.npy", npy<std::int32_t>("<i4", {0, 1})},
          {"attr_data.npy", npy<float>("<f4", {1, 0.5F})},
          {"labels.npy", npy<std::int8_t>("|i1", {0, 1, 0})}};
}
std::string refusal(std::map<std::string, std::string> arrays) {
  return message_of([&] { parse_graph_npz(bytes(zipped(arrays)), "f"); });
}

void check_row_of_three(const graph& read) {
  CHECK(read.nodes == 3);
  CHECK(read.target == ints{0, 1, 1, 2});
  CHECK(read.source == ints{1, 0, 2, 1});
  CHECK(read.features == 2);
  CHECK(read.feature_node == ints{1, 1});
  CHECK(read.feature_column == ints{0, 1});
  CHECK(read.classes == 2);
  CHECK(read.labels == ints{0, 1, 0});
}

TEST_CASE("edges come in both directions, once, without loops") {
  const graph read = parse_graph_npz(bytes(zipped(row_of_three())), "f");
  check_row_of_three(read);
  CHECK(read.feature_value == std::vector<float>{1, 0.5F});
}

TEST_CASE("an npz that contradicts itself is refused, naming the array") {
  auto arrays = row_of_three();
  arrays["adj_indices.npy"] = npy<std::int32_t>("<i4", {1, 0, 3, 2});
  CHECK(refusal(arrays).find("adj_indices.npy in f has 3 at 2") != std::string::npos);
  arrays = row_of_three();
  arrays["adj_indptr.npy"] = npy<std::int32_t>("<i4", {0, 3, 1, 4});
  CHECK(refusal(arrays).find("does not divide 4 elements into 3 rows") != std::string::npos);
  arrays = row_of_three();
  arrays["labels.npy"] = npy<std::int8_t>("|i1", {0, 1});
  CHECK(refusal(arrays).find("2 labels (one number of nodes is needed)") != std::string::npos);
  arrays = row_of_three();
  arrays["labels.npy"] = npy<std::int8_t>("|i1", {0, -1, 0});
  CHECK(refusal(arrays).find("has -1 at 1") != std::string::npos);
  arrays.erase("labels.npy");
  CHECK(refusal(arrays).find("f has no array labels") != std::string::npos);
}

const std::string content = "p7\t0\t0\tneural\np3\t1\t1\tagents\np9\t0\t0\tneural\n";
const std::string cites = "p7\tp3\np3\tp7\np9\tp3\n";

TEST_CASE("LINQS's content and cites are read, classes in the order of their names") {
  const graph read = parse_citations(content, cites, "c", "d");
  CHECK(read.nodes == 3);
  CHECK(read.target == ints{0, 1, 1, 2});
  CHECK(read.source == ints{1, 0, 2, 1});
  CHECK(read.labels == ints{1, 0, 1});
  CHECK(read.class_names == std::vector<std::string>{"agents", "neural"});
}

TEST_CASE("lines of content and cites that are wrong are named") {
  const auto refused = [&](const std::string& papers, const std::string& edges) {
    return message_of([&] { parse_citations(papers, edges, "c", "d"); });
  };
  CHECK(refused(content + "p3\t0\t0\tx\n", cites) ==
        "c line 4 has paper \"p3\" again (each has one line): fetch the file again");
  CHECK(refused(content + "p4\t0\tx\n", cites).starts_with("c line 4 has 3 fields (4 are needed"));
  CHECK(refused(content + "p4\t0\t2\tx\n", cites).starts_with("c line 4 has \"2\" for word 2"));
  CHECK(refused(content, cites + "p3 p9\n").starts_with("d line 4 has 1 fields"));
  CHECK(refused(content, cites + "p3\tp77\n").starts_with("d has 1 citations of papers that c lacks, and 3 of others"));
  CHECK(refused("", cites).starts_with("c has no paper"));
  std::string many;
  for (int i = 0; i < 99; ++i) many += "p3\tp9\n";
  CHECK(parse_citations(content, many + "p3\tp77\n", "c", "d").source.size() == 2);  // one in a hundred is let through
}

TEST_CASE_FIXTURE(in_folder, "a folder is read in the layout that it has, packed or not") {
  in.write("npz/cora.npz", zipped(row_of_three()));
  in.write("linqs/cora.content.gz", gzip(content));
  in.write("linqs/cora.cites", cites);
  check_row_of_three(read_graph(in.path() / "npz"));
  check_row_of_three(read_graph(in.path() / "npz/cora.npz"));
  for (const char* npz : {"npz", "npz/cora.npz"}) {
    CHECK(message_of([&] { read_graph(in.path() / npz, 100); }).find("100") != std::string::npos);
  }
  CHECK(read_graph(in.path() / "linqs").nodes == 3);
}

TEST_CASE_FIXTURE(in_folder, "planetoid's pickles are refused, naming the forms that are read") {
  in.write("ind.cora.allx", "pickle");
  const std::string message = message_of([&] { read_graph(in.path()); });
  CHECK(message.find("Python pickles") != std::string::npos);
  CHECK(message.ends_with("use the same graph as .npz (gnn-benchmark) or as .content and .cites (LINQS)"));
  std::filesystem::remove(in.path() / "ind.cora.allx");
  CHECK(message_of([&] { read_graph(in.path()); }).find("has no graph") != std::string::npos);
  in.write("cora.content", content);
  CHECK(message_of([&] { read_graph(in.path()); }).find("has no file .cites (it belongs to cora.content)") !=
        std::string::npos);
}

TEST_CASE("a split draws twenty of each class, and is the same for the same seed") {
  graph large{.nodes = 3000, .classes = 3};
  for (std::int32_t i = 0; i < large.nodes; ++i) large.labels.push_back(i % 3);
  const node_split first = split_nodes(large, 7), again = split_nodes(large, 7), other = split_nodes(large, 8);
  CHECK(first.train.size() == 60);
  CHECK(first.validation.size() == 500);
  CHECK(first.test.size() == 1000);
  CHECK(first.train == again.train);
  CHECK(first.test != other.test);
  std::vector<int> uses(3000), of_class(3);
  for (const auto* part : {&first.train, &first.validation, &first.test}) {
    for (const std::int64_t node : *part) ++uses[static_cast<std::size_t>(node)];
  }
  CHECK(*std::max_element(uses.begin(), uses.end()) == 1);
  for (const std::int64_t node : first.train) ++of_class[static_cast<std::size_t>(node % 3)];
  CHECK(of_class == std::vector<int>{20, 20, 20});
  large.nodes = 61;
  large.labels.resize(61);
  CHECK(message_of([&] { split_nodes(large, 7); }).starts_with("1 nodes are left"));
}
}  // namespace
