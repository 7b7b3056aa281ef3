// SPDX-License-Identifier: Apache-2.0
// Reads SQuAD and BERT's vocabulary from a folder: train*.json and dev*.json as published, and *vocab.txt, plain or
// gzip.
#pragma once

#include <examples/data/squad_score.hpp>
#include <examples/data/squad_windows.hpp>

namespace data_sets {

struct squad_folder {
  squad train, validation;
  wordpiece pieces;
};

namespace detail {

/// Returns: the files in `folder` with such a name, with or without ".gz", sorted by name.
inline std::vector<std::filesystem::path> files_like(const std::filesystem::path& folder, std::string_view begin,
                                                     std::string_view end) {
  std::vector<std::filesystem::path> found;
  std::error_code why;
  for (const auto& entry : std::filesystem::directory_iterator{folder, why}) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(".gz")) name.resize(name.size() - 3);
    if (name.starts_with(begin) && name.ends_with(end)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace detail

/// If the folder has only one of train and dev, the last tenth of that is for validation.
/// Throws: `file_error` if the vocabulary or both files are missing.
inline squad_folder read_squad_folder(const std::filesystem::path& folder) {
  const auto train = detail::files_like(folder, "train", ".json"), dev = detail::files_like(folder, "dev", ".json");
  const auto vocabulary = detail::files_like(folder, "", "vocab.txt");
  require<file_error>(!train.empty() || !dev.empty(),
                      "\"{}\" has neither train*.json nor dev*.json (SQuAD's files, plain or gzip): put them there",
                      folder.string());
  require<file_error>(!vocabulary.empty(),
                      "\"{}\" has no *vocab.txt (BERT's vocabulary comes apart from SQuAD): put it there",
                      folder.string());
  wordpiece pieces{read_text(vocabulary.front()), fmt::format("\"{}\"", vocabulary.front().string())};
  if (!train.empty() && !dev.empty()) return {read_squad(train.front()), read_squad(dev.front()), std::move(pieces)};
  auto [first, last] = split(read_squad(train.empty() ? dev.front() : train.front()));
  return {std::move(first), std::move(last), std::move(pieces)};
}

}  // namespace data_sets
