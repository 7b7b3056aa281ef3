// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people: times, bytes, losses, shares and ratios.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/statistics.hpp>
#include <cstdint>
#include <string>

namespace comp::detail {

/// Formats a time: "52.1 ms", "812 us", "3.42 s"; "-" if it is unknown.
inline std::string time_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds == 0) return "0 s";
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.{}f} s", seconds, seconds >= 10 ? 1 : 2);
  if (seconds >= 0.1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds >= 1e-3) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds >= 0.01 ? 1 : 2);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

/// Formats a round number of seconds for an axis: "50 ms".
inline std::string tick_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.4g} s", seconds);
  return seconds >= 1e-3 || seconds == 0 ? fmt::format("{:.4g} ms", seconds * 1e3)
                                         : fmt::format("{:.4g} us", seconds * 1e6);
}

/// Formats a size: "118 MiB", "2.4 GiB"; "-" if it was not measured.
inline std::string bytes_text(std::int64_t bytes) {
  if (bytes <= 0) return "-";
  const auto value = static_cast<double>(bytes);
  if (value >= 0x1p30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (value >= 0x1p20) return fmt::format("{:.{}f} MiB", value / 0x1p20, value >= 100 * 0x1p20 ? 0 : 1);
  if (value < 0x1p10) return fmt::format("{} B", bytes);
  return fmt::format("{:.0f} KiB", std::ceil(value / 0x1p10));
}

/// Formats a loss with five digits, "2.3000". Zeros at the end are kept, so that losses stand below each other.
inline std::string loss_text(double loss) {
  if (!std::isfinite(loss)) return std::isnan(loss) ? "not a number" : "infinite";
  const double size = std::abs(loss);
  if (size != 0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.4e}", loss);
  const int digits = size == 0 ? 0 : static_cast<int>(std::floor(std::log10(size)));
  return fmt::format("{:.{}f}", loss, std::max(0, 4 - digits));
}

/// Formats a share: "6.5%"; "-" if it is unknown.
inline std::string share_text(double share) { return std::isfinite(share) ? fmt::format("{:.3g}%", 100 * share) : "-"; }

/// Formats a speedup: "1.42x".
inline std::string ratio_text(double ratio) { return std::isfinite(ratio) ? fmt::format("{:.2f}x", ratio) : "-"; }

/// Formats an interval: "1.38 to 1.45"; "unknown" if it is not bounded.
inline std::string bounds_text(const interval& bounds) {
  if (!std::isfinite(bounds.low) || !std::isfinite(bounds.high)) return "unknown";
  return fmt::format("{:.2f} to {:.2f}", bounds.low, bounds.high);
}

}  // namespace comp::detail
