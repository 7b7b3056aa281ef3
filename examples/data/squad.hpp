// SPDX-License-Identifier: Apache-2.0
// Questions on texts as SQuAD publishes them, versions 1.1 and 2.0 (in 2.0 a question may have no answer). Positions of
// answers are checked, and converted to bytes, since the file counts characters.
// Source: Rajpurkar et al. 2018 (arXiv 1806.03822)
#pragma once

#include <comp/files/json_reader.hpp>
#include <examples/data/text.hpp>
#include <utility>

namespace data_sets {

using comp::error;
using comp::file_error;
using comp::in_quotes;
using comp::json;
using comp::json_place;
using comp::json_reader;
using comp::parse_json;
using comp::require;

struct squad_answer {
  std::string text = {};
  std::size_t begin = 0;  // [bytes] in the context
};

struct squad_question {
  std::string id = {};
  std::string text = {};
  std::size_t context = 0;                 // index into squad::contexts
  std::vector<squad_answer> answers = {};  // empty: the context has no answer
};

struct squad {
  std::vector<std::string> contexts = {};
  std::vector<squad_question> questions = {};
};

namespace detail {

/// Returns: the byte offset of each character of a UTF-8 text, and of its end.
inline std::vector<std::size_t> character_offsets(std::string_view text) {
  std::vector<std::size_t> offsets;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xc0U) != 0x80U) offsets.push_back(at);
  }
  offsets.push_back(text.size());
  return offsets;
}

inline squad_answer read_answer(const json_reader& from, const std::string& context,
                                const std::vector<std::size_t>& offsets) {
  const json_reader place = from["answer_start"];
  const auto character = static_cast<std::size_t>(place.integer(0, std::ssize(offsets) - 1));
  squad_answer answer{from["text"].text(), offsets[character]};
  if (answer.text.empty() || !std::string_view{context}.substr(answer.begin).starts_with(answer.text)) {
    place.fail(fmt::format("the character where the answer {} begins in its context", in_quotes(answer.text, 40)));
  }
  return answer;
}

inline void read_paragraph(const json_reader& from, squad& to) {
  const std::string& context = from["context"].text();
  const std::vector<std::size_t> offsets = character_offsets(context);
  from["qas"].each([&](const json_reader& entry) {
    squad_question question{.id = entry["id"].text(), .text = entry["question"].text(), .context = to.contexts.size()};
    const auto impossible = entry.find("is_impossible");
    const bool none = impossible && impossible->boolean();
    if (const auto answers = entry.find("answers")) {
      answers->each(
          [&](const json_reader& answer) { question.answers.push_back(read_answer(answer, context, offsets)); });
    }
    if (none != question.answers.empty()) entry.fail("a question that has answers, or says is_impossible and has none");
    to.questions.push_back(std::move(question));
  });
  to.contexts.push_back(context);
}

}  // namespace detail

/// Throws: `file_error`, naming file and field, for any other file, and for an answer that is not at its position.
inline squad parse_squad(std::string_view text, const std::string& file) {
  const json_place place{.file = file, .line = 0, .remedy = "fetch the file again"};
  const json document = parse_json(text, place);
  const json_reader root{document, place};
  squad set;
  root["data"].each([&](const json_reader& article) {
    article["paragraphs"].each([&](const json_reader& paragraph) { detail::read_paragraph(paragraph, set); });
  });
  require<file_error>(!set.questions.empty(), "\"{}\" has no question (a list of them is needed): fetch the file again",
                      file);
  return set;
}

/// Reads a file, plain or gzip.
inline squad read_squad(const std::filesystem::path& path, std::size_t limit = default_limit) {
  return parse_squad(read_text(path, limit), path.string());
}

/// Splits off the questions on the last tenth (or another part) of the contexts, so that no text is in both parts.
inline std::pair<squad, squad> split(const squad& all, double held_out = 0.1) {
  const auto cut = static_cast<std::size_t>(static_cast<double>(all.contexts.size()) * (1 - held_out));
  const auto at = all.contexts.begin() + static_cast<std::ptrdiff_t>(cut);
  std::pair<squad, squad> parts{{{all.contexts.begin(), at}, {}}, {{at, all.contexts.end()}, {}}};
  for (squad_question question : all.questions) {
    const bool first = question.context < cut;
    if (!first) question.context -= cut;
    (first ? parts.first : parts.second).questions.push_back(std::move(question));
  }
  require<error>(!parts.first.questions.empty() && !parts.second.questions.empty(),
                 "{} contexts with a share of {} held out (each part needs a question): use more, or another share",
                 all.contexts.size(), held_out);
  return parts;
}

}  // namespace data_sets
