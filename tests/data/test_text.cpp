// SPDX-License-Identifier: Apache-2.0
#include <examples/data/text.hpp>

#include "temporary.hpp"

namespace {
using namespace data_sets;
using namespace test_data;

TEST_CASE_FIXTURE(in_folder, "a text is read as it is, plain or gzip") {
  const std::string text = "Zwölf\r\n\tlines\n";
  CHECK(read_text(in.write("a.txt", text)) == text);
  CHECK(read_text(in.write("a.txt.gz", gzip(text))) == text);
}

TEST_CASE("a vocabulary has each letter once, in order, and decodes what it encodes") {
  const vocabulary letters{"hello"};
  CHECK(letters.letters() == "ehlo");
  CHECK(letters.encode("hole") == std::vector<std::int32_t>{1, 3, 2, 0});
  CHECK(letters.decode(letters.encode("hello")) == "hello");
  std::string every;
  for (int letter = 1; letter < 256; ++letter) every += static_cast<char>(letter);
  const vocabulary all{every};
  CHECK(all.size() == 255);
  CHECK(all.decode(all.encode(every)) == every);
}

TEST_CASE("an unknown letter is refused with its position") {
  const vocabulary letters{"abc"};
  CHECK(message_of<comp::error>([&] { letters.encode("abxc"); }) ==
        "letter 'x' at 2 is not in the vocabulary of 3 letters (it did not occur in the text that made it): "
        "make the vocabulary from both texts, or leave the letter out");
  CHECK(message_of<comp::error>([&] { letters.encode("a\n"); }).starts_with("letter 0x0a at 1 is not in"));
  CHECK(letters.encode("").empty());
}

TEST_CASE("a number that is no token is refused with its position") {
  const vocabulary letters{"abc"};
  CHECK(message_of<comp::error>([&] {
          letters.decode(std::vector<std::int32_t>{0, 3});
        }) == "token 3 at 1 is out of range (the vocabulary has 3 letters): decode what this vocabulary encoded");
  CHECK(message_of<comp::error>([&] { letters.decode(std::vector<std::int32_t>{-1}); }).starts_with("token -1 at 0"));
}

TEST_CASE_FIXTURE(in_folder, "a file that is no text is refused") {
  CHECK(message_of([&] {
          parse_text(bytes(std::string_view{"ab\0c", 4}), "f");
        }) == "f has a NUL byte at 2 (a text has none): check that it is a text file");
  CHECK(message_of([&] { parse_text({}, "f"); }) == "f is empty (a text is expected): use a file with text");
  CHECK(message_of([&] { read_text(in.path() / "none"); }).find("does not exist") != std::string::npos);
  CHECK(message_of<comp::error>([] { vocabulary{""}; }) ==
        "a vocabulary of an empty text (it has no letters): give it the training text");
}

}  // namespace
