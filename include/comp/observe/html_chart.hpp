// SPDX-License-Identifier: Apache-2.0
// The frame of the report's charts: axes, ticks and grid. All charts have one size in SVG units, chosen so that text is
// legible on a phone, too.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace comp::detail {

/// Maps values to places in the chart. A value beyond an end of an axis is drawn at that end.
struct chart_frame {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  static constexpr double left = 66, right = 550, top = 26, bottom = 236, width = 560, height = 286;

  double x(double value) const { return left + (right - left) * part(value, x_low, x_high); }
  double y(double value) const { return bottom - (bottom - top) * part(value, y_low, y_high); }

 private:
  static double part(double value, double low, double high) {
    if (std::isnan(value)) return 1;
    return high > low ? (std::clamp(value, low, high) - low) / (high - low) : 0.5;
  }
};

/// Returns about `count` round numbers within [low, high].
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

/// Returns a change as an axis shows it: "+0.5%". Rounding errors around 0 are shown as 0.
inline std::string axis_percent(double change) {
  return std::abs(change) < 1e-11 ? "0%" : fmt::format("{:+.3g}%", 100 * change);
}

/// Draws grid, ticks and names of the axes. `x_text` and `y_text` turn a tick's value into a text.
std::string chart_axes(const chart_frame& f, std::string_view x_name, std::string_view y_name, auto x_text,
                       auto y_text) {
  std::string text;
  for (const double value : ticks(f.x_low, f.x_high, 4)) {
    text += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>",
        f.x(value), f.top, f.bottom, f.bottom + 20, x_text(value));
  }
  for (const double value : ticks(f.y_low, f.y_high, 4)) {
    text += fmt::format(
        "<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>",
        f.left, f.right, f.y(value), f.left - 7, f.y(value) + 4, y_text(value));
  }
  return text + fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><text x=\"4\" y=\"14\">{}</text>\n",
                            f.right, f.bottom + 42, x_name, y_name);
}

/// Returns a chart with `body` in it; `about` is its description for screen readers.
inline std::string chart(std::string_view about, const std::string& body) {
  return fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"group\" aria-label=\"{}\">{}</svg>\n",
                     chart_frame::width, chart_frame::height, about, body);
}

}  // namespace comp::detail
