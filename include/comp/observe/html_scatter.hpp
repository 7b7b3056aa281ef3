// SPDX-License-Identifier: Apache-2.0
// The report's chart of time against loss, with a mark for each plan that was judged and a line at the tolerance.
// Losses are differences from FP32's on the same batches (observe/loss_change.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/observe/figures.hpp>
#include <comp/observe/html_chart.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/loss_change.hpp>
#include <comp/search/outcome.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

enum class mark { base, accepted, rejected, cut, failed, undecided };

inline mark mark_of(const trial& t, const outcome& result) {
  if (t.stage == stage::baseline) return t.sample.ok() ? mark::base : mark::failed;
  if (is_undecided(t, result)) return mark::undecided;
  if (t.sample.ok()) return t.accepted ? mark::accepted : mark::rejected;
  return t.sample.status == status::stopped_early ? mark::cut : mark::failed;
}

/// Draws a mark. Each way in which a run can end has a shape of its own, so that nobody depends on colours.
inline std::string mark_shape(mark m, double x, double y) {
  constexpr std::string_view shapes[] = {"<rect class=\"mk base\" x=\"-5\" y=\"-5\" width=\"10\" height=\"10\"/>",
                                         "<circle class=\"mk ok\" r=\"5.5\"/>",
                                         "<path class=\"mk rej\" d=\"M0 -6.5l6.5 11.5h-13z\"/>",
                                         "<path class=\"mk cut\" d=\"M0 -6l6 6-6 6-6-6z\"/>",
                                         "<path class=\"mk bad\" d=\"M-5 -5l10 10m0-10l-10 10\"/>",
                                         "<path class=\"mk open\" d=\"M0 6.5l6.5 -11.5h-13z\"/>"};
  return fmt::format("<g transform=\"translate({:.1f} {:.1f})\">{}</g>", x, y, shapes[static_cast<std::size_t>(m)]);
}

/// Returns the seconds per batch of any run, finished or not.
inline double batch_time(const trial& t) {
  if (std::isfinite(t.seconds)) return t.seconds;
  if (!t.sample.batch_seconds.empty()) return median(t.sample.batch_seconds);
  return t.sample.batches > 0 && t.sample.seconds > 0 ? t.sample.seconds / static_cast<double>(t.sample.batches)
                                                      : std::nan("");
}

/// A run in the chart.
struct scatter_point {
  const trial* of = nullptr;
  double seconds = 0;     // per batch
  double worse = 0;       // how much worse its loss is than FP32's; infinity: the loss is not finite
  double radius = 0;      // half of the confidence interval of `worse`; 0: not known
  std::string loss = {};  // the loss as the mark's text shows it
};

/// Returns the points of the chart, and the number of runs that cannot be drawn. The points are FP32, FP32 with its
/// roundings perturbed, and every judged run that has losses on batches that FP32 trained, too.
inline std::pair<std::vector<scatter_point>, std::size_t> scatter_points(const outcome& result) {
  std::vector<scatter_point> points;
  std::size_t without = 0;
  bool has_fp32 = false;
  for (const trial& t : result.trials) {
    if (!trains(t.purpose)) continue;  // a profile or a sensitivity, which is no batch
    const bool fp32 = t.stage == stage::baseline && t.purpose == purpose::judge;
    if (t.stage != stage::baseline && !is_judged(t)) continue;
    if (fp32 && std::exchange(has_fp32, true)) continue;  // FP32's batches come in parts; all are one point
    const double seconds = batch_time(fp32 ? trial{.sample = result.baseline} : t);
    const auto change = fp32 ? std::optional{loss_change{}} : change_of(t, result);
    if (!change || !std::isfinite(seconds)) {
      ++without;
      continue;
    }
    points.push_back({&t, seconds, result.higher_is_better ? -change->difference : change->difference,
                      std::isfinite(change->radius) ? change->radius : 0,
                      fp32 ? loss_text(result.baseline.loss) : change_text(*change)});
  }
  return {std::move(points), without};
}

/// Returns the range of the chart. A time far above FP32's is drawn at the right edge and a loss far above the
/// tolerance at the upper one, because a single hopeless plan would otherwise press all others together.
inline chart_frame frame_of(const std::vector<scatter_point>& shown, double fp32_seconds, double tolerance) {
  const double reach = std::max(8 * tolerance, 0.02), slow = 1.6 * fp32_seconds;
  chart_frame f{1e300, 0, 0, std::max(tolerance, 0.001)};
  for (const scatter_point& p : shown) {
    f.x_low = std::min(f.x_low, p.seconds);
    f.x_high = std::max(f.x_high, slow > 0 ? std::min(p.seconds, slow) : p.seconds);
    if (std::abs(p.worse) >= reach) continue;
    f.y_low = std::min(f.y_low, p.worse - std::min(p.radius, 3 * tolerance));
    f.y_high = std::max(f.y_high, p.worse + std::min(p.radius, 3 * tolerance));
  }
  f.x_low = std::min(f.x_low, f.x_high);
  const double wide = std::max({0.04 * (f.x_high - f.x_low), 0.02 * f.x_high, 1e-12});
  const double high = 0.08 * (f.y_high - f.y_low);
  return {std::max(0.0, f.x_low - wide), f.x_high + wide, f.y_low - high, f.y_high + high};
}

/// Draws the axes and the line of the tolerance, below which a loss is accepted. For scores, of which higher ones are
/// better, the axis is turned around, so that lower is better in every report.
inline std::string scatter_axes(const chart_frame& f, const outcome& result) {
  const double line = f.y(result.tolerance);
  return chart_axes(f, "time per batch", "loss against FP32's on the same batches", tick_text,
                    [&](double worse) { return axis_percent(result.higher_is_better ? -worse : worse); }) +
         fmt::format("<line class=\"limit\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", f.left, f.right,
                     line) +
         fmt::format("<text class=\"limit-text\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">accepted {}</text>\n",
                     f.right - 4, line - 5,
                     result.higher_is_better ? fmt::format("above FP32 - {:g}%", 100 * result.tolerance)
                                             : fmt::format("below FP32 + {:g}%", 100 * result.tolerance));
}

inline std::string scatter_legend() {
  const auto entry = [](const std::string& shape, std::string_view words) {
    return fmt::format("<span><svg width=\"16\" height=\"16\" aria-hidden=\"true\">{}</svg>{}</span>", shape, words);
  };
  std::string text =
      "<div class=\"legend\">" + entry(mark_shape(mark::base, 8, 8), "FP32, as it is and with its roundings perturbed");
  const std::pair<mark, const char*> evidence[] = {{mark::accepted, "accepted"},
                                                   {mark::rejected, "rejected: shown to be worse than the tolerance"},
                                                   {mark::undecided, "undecided: may be within the tolerance or not"},
                                                   {mark::cut, "cut: too slow"},
                                                   {mark::failed, "diverged or failed"}};
  for (const auto& [evidence, words] : evidence) text += entry(mark_shape(evidence, 8, 8), words);
  return text +
         "<span><svg width=\"16\" height=\"20\" aria-hidden=\"true\"><path class=\"bar\" d=\"M8 1v18\"/></svg>what the loss may be</span>"
         "<span><svg width=\"24\" height=\"24\" aria-hidden=\"true\"><circle class=\"ring\" cx=\"12\" cy=\"12\" r=\"10\"/></svg>the found plan</span></div>\n";
}

/// Draws the chart, with the number of runs that could not be drawn below it.
inline std::string scatter(const outcome& result) {
  const auto [shown, without] = scatter_points(result);
  std::string text;
  if (shown.empty()) {
    text = "<p class=\"soft\">No plan was judged by its losses.</p>";
  } else {
    const chart_frame frame = frame_of(shown, median(result.baseline.batch_seconds), result.tolerance);
    std::string marks = scatter_axes(frame, result);
    for (const scatter_point& p : shown) {
      const double x = frame.x(p.seconds), y = frame.y(p.worse);
      marks += fmt::format("<g tabindex=\"0\" data-tip role=\"img\" aria-label=\"{}: {} per batch, loss {}, {}\">",
                           html(p.of->label.empty() ? name(p.of->plan, result.graph) : p.of->label),
                           time_text(p.seconds), p.loss, fate_text(*p.of, result));
      if (p.radius > 0 && std::isfinite(p.worse))
        marks += fmt::format("<path class=\"bar\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>", x, frame.y(p.worse - p.radius),
                             frame.y(p.worse + p.radius));
      marks += mark_shape(mark_of(*p.of, result), x, y);
      if (p.of->plan == result.plan)
        marks += fmt::format("<circle class=\"ring\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"9.5\"/>", x, y);
      marks += "</g>\n";
    }
    text = scatter_legend() + chart("Time per batch against loss of each plan that was judged", marks);
  }
  if (without > 0)
    text += fmt::format(
        "<p class=\"soft\">{} run{} without a time, or without a loss on batches that FP32 trained, {} not drawn.</p>",
        without, without == 1 ? "" : "s", without == 1 ? "is" : "are");
  return text;
}

}  // namespace comp::detail
