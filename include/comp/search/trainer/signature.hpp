// SPDX-License-Identifier: Apache-2.0
// Makes the line of text that says what a search was run on. A ledger with another signature is refused, because its
// runs would be of another training.
#pragma once

#include <algorithm>
#include <comp/policy/tensor_core.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <string>
#include <vector>

namespace comp {

namespace detail {
inline constexpr const char* no_precisions =
    "supported_precisions() gave none (a search needs to know what it may try): name what the trainer computes in, or leave "
    "the member out";
}  // namespace detail

/// Returns: the widest precision that an operator is written in, and then the low ones to search in order of
/// preference: those of the settings, else those that the backend supports and its machine has units for (FP16 on most
/// CPUs is tens of times slower than FP32). FP32 is a low one for operators in FP64, and needs no unit. Throws:
/// `settings_error` for a precision that the backend does not support, or that no operator is as wide as, and if the
/// backend names none.
inline std::vector<precision> searched_precisions(const any_trainer& trainer, const op_graph& graph,
                                                  const search_settings& settings) {
  const std::vector<precision> supported = trainer.supported_precisions();
  require<settings_error>(!supported.empty(), "{}", detail::no_precisions);
  const hardware machine = trainer.hardware();
  const auto has = [&](precision p) { return std::ranges::find(supported, p) != supported.end(); };
  const precision widest = widest_written(graph);
  require<settings_error>(
      widest == precision::fp32 || has(widest),
      "the model has operators in fp64 (the backend supports {}): name fp64 among its precisions, or "
      "write the model in fp32",
      names_of(supported));
  const bool any_fp32 = widest == precision::fp32 || std::ranges::any_of(graph, [](const op_info& op) {
                          return op.choosable && op.as_written == precision::fp32;
                        });
  std::vector<precision> searched{widest};
  for (const precision p : settings.precisions.empty() ? supported : settings.precisions) {
    require<settings_error>(has(p), "precision {} was asked for (the backend supports {}): leave it out", name(p),
                            names_of(supported));
    require<settings_error>(
        p != precision::fp64 || settings.precisions.empty() || widest == p,
        "precision fp64 was asked for (no operator is written in it, and plans only lower): leave it "
        "out, or write the model in fp64");
    const bool wanted =
        !settings.precisions.empty() || p == precision::fp32 || (any_fp32 && policy::no_unit(p, machine).empty());
    if (wanted && std::ranges::find(searched, p) == searched.end()) searched.push_back(p);
  }
  return searched;
}

/// Returns: `part=value` pairs joined by "; ". What only chooses among trials (strategies, tolerance) is left out, so
/// that recorded runs can be used under other settings. A backend without a signature() is identified by its type, the
/// batches of an epoch, and FP32's first losses, `first_losses`; without these losses nothing tells its trainings
/// apart.
inline std::string search_signature(const any_trainer& trainer, const outcome& log, const search_settings& settings,
                                    const std::vector<double>& first_losses = {}) {
  std::string backend = trainer.signature();
  if (!trainer.has.signature) {
    if (log.batches_per_epoch > 0) backend += fmt::format("; batches={}", log.batches_per_epoch);
    const auto digits = [](double loss) { return fmt::format("{:.9g}", loss); };
    if (!first_losses.empty()) backend += "; losses=" + joined(first_losses, ",", digits);
  }
  if (log.floor > 0) backend += fmt::format("; floor={:g}", log.floor);
  if (log.compiled) backend += "; compiled";
  return fmt::format("model={:016x}; backend={}; hardware={}/{}/{}; judged by={}; cut={:g},{:g},{},{:g},{:g},{}",
                     log.graph.fingerprint(), backend, log.hardware.name, log.hardware.compute_capability,
                     log.hardware.threads, name(settings.criterion), settings.cut.slower_than_fp32,
                     settings.cut.slower_than_best, settings.cut.batches, settings.cut.at_once, settings.cut.diverged,
                     settings.cut.loss_batches);
}

}  // namespace comp
