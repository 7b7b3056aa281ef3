// SPDX-License-Identifier: Apache-2.0
// Reads a graph in any of the standard layouts, which it recognises by names.
#pragma once

#include <examples/data/citations.hpp>
#include <examples/data/graph_npz.hpp>
#include <optional>

namespace data_sets {
namespace detail {

/// Returns: the file in `folder` whose name ends so, with or without ".gz"; the first by name if there are several.
inline std::optional<std::filesystem::path> file_ending(const std::filesystem::path& folder, std::string_view ending) {
  std::optional<std::filesystem::path> found;
  std::error_code why;
  for (const auto& entry : std::filesystem::directory_iterator{folder, why}) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(".gz")) name.resize(name.size() - 3);
    if (name.ends_with(ending) && (!found || entry.path() < *found)) found = entry.path();
  }
  return found;
}

inline std::string quoted(const std::filesystem::path& path) { return fmt::format("\"{}\"", path.string()); }

inline std::filesystem::path must_end(const std::filesystem::path& folder, std::string_view ending,
                                      std::string_view beside) {
  const auto found = file_ending(folder, ending);
  require<file_error>(found.has_value(), "\"{}\" has no file {} (it belongs to {}): unpack the whole data set there",
                      folder.string(), ending, beside);
  return *found;
}

inline graph read_citations(const std::filesystem::path& folder, const std::filesystem::path& content) {
  const std::filesystem::path cites = must_end(folder, ".cites", content.filename().string());
  return parse_citations(read_text(content), read_text(cites), quoted(content), quoted(cites));
}

}  // namespace detail

inline constexpr std::size_t npz_limit = std::size_t{4} << 30;  // [bytes]; Reddit's 602 dense features take 1.1 GB

/// Reads a .npz of the gnn-benchmark collection, or a folder with such a file or with LINQS's .content and .cites.
/// limit: the most bytes that a .npz may unpack to. Throws: `file_error`, also for planetoid's pickles, since
/// unpickling would run code of the file; the text names the layouts that are read.
inline graph read_graph(const std::filesystem::path& path, std::size_t limit = npz_limit) {
  const auto read_npz = [limit](const std::filesystem::path& file) {
    return parse_graph_npz(file_bytes(file, limit), detail::quoted(file), limit);
  };
  std::error_code why;
  if (!std::filesystem::is_directory(path, why)) return read_npz(path);
  if (const auto npz = detail::file_ending(path, ".npz")) return read_npz(*npz);
  if (const auto content = detail::file_ending(path, ".content")) return detail::read_citations(path, *content);
  require<file_error>(!detail::file_ending(path, ".allx"),
                      "\"{}\" holds planetoid's ind.* files (Python pickles, which only Python can read): use the same "
                      "graph as .npz (gnn-benchmark) or as .content and .cites (LINQS)",
                      path.string());
  throw file_error{
      fmt::format("\"{}\" has no graph (a .npz, or .content with .cites): unpack the data set there", path.string())};
}

}  // namespace data_sets
