// SPDX-License-Identifier: Apache-2.0
// Shows a history: on a terminal, as a page, and as numbers for a logger.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/doctor/examination_text.hpp>
#include <comp/doctor/findings.hpp>
#include <comp/doctor/history.hpp>
#include <cstddef>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace comp {
namespace detail {

inline constexpr std::array operand_names{"input", "weight", "gradient"};

/// Returns what block formats make of each operand of each product: clamp, flush, and blocks that flush more than half.
inline std::string blocks_table(const examination& e) {
  text_rows rows{{"product", "operand"}};
  for (const precision p : block_formats) {
    for (const char* what : {"clamp", "flush", "lost blocks"})
      rows.front().push_back(fmt::format("{} {}", name(p), what));
  }
  for (const examined& each : e.entries) {
    for (std::size_t o = 0; o < operand_names.size(); ++o) {
      if (each.blocks.front()[o].blocks == 0) continue;
      rows.push_back({each.name, operand_names[o]});
      for (const auto& format : each.blocks) {
        const block_counts& b = format[o];
        for (const auto& [part, of] :
             {std::pair{b.clamped, b.values}, {b.flushed, b.values}, {b.lost_blocks, b.blocks}})
          rows.back().push_back(part_text(part, of));
      }
    }
  }
  return rows.size() == 1 ? "" : aligned(rows);
}

inline text_rows parameter_rows(const history& h) {
  text_rows rows{{"parameter", "stored in", "gradient", "grew by", "updates", "values unmoved", ""}};
  for (const auto& [name, p] : h.parameters()) {
    rows.push_back({name, std::string{comp::name(p.format)},
                    p.gradients.count == 0 ? "" : fmt::format("{:.2g}", std::pow(10, p.gradients.recent)),
                    p.gradients.count == 0 ? "" : fmt::format("{:.2g}", p.gradients.growth()),
                    fmt::format("{}", p.updates), p.judged == 0 ? "" : fmt::format("{:.0f}%", 100 * p.stayed),
                    p.frozen == p.steps ? "frozen"
                    : p.arrived == 0    ? "no gradient"
                                        : ""});
  }
  return rows;
}

}  // namespace detail

/// Returns the findings in sentences, a line for each operator and parameter with the values of all steps, and what
/// block formats make of the operands of products.
inline std::string table(const history& h) {
  std::vector<std::size_t> all(h.merged().entries.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto frozen =
      std::ranges::count_if(h.parameters(), [](const auto& p) { return p.second.frozen == p.second.steps; });
  std::string text =
      fmt::format("{} steps; {} of {} parameters are frozen\n", h.steps(), frozen, h.parameters().size());
  text += table(h.merged(), faults(h), all);
  if (!h.parameters().empty()) text += "\n" + detail::aligned(detail::parameter_rows(h));
  if (const std::string blocks = detail::blocks_table(h.merged()); !blocks.empty()) text += "\n" + blocks;
  return text;
}

/// Returns the numbers of a history as it is now, by names that a logger takes: "loss", "findings",
/// "fc.linear/values", ".../zeros", ".../gradients", ".../mxfp8 weight flush"; "fc.weight/gradient",
/// "fc.weight/unmoved".
inline std::map<std::string, double> numbers(const history& h) {
  std::map<std::string, double> all{{"findings", static_cast<double>(faults(h).size())}};
  if (h.loss()) all["loss"] = *h.loss();
  for (std::size_t i = 0; i < h.merged().entries.size(); ++i) {
    const examined& e = h.merged().entries[i];
    const operator_history& o = h.operator_of(i);
    all[e.name + "/zeros"] = o.zeros;
    if (o.values.count > 0) all[e.name + "/values"] = std::pow(10, o.values.recent);
    if (o.gradients.count > 0) all[e.name + "/gradients"] = std::pow(10, o.gradients.recent);
    for (std::size_t f = 0; f < block_formats.size(); ++f) {
      for (std::size_t k = 0; k < e.blocks[f].size(); ++k) {
        const block_counts& b = e.blocks[f][k];
        if (b.values == 0) continue;
        const std::string begin = fmt::format("{}/{} {} ", e.name, name(block_formats[f]), detail::operand_names[k]);
        all[begin + "clamp"] = static_cast<double>(b.clamped) / static_cast<double>(b.values);
        all[begin + "flush"] = static_cast<double>(b.flushed) / static_cast<double>(b.values);
      }
    }
  }
  for (const auto& [name, p] : h.parameters()) {
    if (p.gradients.count > 0) all[name + "/gradient"] = std::pow(10, p.gradients.recent);
    if (p.judged > 0) all[name + "/unmoved"] = p.stayed;
  }
  return all;
}

/// Writes the page of all steps. Throws: `file_error` if it cannot be written; an old file is then still there.
inline void write_html(const history& h, const std::string& path) {
  detail::write_file(path, html_text(h.merged(), faults(h)));
}

}  // namespace comp
