// SPDX-License-Identifier: Apache-2.0
// The published files, if the environment variable COMP_DATA names a folder with mnist/, cifar10/, cifar100/, cora/ and
// squad-v2/.
#include <algorithm>
#include <cstdlib>
#include <examples/data/cifar.hpp>
#include <examples/data/idx.hpp>
#include <examples/data/read_graph.hpp>
#include <examples/data/read_squad.hpp>
#include <optional>

#include "temporary.hpp"

namespace {
using namespace data_sets;

/// The subfolder of COMP_DATA; nothing, with a message, if there is none.
std::optional<std::filesystem::path> real(const char* subfolder) {
  const char* root = std::getenv("COMP_DATA");
  std::error_code why;
  if (root != nullptr && std::filesystem::is_directory(std::filesystem::path{root} / subfolder, why)) {
    return std::filesystem::path{root} / subfolder;
  }
  MESSAGE("COMP_DATA names no folder with ", subfolder, ": skipped");
  return std::nullopt;
}

std::vector<std::filesystem::path> files_with(const std::filesystem::path& folder, const std::string& part) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator{folder}) {
    if (entry.path().filename().string().find(part) != std::string::npos) found.push_back(entry.path());
  }
  return found;
}

TEST_CASE("MNIST's own files are read") {
  const auto folder = real("mnist");
  if (!folder) return;
  const images train = read_mnist(*folder, part::train);
  const images test = read_mnist(*folder, part::test);
  CHECK(train.count == 60'000);
  CHECK(test.count == 10'000);
  CHECK(train.width == 28);
  CHECK(train.height == 28);
  CHECK(train.classes == 10);
  CHECK(std::vector(train.labels.begin(), train.labels.begin() + 5) == std::vector<std::int32_t>{5, 0, 4, 1, 9});
  CHECK(std::ranges::max(train.pixels) == 255);
}

TEST_CASE("files of CIFAR-10 are read") {
  const auto folder = real("cifar10");
  if (!folder) return;
  const auto files = files_with(*folder, "data_batch_1");
  REQUIRE_FALSE(files.empty());
  const images read = read_cifar(files.front(), part::train);
  CHECK(read.classes == 10);
  CHECK(read.count >= 1000);
  CHECK(std::vector(read.labels.begin(), read.labels.begin() + 5) == std::vector<std::int32_t>{6, 9, 9, 4, 1});
}

TEST_CASE("files of CIFAR-100 are read") {
  const auto folder = real("cifar100");
  if (!folder) return;
  const auto files = files_with(*folder, "train.");
  REQUIRE_FALSE(files.empty());
  const images read = read_cifar(files.front(), part::train);
  CHECK(read.classes == 100);
  CHECK(read.count >= 1000);
  CHECK(std::ranges::max(read.labels) == 99);
}

TEST_CASE("Cora has the published numbers of nodes, edges and features") {
  if (const auto folder = real("cora")) {
    const graph cora = read_graph(*folder);
    CHECK(cora.nodes == 2708);
    CHECK(cora.source.size() == 2 * 5278);
    CHECK(cora.features == 1433);
    CHECK(cora.feature_value.size() == 49'216);
    CHECK(cora.classes == 7);
  }
}

TEST_CASE("SQuAD's answers are found again by their tokens") {
  const auto folder = real("squad-v2");
  if (!folder) return;
  const squad_folder read = read_squad_folder(*folder);
  CHECK(read.pieces.size() == 30'522);
  CHECK(read.train.questions.size() > 9 * read.validation.questions.size() / 2);
  std::vector<std::string> answers(read.train.questions.size());
  for (const squad_window& window : windows(read.train, read.pieces)) {
    if (window.last == 0) continue;
    const std::size_t begin = window.from[static_cast<std::size_t>(window.first)].first;
    const std::size_t end = window.from[static_cast<std::size_t>(window.last)].second;
    answers[window.question] =
        read.train.contexts[read.train.questions[window.question].context].substr(begin, end - begin);
  }
  CHECK(score_answers(read.train, answers).f1 > 0.999);
}
}  // namespace
