// SPDX-License-Identifier: Apache-2.0
// Scores predicted answers: exact match, and F1 over words. Articles and punctuation are left out, and of several given
// answers the best one counts.
// Source: the official evaluation script of SQuAD 2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <examples/data/squad.hpp>
#include <map>

namespace data_sets {

struct squad_score {
  double exact = 0, f1 = 0;  // each from 0 to 1
};

namespace detail {

inline std::vector<std::string> answer_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto finish = [&] {
    if (!word.empty() && word != "a" && word != "an" && word != "the") words.push_back(word);
    word.clear();
  };
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 128 && std::isspace(byte) != 0)
      finish();
    else if (byte >= 128 || std::ispunct(byte) == 0)
      word += static_cast<char>(byte < 128 ? std::tolower(byte) : byte);
  }
  finish();
  return words;
}

inline double word_f1(const std::vector<std::string>& given, const std::vector<std::string>& predicted) {
  if (given.empty() || predicted.empty()) return given == predicted ? 1 : 0;
  std::map<std::string, int> left;
  for (const std::string& word : given) ++left[word];
  double common = 0;
  for (const std::string& word : predicted) common += left[word]-- > 0 ? 1 : 0;
  return 2 * common / static_cast<double>(given.size() + predicted.size());
}

}  // namespace detail

/// Returns: the scores of one prediction. The prediction "" says that there is no answer.
inline squad_score score_answer(const squad_question& question, std::string_view predicted) {
  const auto words = detail::answer_words(predicted);
  if (question.answers.empty()) return words.empty() ? squad_score{1, 1} : squad_score{};
  squad_score best;
  for (const squad_answer& answer : question.answers) {
    const auto given = detail::answer_words(answer.text);
    best.exact = std::max(best.exact, given == words ? 1.0 : 0.0);
    best.f1 = std::max(best.f1, detail::word_f1(given, words));
  }
  return best;
}

/// Returns: the mean scores over all questions. Throws: `error` unless there is a prediction for each.
inline squad_score score_answers(const squad& of, const std::vector<std::string>& predicted) {
  require<error>(predicted.size() == of.questions.size() && !predicted.empty(),
                 "{} predictions for {} questions (one for each is needed): predict them all", predicted.size(),
                 of.questions.size());
  squad_score sum;
  for (std::size_t q = 0; q < predicted.size(); ++q) {
    const squad_score one = score_answer(of.questions[q], predicted[q]);
    sum.exact += one.exact / static_cast<double>(predicted.size());
    sum.f1 += one.f1 / static_cast<double>(predicted.size());
  }
  return sum;
}

}  // namespace data_sets
