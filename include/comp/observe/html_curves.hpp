// SPDX-License-Identifier: Apache-2.0
// The report's loss curves. One chart has the losses of FP32 and of the found plan on the same batches from the same
// state, the other the mean of their differences so far, by which the plan was judged.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/observe/html_chart.hpp>
#include <comp/observe/loss_change.hpp>
#include <comp/search/losses/loss_test.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace comp::detail {

/// Returns at most 240 places of a curve of `n` batches, evenly spread, with the last one among them. More points would
/// make the page larger and the line no finer.
inline std::vector<std::size_t> shown_batches(std::size_t n) {
  constexpr std::size_t most = 240;
  std::vector<std::size_t> shown;
  for (std::size_t k = 0, count = std::min(n, most); k < count; ++k) shown.push_back((k + 1) * n / count - 1);
  return shown;
}

/// Draws a line through the finite values of `curve`, with gaps at the others.
inline std::string curve_line(const chart_frame& f, std::span<const double> curve, std::string_view style) {
  std::string path;
  bool on = false;
  for (const std::size_t i : shown_batches(curve.size())) {
    const bool finite = std::isfinite(curve[i]);
    if (finite) {
      path += fmt::format("{}{:.1f} {:.1f}", on ? 'L' : 'M', f.x(static_cast<double>(i + 1)), f.y(curve[i]));
    }
    on = finite;
  }
  return fmt::format("<path class=\"line {}\" d=\"{}\"/>\n", style, path);
}

/// Draws the area between two curves of the same length.
inline std::string curve_band(const chart_frame& f, std::span<const double> low, std::span<const double> high) {
  std::string there, back;
  for (const std::size_t i : shown_batches(low.size())) {
    if (!std::isfinite(low[i]) || !std::isfinite(high[i])) continue;
    const double x = f.x(static_cast<double>(i + 1));
    there += fmt::format("{}{:.1f} {:.1f}", there.empty() ? 'M' : 'L', x, f.y(low[i]));
    back.insert(0, fmt::format("L{:.1f} {:.1f}", x, f.y(high[i])));
  }
  return there.empty() ? "" : fmt::format("<path class=\"band\" d=\"{}{}z\"/>\n", there, back);
}

/// Returns a frame that holds all finite values of the curves with a little margin. It is not finite if no value is.
inline chart_frame curve_frame(std::size_t batches, std::initializer_list<std::span<const double>> curves) {
  chart_frame f{1, static_cast<double>(std::max<std::size_t>(batches, 2)), INFINITY, -INFINITY};
  for (const auto curve : curves) {
    for (const double value : curve) {
      if (!std::isfinite(value)) continue;
      f.y_low = std::min(f.y_low, value);
      f.y_high = std::max(f.y_high, value);
    }
  }
  const double more = 0.04 * (f.y_high - f.y_low);
  if (std::isfinite(more)) f.y_low -= more, f.y_high += more;
  return f;
}

inline std::string curve_legend(std::string_view low, std::string_view band) {
  const auto entry = [](std::string_view style, std::string_view words) {
    return fmt::format(
        "<span><svg width=\"26\" height=\"12\" aria-hidden=\"true\"><path class=\"{}\" d=\"M0 6h26\"/></svg>{}</span>",
        style, words);
  };
  return "<div class=\"legend\">" + entry("line fp32", "FP32") + entry("line low", low) + entry("band key-band", band) +
         "</div>\n";
}

inline std::string batch_tick(double batch) { return fmt::format("{:g}", batch); }

/// Draws both charts for one run. The first one has the losses, whose noise from batch to batch hides small
/// differences. The second one has the mean difference so far, which is what was judged.
inline std::string curves_of(const sample& got, const outcome& result, std::string_view what) {
  const std::size_t n = std::min(got.curve.size(), result.baseline.curve.size());
  const std::span base{result.baseline.curve.data(), n}, low{got.curve.data(), n};
  const double scale = loss_scale(base), accepted = (result.higher_is_better ? -1 : 1) * result.tolerance;
  std::vector<double> edge(n), so_far(n), zero(n), line(n, accepted);
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    edge[i] = base[i] + accepted * scale;
    sum += low[i] - base[i];
    so_far[i] = sum / static_cast<double>(i + 1) / scale;
  }
  const chart_frame losses = curve_frame(n, {base, low, edge}), changes = curve_frame(n, {so_far, zero, line});
  if (!std::isfinite(losses.y_low) || !std::isfinite(changes.y_low)) return "";
  const auto number = [](double loss) { return fmt::format("{:.4g}", loss); };
  const std::string first = chart_axes(losses, "batch", "loss", batch_tick, number) + curve_band(losses, base, edge) +
                            curve_line(losses, base, "fp32") + curve_line(losses, low, "low");
  const std::string second =
      chart_axes(changes, "batch", "mean loss so far, against FP32's", batch_tick, axis_percent) +
      curve_band(changes, zero, line) + curve_line(changes, zero, "fp32") + curve_line(changes, so_far, "low");
  return curve_legend(what, fmt::format("accepted, {:+g}% of FP32's mean", 100 * accepted)) + "<div class=\"charts\">" +
         chart(fmt::format("Loss of each of {} batches under FP32 and under {}", n, what), first) +
         chart(fmt::format("Mean loss so far against FP32's, at the end {}", percent_text(so_far.back())), second) +
         "</div>\n";
}

/// Returns the charts of the found plan or, if it was accepted as part of another plan, of that plan. Empty if no
/// curves were recorded, or if scores decided instead of losses.
inline std::string loss_curves(const outcome& result) {
  if (result.criterion == criterion::scores) return "";
  if (result.contest.empty() || result.plan == result.contest.front().plan) return "";
  const trial* t = judged_run(result.plan, result);
  const bool own = t != nullptr;
  if (!own) t = covering_run(result.plan, result);
  if (t == nullptr || t->sample.curve.empty() || result.baseline.curve.empty()) return "";
  return curves_of(t->sample, result, own ? "the found plan" : "a plan that lowers more");
}

}  // namespace comp::detail
