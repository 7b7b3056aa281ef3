// SPDX-License-Identifier: Apache-2.0
// What was run, in the report: the contest, each candidate's time against its loss, and the table of trials.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/observe/figures.hpp>
#include <comp/observe/html_plan.hpp>
#include <comp/search/acceptance.hpp>
#include <comp/search/outcome.hpp>
#include <string>
#include <utility>
#include <vector>

namespace comp::detail {

/// A bar of the 95% interval with a mark at the median, on a scale from 0 to `most`.
inline std::string range_bar(double middle, interval bounds, double most) {
  if (!std::isfinite(middle) || !(most > 0)) return "";
  const auto percent = [most](double value) { return std::clamp(100 * value / most, 0.0, 100.0); };
  std::string text = "<div class=\"range\" aria-hidden=\"true\">";
  if (std::isfinite(bounds.low) && std::isfinite(bounds.high)) {
    text += fmt::format("<i style=\"left:{:.2f}%;width:{:.2f}%\"></i>", percent(bounds.low),
                        percent(bounds.high) - percent(bounds.low));
  }
  return text + fmt::format("<b style=\"width:{:.2f}%\"></b></div>", percent(middle));
}

template <std::same_as<outcome> Outcome>
std::string contest_row(const contestant& c, const Outcome& found, double most) {
  const double middle = median(c.seconds);
  const bool lost = c.status != status::ok;
  const bool has_epoch = c.epoch.has_value();
  return fmt::format(
      "<tr{}><td class=\"t\">{}</td><td class=\"plan\">{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"n\"><b>{}</b><br>"
      "<span class=\"soft\">{}</span></td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
      &c == winner_of(found) ? " class=\"win\"" : "", html(c.label), small_plan(c.plan),
      lost ? std::string{name(c.status)} : time_text(middle), range_bar(middle, median_interval(c.seconds), most),
      ratio_text(c.over_fp32.ratio), bounds_text(c.over_fp32.bounds), bytes_text(c.peak_bytes),
      has_epoch ? loss_text(c.epoch->loss) : "not run",
      has_epoch && c.epoch->score ? fmt::format("{:.4g}", *c.epoch->score) : "-");
}

template <std::same_as<outcome> Outcome>
std::string contest_table(const Outcome& found) {
  double most = 0;
  for (const contestant& c : found.contest) {
    const double high = median_interval(c.seconds).high, middle = median(c.seconds);
    for (const double value : {high, middle}) most = std::isfinite(value) ? std::max(most, value) : most;
  }
  std::string text =
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Contest\"><table><thead><tr><th>Contestant</th>"
      "<th>Plan</th><th class=\"n\">Per batch</th><th>from 0, with 95% interval</th><th class=\"n\">Against FP32</th>"
      "<th class=\"n\">Peak memory</th><th class=\"n\">Epoch loss</th><th class=\"n\">Score</th></tr></thead><tbody>\n";
  for (const contestant& c : found.contest) text += contest_row(c, found, most * 1.04);
  return text + "</tbody></table></div>\n";
}

enum class mark { base, accepted, rejected, cut, failed };

inline mark mark_of(const trial& t) {
  if (t.stage == stage::baseline && t.sample.ok()) return mark::base;
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

/// The axes of the scatter: where a time and a loss are drawn. A loss far above the line is drawn at the upper edge.
struct scatter_scale {
  double quick = 0, slow = 0, least = 0, most = 0;
  static constexpr double left = 78, right = 920, top = 26, bottom = 350;

  double x(double seconds) const { return left + (right - left) * (seconds - quick) / (slow - quick); }
  double y(double loss) const {
    if (!std::isfinite(loss) || loss > most) return top;
    return bottom - (bottom - top) * (loss - least) / (most - least);
  }
};

template <std::same_as<outcome> Outcome>
scatter_scale scale_of(const std::vector<const trial*>& shown, const Outcome& found) {
  const double base = found.baseline.loss, line = acceptance_line(base, found.tolerance);
  const double reach = std::max({8 * (line - base), 0.02 * std::abs(base), 1e-12});
  scatter_scale s{1e300, 0, std::min(base, line), std::max(base, line)};
  for (const trial* t : shown) {
    s.quick = std::min(s.quick, batch_time(*t));
    s.slow = std::max(s.slow, batch_time(*t));
    if (std::isfinite(t->sample.loss) && std::abs(t->sample.loss - base) < reach) {
      s.least = std::min(s.least, t->sample.loss);
      s.most = std::max(s.most, t->sample.loss);
    }
  }
  const double wide = std::max(0.08 * (s.slow - s.quick), 0.02 * s.slow),
               high = std::max(0.12 * (s.most - s.least), 1e-9 + 0.02 * std::abs(base) * (s.most <= s.least));
  return {std::max(0.0, s.quick - wide), s.slow + wide, s.least - high, s.most + high};
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
  for (const double loss : ticks(s.least, s.most, 5)) {
    text += fmt::format("<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", s.left, s.right,
                        s.y(loss));
    text +=
        fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.6g}</text>", s.left - 8, s.y(loss) + 5, loss);
  }
  const double line = s.y(acceptance_line(found.baseline.loss, found.tolerance));
  text +=
      fmt::format("<line class=\"limit\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", s.left, s.right, line);
  text += fmt::format(
      "<text class=\"limit-text\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">accepted below FP32 + {:g}%</text>",
      s.right - 4, line - 6, 100 * found.tolerance);
  return text + fmt::format(
                    "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">time per batch</text>"
                    "<text x=\"8\" y=\"14\">epoch loss</text>\n",
                    s.right, s.bottom + 44);
}

/// Epochs with a known time; and how many have none.
template <std::same_as<outcome> Outcome>
std::string scatter(const Outcome& found) {
  std::vector<const trial*> shown;
  std::size_t without = 0;
  for (const trial& t : found.trials) {
    if (t.stage != stage::baseline && t.stage != stage::epochs && t.stage != stage::training) continue;
    std::isfinite(batch_time(t)) ? shown.push_back(&t) : void(++without);
  }
  if (shown.empty()) return "<p class=\"soft\">No epoch was run.</p>";
  const scatter_scale scale = scale_of(shown, found);
  std::string text = "<div class=\"legend\"><span>" +
                     std::string{"<svg width=\"18\" height=\"18\" aria-hidden=\"true\">"} +
                     mark_shape(mark::base, 9, 9) + "</svg>FP32</span>";
  const std::pair<mark, const char*> fates[] = {{mark::accepted, "accepted"},
                                                {mark::rejected, "rejected: loss too high"},
                                                {mark::cut, "cut: too slow"},
                                                {mark::failed, "diverged or failed"}};
  for (const auto& [fate, words] : fates) {
    text += "<span><svg width=\"18\" height=\"18\" aria-hidden=\"true\">" + mark_shape(fate, 9, 9) + "</svg>" + words +
            "</span>";
  }
  text +=
      "<span><svg width=\"24\" height=\"24\" aria-hidden=\"true\"><circle class=\"ring\" cx=\"12\" cy=\"12\" r=\"10\"/></svg>the found plan</span></div>\n"
      "<div class=\"scroll\"><svg class=\"chart\" viewBox=\"0 0 960 402\" role=\"group\" aria-label=\"Time per batch against loss of each epoch\">" +
      scatter_axes(scale, found);
  for (const trial* t : shown) {
    const double x = scale.x(batch_time(*t)), y = scale.y(t->sample.loss);
    text += fmt::format("<g tabindex=\"0\" data-tip role=\"img\" aria-label=\"{}: {} per batch, loss {}, {}. {}\">{}",
                        t->label.empty() ? "candidate" : html(t->label), time_text(batch_time(*t)),
                        loss_text(t->sample.loss),
                        t->sample.ok() ? (t->accepted ? "accepted" : "rejected") : name(t->sample.status),
                        counts_text(t->plan), mark_shape(mark_of(*t), x, y));
    if (t->plan == found.plan)
      text += fmt::format("<circle class=\"ring\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"14\"/>", x, y);
    text += "</g>\n";
  }
  text += "</svg></div>\n";
  if (without > 0)
    text += fmt::format("<p class=\"soft\">{} run{} ended before a batch was timed and cannot be drawn.</p>", without,
                        without == 1 ? "" : "s");
  return text;
}

template <std::same_as<outcome> Outcome>
std::string trial_table(const Outcome& found) {
  std::string text =
      "<div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Runs\"><table><thead><tr><th class=\"n\">#</th><th>Stage</th><th>Plan</th>"
      "<th>Label</th><th class=\"n\">Runs</th><th class=\"n\">Per batch</th><th class=\"n\">Loss</th><th>Ended</th></tr></thead><tbody>\n";
  for (const trial_group& g : grouped_trials(found)) {
    const trial& t = *g.shown;
    const bool judged = !by_batches(t.stage);
    const std::string ended = !t.sample.ok() ? std::string{name(t.sample.status)} +
                                                   (t.sample.message.empty() ? "" : ": " + html(t.sample.message))
                              : judged ? (t.accepted ? "accepted" : "rejected")
                                       : "ok";
    text += fmt::format(
        "<tr><td class=\"n\">{}</td><td>{}</td><td class=\"plan\">{}</td><td>{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"m\">{}</td></tr>\n",
        t.number, name(t.stage), small_plan(t.plan), html(t.label), g.runs.size(), time_text(g.seconds()),
        judged ? loss_text(t.sample.loss) : "", ended);
  }
  return text + "</tbody></table></div>\n";
}

}  // namespace comp::detail
