// SPDX-License-Identifier: Apache-2.0
#include <examples/data/read_squad.hpp>

#include "temporary.hpp"

namespace {
using namespace data_sets;
using namespace test_data;
using ids = std::vector<std::int32_t>;

const std::string vocab_txt =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\nun\n##aff\n##able\n,\n.\ncafe\nthe\n中\n国\nwho\n?\nin\n##s\nparis\nx\n`\n";

ids numbers(const std::vector<piece>& of) {
  ids result;
  for (const piece& p : of) result.push_back(p.id);
  return result;
}

TEST_CASE("words are cut into the longest pieces, with their places in the text") {
  const wordpiece pieces{vocab_txt};
  CHECK(pieces.size() == 20);
  CHECK(pieces.encode("unaffable") == std::vector<piece>{{4, 0, 2}, {5, 2, 5}, {6, 5, 9}});
  CHECK(numbers(pieces.encode("Caf\u00e9,the.")) == ids{9, 7, 10, 8});
  CHECK(pieces.encode("Caf\u00e9,")[1] == piece{7, 5, 6});       // after five bytes
  CHECK(pieces.encode("cafe\u0301")[0] == piece{9, 0, 4});       // an accent of its own is nobody's
  CHECK(numbers(pieces.encode("\u4e2d\u56fd")) == ids{11, 12});  // ideographs are words
  CHECK(numbers(pieces.encode("the\u00a0\u200bthe\tthe")) == ids{10, 10, 10});
  CHECK(numbers(pieces.encode("\u1fef")) == ids{19});  // what decomposes to punctuation is punctuation
  CHECK(pieces.encode("").empty());
}

TEST_CASE("a word with a part that the vocabulary lacks is one unknown piece") {
  const wordpiece pieces{vocab_txt};
  CHECK(pieces.encode("the unaffablez x") == std::vector<piece>{{10, 0, 3}, {1, 4, 14}, {18, 15, 16}});
  CHECK(numbers(pieces.encode(repeated("x", 101))) == ids{1});
}

TEST_CASE("vocabularies and texts that are wrong are refused") {
  const auto refused = [](const std::string& text) { return message_of([&] { wordpiece{text, "v"}; }); };
  CHECK(refused("[PAD]\n[UNK]\n[CLS]\n") == "v has no [SEP] (a BERT vocabulary has): use its vocab.txt");
  CHECK(refused(vocab_txt + "the\n") == "v line 21 repeats a piece (each has one number): fetch the file again");
  CHECK(refused("[PAD]\n\n").starts_with("v line 2 has 0 bytes"));
  CHECK(message_of<comp::error>([&] { (void)wordpiece{vocab_txt}.encode("the \xff"); }) ==
        "byte 0xff at 4 is no UTF-8 (text is read as UTF-8): convert the text");
}

/// One context with an accent before the answer: the file counts characters.
std::string document(const std::string& start = "15", const std::string& answer = "Paris",
                     const std::string& extra = "") {
  return R"({"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": "Caf\u00e9 the the in Paris.", "qas": [)"
         R"({"id": "a", "question": "In?", "is_impossible": false, "answers": [{"text": ")" +
         answer + R"(", "answer_start": )" + start +
         R"(}]}, {"id": "b", "question": "Who?", "is_impossible": true, "answers": [])" + extra + "}]}]}]}";
}

TEST_CASE("questions with and without an answer are read, places in bytes") {
  const squad read = parse_squad(document("16"), "f");
  CHECK(read.contexts.size() == 1);
  CHECK(read.questions.size() == 2);
  CHECK(read.questions[0].answers[0].begin == 17);
  CHECK(read.contexts[0].substr(17, 5) == "Paris");
  CHECK(read.questions[1].answers.empty());
}

TEST_CASE("an answer that is not where the file says is refused with its field") {
  const std::string message = message_of([&] { parse_squad(document("15"), "f"); });
  CHECK(message.find("data[0].paragraphs[0].qas[0].answers[0].answer_start is 15") != std::string::npos);
  CHECK(message_of([&] { parse_squad(document("99"), "f"); }).find("a whole number from 0 to") != std::string::npos);
  CHECK(message_of([&] { parse_squad(document("16", ""), "f"); }).find("the character where") != std::string::npos);
  CHECK(message_of([&] { parse_squad(document("16", "Paris", R"(, "x": 1)"), "f"); }).empty());
  CHECK(message_of([&] { parse_squad(R"({"data": []})", "f"); }).find("has no question") != std::string::npos);
  CHECK(message_of([&] {
          parse_squad(R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "a", "question": "q"}]}]}]})", "f");
        }).find("a question that has answers, or says is_impossible") != std::string::npos);
}

TEST_CASE("a window is the question, a part of the context, and the answer's tokens") {
  const squad read = parse_squad(document("16"), "f");
  const auto parts = windows(read, wordpiece{vocab_txt}, {.length = 20, .stride = 8, .question = 8});
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].tokens == ids{2, 15, 14, 3, 9, 10, 10, 15, 17, 8, 3});
  CHECK(parts[0].segments == ids{0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1});
  CHECK(parts[0].first == 8);
  CHECK(parts[0].last == 8);
  CHECK(parts[1].first == 0);
  CHECK(parts[1].last == 0);
}

TEST_CASE("windows of a long context overlap, and only those that hold the answer point at it") {
  const squad read = parse_squad(document("16"), "f");
  const auto parts = windows(read, wordpiece{vocab_txt}, {.length = 8, .stride = 2, .question = 2});
  std::vector<std::int64_t> first;
  for (const squad_window& w : parts) {
    CHECK(w.tokens.size() <= 8);
    if (w.question == 0) first.push_back(w.first);
  }
  CHECK(first == std::vector<std::int64_t>{0, 6, 4});  // tokens 0 to 2, 2 to 4, 4 and 5; the answer is 4
  for (const window_options& o : {window_options{8, 0, 2}, window_options{8, 4, 2}, window_options{8, 1, 5}}) {
    CHECK(message_of<comp::error>([&] { windows(read, wordpiece{vocab_txt}, o); }).starts_with("windows of 8 tokens"));
  }
}

TEST_CASE("answers are scored without articles, case and punctuation, the best of several counting") {
  const squad_question question{.answers = {{"the Paris", 0}, {"Paris, France", 0}}};
  CHECK(score_answer(question, "paris").exact == 1);
  CHECK(score_answer(question, "in Paris").exact == 0);
  CHECK(score_answer(question, "in Paris").f1 == doctest::Approx(2.0 / 3));
  CHECK(score_answer(question, "").f1 == 0);
  CHECK(score_answer(squad_question{}, "").f1 == 1);
  CHECK(score_answer(squad_question{}, "Paris").exact == 0);
  const squad both{.contexts = {"c"}, .questions = {question, squad_question{}}};
  CHECK(score_answers(both, {"Paris", "x"}).f1 == doctest::Approx(0.5));
  CHECK(message_of<comp::error>([&] { score_answers(both, {"Paris"}); }).starts_with("1 predictions for 2 questions"));
}

TEST_CASE_FIXTURE(in_folder, "a folder needs questions and a vocabulary; of one file the last contexts validate") {
  CHECK(message_of([&] { read_squad_folder(in.path()); }).find("neither train*.json nor dev*.json") !=
        std::string::npos);
  in.write("dev-v2.0.json.gz", gzip(document("16")));
  CHECK(message_of([&] { read_squad_folder(in.path()); }).find("no *vocab.txt") != std::string::npos);
  in.write("bert-base-uncased-vocab.txt", vocab_txt);
  CHECK(message_of<comp::error>([&] { read_squad_folder(in.path()); }).starts_with("1 contexts with a share of 0.1"));
  in.write("train-v2.0.json", document("16"));
  const squad_folder read = read_squad_folder(in.path());
  CHECK(read.train.questions.size() == 2);
  CHECK(read.validation.questions.size() == 2);
  squad ten = read.train;
  for (std::size_t i = 1; i < 10; ++i) {
    ten.contexts.push_back("c");
    ten.questions.push_back({.context = i});
  }
  const auto [first, last] = split(ten);
  CHECK(first.contexts.size() == 9);
  CHECK(last.questions.size() == 1);
  CHECK(last.questions[0].context == 0);
}
}  // namespace
