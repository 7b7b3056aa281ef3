// SPDX-License-Identifier: Apache-2.0
// The report's chart: each judged plan's time against its loss. Losses are differences from FP32's on the same batches,
// never means of different ones (observe/loss_change.hpp); the line is the tolerance.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/observe/figures.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/observe/loss_change.hpp>
#include <comp/search/outcome.hpp>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

enum class mark { base, accepted, rejected, cut, failed };

inline mark mark_of(const trial& t) {
  if (t.stage == stage::baseline) return t.sample.ok() ? mark::base : mark::failed;
  if (t.sample.ok()) return t.accepted ? mark::accepted : mark::rejected;
  return t.sample.status == status::stopped_early ? mark::cut : mark::failed;
}

/// A shape per fate: square, circle, triangle, diamond, cross; colour only repeats it.
inline std::string mark_shape(mark m, double x, double y) {
  switch (m) {
    case mark::base:
      return fmt::format("<rect class=\"mk base\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\"/>", x - 7,
                         y - 7);
    case mark::accepted:
      return fmt::format("<circle class=\"mk ok\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"8\"/>", x, y);
    case mark::rejected:
      return fmt::format("<path class=\"mk rej\" d=\"M{:.1f} {:.1f}l9 16h-18z\"/>", x, y - 10);
    case mark::cut:
      return fmt::format("<path class=\"mk cut\" d=\"M{:.1f} {:.1f}l8 8-8 8-8-8z\"/>", x, y - 8);
    case mark::failed:
      break;
  }
  return fmt::format("<path class=\"mk bad\" d=\"M{:.1f} {:.1f}l14 14m0-14l-14 14\"/>", x - 7, y - 7);
}

/// Seconds per batch of any run, finished or not.
inline double batch_time(const trial& t) {
  if (std::isfinite(t.seconds)) return t.seconds;
  if (!t.sample.batch_seconds.empty()) return median(t.sample.batch_seconds);
  return t.sample.batches > 0 && t.sample.seconds > 0 ? t.sample.seconds / static_cast<double>(t.sample.batches)
                                                      : std::nan("");
}

/// What the scatter shows: a run's time and its loss against FP32's, turned so that up is worse.
struct scatter_point {
  const trial* of = nullptr;
  double seconds = 0;
  double worse = 0;  // infinity: the loss is not finite
  std::string loss = {};
};

/// FP32, also with its roundings perturbed, and every judged run whose loss can be set against FP32's on the same
/// batches; and how many runs there are that cannot be drawn.
template <std::same_as<outcome> Outcome>
std::pair<std::vector<scatter_point>, std::size_t> scatter_points(const Outcome& found) {
  std::vector<scatter_point> points;
  std::size_t without = 0;
  bool has_fp32 = false;
  for (const trial& t : found.trials) {
    if (t.repeat >= profile_repeats) continue;  // no batches
    const bool fp32 = t.stage == stage::baseline && t.repeat < perturbed_repeats;
    if (t.stage != stage::baseline && !is_judged(t)) continue;
    if (fp32 && std::exchange(has_fp32, true)) continue;  // a further part of the same training
    const double seconds = batch_time(fp32 ? trial{.sample = found.baseline} : t);
    const auto change = fp32 ? std::optional{loss_change{}} : change_of(t.sample, found.baseline);
    if (!change || !std::isfinite(seconds)) {
      ++without;
      continue;
    }
    points.push_back({&t, seconds, found.higher_is_better ? -change->difference : change->difference,
                      fp32 ? loss_text(found.baseline.loss) : change_text(*change)});
  }
  return {std::move(points), without};
}

/// The axes of the scatter: where a time and a loss are drawn. A loss far above the line is drawn at the upper edge.
struct scatter_scale {
  double quick = 0, slow = 0, least = 0, most = 0;
  static constexpr double left = 78, right = 920, top = 26, bottom = 350;

  double x(double seconds) const { return left + (right - left) * (seconds - quick) / (slow - quick); }
  double y(double worse) const {
    if (!std::isfinite(worse) || worse > most) return top;
    return bottom - (bottom - top) * (std::max(worse, least) - least) / (most - least);
  }
};

inline scatter_scale scale_of(const std::vector<scatter_point>& shown, double tolerance) {
  const double reach = std::max(8 * tolerance, 0.02);
  scatter_scale s{1e300, 0, 0, std::max(tolerance, 0.001)};
  for (const scatter_point& p : shown) {
    s.quick = std::min(s.quick, p.seconds);
    s.slow = std::max(s.slow, p.seconds);
    if (std::abs(p.worse) >= reach) continue;
    s.least = std::min(s.least, p.worse);
    s.most = std::max(s.most, p.worse);
  }
  const double wide = std::max(0.08 * (s.slow - s.quick), 0.02 * s.slow), high = 0.12 * (s.most - s.least);
  return {std::max(0.0, s.quick - wide), s.slow + std::max(wide, 1e-12), s.least - high, s.most + high};
}

/// Round numbers within [low, high], about `count` of them.
inline std::vector<double> ticks(double low, double high, int count) {
  const double rough = (high - low) / count;
  if (!(rough > 0) || !std::isfinite(rough)) return {low};
  const double ten = std::pow(10, std::floor(std::log10(rough)));
  const double step = ten * (rough <= ten ? 1 : rough <= 2 * ten ? 2 : rough <= 5 * ten ? 5 : 10);
  std::vector<double> values;
  const double first = std::ceil(low / step);
  for (int i = 0; i <= 2 * count && (first + i) * step <= high; ++i) values.push_back((first + i) * step);
  return values;
}

template <std::same_as<outcome> Outcome>
std::string scatter_axes(const scatter_scale& s, const Outcome& found) {
  std::string text;
  for (const double time : ticks(s.quick, s.slow, 5)) {
    text += fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>", s.x(time), s.top,
                        s.bottom);
    text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", s.x(time), s.bottom + 22,
                        tick_text(time));
  }
  for (const double worse : ticks(s.least, s.most, 5)) {
    text += fmt::format("<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", s.left, s.right,
                        s.y(worse));
    const double shown = 100 * (found.higher_is_better ? -worse : worse);
    const std::string percent = std::abs(shown) < 1e-9 ? "0%" : fmt::format("{:+.3g}%", shown);
    text +=
        fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", s.left - 8, s.y(worse) + 5, percent);
  }
  const double line = s.y(found.tolerance);
  text +=
      fmt::format("<line class=\"limit\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", s.left, s.right, line);
  text += fmt::format("<text class=\"limit-text\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">accepted {}</text>",
                      s.right - 4, line - 6,
                      found.higher_is_better ? fmt::format("above FP32 - {:g}%", 100 * found.tolerance)
                                             : fmt::format("below FP32 + {:g}%", 100 * found.tolerance));
  return text + fmt::format(
                    "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">time per batch</text>"
                    "<text x=\"8\" y=\"14\">loss against FP32's on the same batches</text>\n",
                    s.right, s.bottom + 44);
}

inline std::string scatter_legend() {
  const auto entry = [](const std::string& shape, std::string_view words) {
    return fmt::format("<span><svg width=\"18\" height=\"18\" aria-hidden=\"true\">{}</svg>{}</span>", shape, words);
  };
  std::string text =
      "<div class=\"legend\">" + entry(mark_shape(mark::base, 9, 9), "FP32, as it is and with its roundings perturbed");
  const std::pair<mark, const char*> fates[] = {{mark::accepted, "accepted"},
                                                {mark::rejected, "rejected: loss too high"},
                                                {mark::cut, "cut: too slow"},
                                                {mark::failed, "diverged or failed"}};
  for (const auto& [fate, words] : fates) text += entry(mark_shape(fate, 9, 9), words);
  return text +
         "<span><svg width=\"24\" height=\"24\" aria-hidden=\"true\"><circle class=\"ring\" cx=\"12\" cy=\"12\" r=\"10\"/></svg>the found plan</span></div>\n";
}

template <std::same_as<outcome> Outcome>
std::string scatter(const Outcome& found) {
  const auto [shown, without] = scatter_points(found);
  std::string text;
  if (shown.empty()) {
    text = "<p class=\"soft\">No plan was judged by its losses.</p>";
  } else {
    const scatter_scale scale = scale_of(shown, found.tolerance);
    text =
        scatter_legend() +
        "<div class=\"scroll\"><svg class=\"chart\" viewBox=\"0 0 960 402\" role=\"group\" aria-label=\"Time per batch against loss of each plan that was judged\">" +
        scatter_axes(scale, found);
    for (const scatter_point& p : shown) {
      const double x = scale.x(p.seconds), y = scale.y(p.worse);
      text += fmt::format("<g tabindex=\"0\" data-tip role=\"img\" aria-label=\"{}: {} per batch, loss {}, {}. {}\">{}",
                          p.of->label.empty() ? "candidate" : html(p.of->label), time_text(p.seconds), p.loss,
                          fate_text(*p.of), counts_text(p.of->plan), mark_shape(mark_of(*p.of), x, y));
      if (p.of->plan == found.plan)
        text += fmt::format("<circle class=\"ring\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"14\"/>", x, y);
      text += "</g>\n";
    }
    text += "</svg></div>\n";
  }
  if (without > 0)
    text += fmt::format(
        "<p class=\"soft\">{} run{} without a time, or without a loss on batches that FP32 trained, {} not drawn.</p>",
        without, without == 1 ? "" : "s", without == 1 ? "is" : "are");
  return text;
}

}  // namespace comp::detail
