// SPDX-License-Identifier: Apache-2.0
// Turns a model's logits of first and last tokens into answers as text, and scores them. An answer has 30 tokens at
// most, and comes from the window in which it is likeliest.
// Source: google-research/bert, run_squad.py
#pragma once

#include <examples/data/squad_score.hpp>
#include <examples/data/squad_windows.hpp>

namespace data_sets {

/// Returns: the F1 of the answers that `logits`, which are (windows,2,length) for first and last tokens, predict. An
/// answer is a run of tokens of the context that is likelier than token 0, which stands for no answer.
/// Throws: `error` if the number of logits does not fit the windows.
inline double span_f1(const squad& of, const std::vector<squad_window>& windows, std::span<const float> logits) {
  constexpr std::size_t longest = 30;  // [tokens]
  const std::size_t length = windows.empty() ? 0 : logits.size() / (2 * windows.size());
  require<error>(length > 0 && logits.size() == 2 * windows.size() * length,
                 "{} logits for {} windows (two for each token are needed): give those of all windows", logits.size(),
                 windows.size());
  std::vector<std::string> answers(of.questions.size());
  std::vector<float> likeliest(answers.size(), 0.0F);
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const squad_window& window = windows[w];
    const std::span begins = logits.subspan(2 * w * length, length),
                    ends = logits.subspan((2 * w + 1) * length, length);
    const auto in_context = [&](std::size_t t) { return t < length && window.from[t].first < window.from[t].second; };
    for (std::size_t first = 0; first < window.from.size(); ++first) {
      for (std::size_t last = first; last < std::min(first + longest, window.from.size()); ++last) {
        if (!in_context(first) || !in_context(last)) break;
        const float over_none = begins[first] + ends[last] - begins[0] - ends[0];
        if (!(over_none > likeliest[window.question])) continue;
        likeliest[window.question] = over_none;
        const std::string& context = of.contexts[of.questions[window.question].context];
        const std::size_t from = window.from[first].first;
        answers[window.question] = context.substr(from, window.from[last].second - from);
      }
    }
  }
  return score_answers(of, answers).f1;
}

}  // namespace data_sets
