// SPDX-License-Identifier: Apache-2.0
// Questions and contexts as BERT reads them: [CLS] question [SEP] a window of the context [SEP]. A longer context has
// several windows, which overlap. The answer is given as first and last token, or as token 0 if the window lacks it.
// Source: google-research/bert, run_squad.py (max_query_length 64, doc_stride 128)
#pragma once

#include <examples/data/squad.hpp>
#include <examples/data/wordpiece.hpp>

namespace data_sets {

struct window_options {
  std::size_t length = 384;   // [tokens] of a window, including the question and the marks
  std::size_t stride = 128;   // [tokens] from the beginning of one window to the next one's
  std::size_t question = 64;  // [tokens] that are read of a question; the rest is cut off
};

/// tokens and segments are as long as the window, up to `length`. from: the bytes of each token in the context; (0,0)
/// for tokens that are not of it.
struct squad_window {
  std::size_t question = 0;  // index into squad::questions
  std::vector<std::int32_t> tokens = {}, segments = {};
  std::vector<std::pair<std::size_t, std::size_t>> from = {};
  std::int64_t first = 0, last = 0;  // the answer's tokens
};

namespace detail {

inline squad_window make_window(const wordpiece& pieces, std::span<const piece> question,
                                std::span<const piece> context) {
  squad_window window;
  const auto add = [&](const piece& p, std::int32_t segment, bool of_context) {
    window.tokens.push_back(p.id);
    window.segments.push_back(segment);
    window.from.emplace_back(of_context ? p.begin : 0, of_context ? p.end : 0);
  };
  add({pieces.begin}, 0, false);
  for (const piece& p : question) add(p, 0, false);
  add({pieces.separator}, 0, false);
  for (const piece& p : context) add(p, 1, true);
  add({pieces.separator}, 1, false);
  return window;
}

/// Sets the answer to the tokens that hold the bytes [begin, end), if the window has all of these.
inline void mark_answer(squad_window& window, std::size_t begin, std::size_t end) {
  std::int64_t first = 0, last = 0;
  for (std::size_t t = 0; t < window.from.size(); ++t) {
    const auto [from, to] = window.from[t];
    if (from == to) continue;
    if (from <= begin && begin < to) first = static_cast<std::int64_t>(t);
    if (from < end && end <= to) last = static_cast<std::int64_t>(t);
  }
  if (first > 0 && last >= first) {
    window.first = first;
    window.last = last;
  }
}

}  // namespace detail

/// Returns: the windows in the order of the questions. Of several answers the first one is trained on.
/// Throws: `error` for options that leave the context no room, or skip tokens between two windows.
inline std::vector<squad_window> windows(const squad& of, const wordpiece& pieces, const window_options& o = {}) {
  require<error>(
      o.stride > 0 && o.question + 3 < o.length && o.stride <= o.length - o.question - 3,
      "windows of {} tokens, {} apart, with {} of the question and three marks (what is left must reach to the "
      "next window): change them",
      o.length, o.stride, o.question);
  std::vector<std::vector<piece>> contexts;
  for (const std::string& context : of.contexts) contexts.push_back(pieces.encode(context));
  std::vector<squad_window> window_list;
  for (std::size_t q = 0; q < of.questions.size(); ++q) {
    const squad_question& question = of.questions[q];
    std::vector<piece> asked = pieces.encode(question.text);
    asked.resize(std::min(asked.size(), o.question));
    const std::span<const piece> context = contexts[question.context];
    const std::size_t room = o.length - asked.size() - 3;
    for (std::size_t at = 0;; at += o.stride) {
      window_list.push_back(
          detail::make_window(pieces, asked, context.subspan(at, std::min(room, context.size() - at))));
      window_list.back().question = q;
      if (!question.answers.empty()) {
        const squad_answer& answer = question.answers.front();
        detail::mark_answer(window_list.back(), answer.begin, answer.begin + answer.text.size());
      }
      if (at + room >= context.size() || at + o.stride >= context.size()) break;
    }
  }
  return window_list;
}

}  // namespace data_sets
