// SPDX-License-Identifier: Apache-2.0
#include <examples/data/file_bytes.hpp>

#include "temporary.hpp"

namespace {
using namespace data_sets;
using namespace test_data;

TEST_CASE_FIXTURE(in_folder, "a plain file and its gzip give the same bytes, whatever the file is called") {
  const std::string text = repeated("comp ", 50'000);
  CHECK(file_bytes(in.write("plain.gz", text)) == bytes(text));
  CHECK(file_bytes(in.write("packed", gzip(text))) == bytes(text));
}

TEST_CASE_FIXTURE(in_folder, "gzip members one after the other are one file") {
  CHECK(file_bytes(in.write("two.gz", gzip("one ") + gzip("two"))) == bytes("one two"));
}

TEST_CASE_FIXTURE(in_folder, "paths that are no file are refused") {
  const std::string missing = (in.path() / "nothing.bin").string();
  CHECK(message_of([&] { file_bytes(missing); }) ==
        "\"" + missing + "\" does not exist (a data file is expected): check the path");
  CHECK(message_of([&] { file_bytes(in.path()); }) ==
        "\"" + in.path().string() + "\" is a directory (a data file is expected): name a file in it");
  CHECK(message_of([&] { file_bytes("/dev/null"); }) ==
        "\"/dev/null\" is no regular file (its size must be known): copy it to one");
}

TEST_CASE_FIXTURE(in_folder, "an empty file and an empty archive are refused") {
  CHECK(message_of([&] {
          file_bytes(in.write("empty", ""));
        }).ends_with("is empty (data is expected): fetch the file again"));
  CHECK(message_of([&] {
          file_bytes(in.write("empty.gz", gzip("")));
        }).ends_with("is empty (data is expected): fetch the file again"));
}

TEST_CASE_FIXTURE(in_folder, "a file larger than the limit is refused before it is read, an archive while it unpacks") {
  const std::filesystem::path plain = in.write("plain", std::string(1001, 'a'));
  CHECK(message_of([&] { file_bytes(plain, 1000); }) == "\"" + plain.string() +
                                                            "\" has 1001 bytes (the limit of this reader is 1000): "
                                                            "check that it is the right file, or raise the limit");
  CHECK_NOTHROW(file_bytes(plain, 1001));
  const std::filesystem::path bomb = in.write("bomb.gz", gzip(std::string(20'000'000, 'a')));
  CHECK(std::filesystem::file_size(bomb) < 100'000);
  CHECK(message_of([&] { file_bytes(bomb, 19'999'999); }) ==
        "\"" + bomb.string() +
            "\" unpacks to more than 19999999 bytes (the limit of this reader): "
            "check that it is the right file, or raise the limit");
  CHECK(file_bytes(bomb, 20'000'000).size() == 20'000'000);
}

TEST_CASE("a gzip file cut anywhere is refused") {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += std::to_string(i * 7919);
  const std::string whole = gzip(text);
  for (std::size_t size = 2; size < whole.size(); size += 1 + size / 50) {
    CAPTURE(size);
    const std::string message = message_of([&] { unpacked(bytes(whole.substr(0, size)), "f"); });
    CHECK(message.starts_with("f ends inside its gzip data, at "));
    CHECK(message.ends_with("(the end mark is missing): fetch the file again"));
  }
}

TEST_CASE("a gzip file with a wrong byte is refused") {
  const std::string whole = gzip("some text that is long enough to be packed, and then some");
  SUBCASE("in the checksum") {
    std::string broken = whole;
    broken[broken.size() - 6] ^= 1;
    CHECK(message_of([&] { unpacked(bytes(broken), "f"); }).find("is corrupt gzip data at") != std::string::npos);
    CHECK(message_of([&] { unpacked(bytes(broken), "f"); }).find("incorrect data check") != std::string::npos);
  }
  SUBCASE("in the length") {
    std::string broken = whole;
    broken.back() ^= 1;
    CHECK(message_of([&] { unpacked(bytes(broken), "f"); }).find("incorrect length check") != std::string::npos);
  }
  SUBCASE("in the header") {
    std::string broken = whole;
    broken[2] = 7;  // no such method
    CHECK(message_of([&] { unpacked(bytes(broken), "f"); }).find("unknown compression method") != std::string::npos);
  }
}

TEST_CASE("bytes behind a gzip file are refused, with their number and offset") {
  const std::string whole = gzip("text");
  CHECK(message_of([&] { unpacked(bytes(whole + "xyz"), "f"); }) ==
        "f has 3 bytes behind its gzip data, at " + std::to_string(whole.size()) +
            " (nothing or another gzip member may follow): fetch the file again");
}

TEST_CASE_FIXTURE(in_folder, "plain_or_gz takes the plain file where both are there, and names what is missing") {
  CHECK(message_of([&] { plain_or_gz(in.path(), "train.bin"); }) ==
        "\"" + in.path().string() +
            "\" has neither train.bin nor train.bin.gz (the standard layout has one of them): "
            "unpack the whole data set there");
  const std::filesystem::path packed = in.write("train.bin.gz", "x");
  CHECK(plain_or_gz(in.path(), "train.bin") == packed);
  const std::filesystem::path plain = in.write("train.bin", "x");
  CHECK(plain_or_gz(in.path(), "train.bin") == plain);
  CHECK(message_of([&] {
          plain_or_gz(plain, "train.bin");
        }).ends_with("is no folder (it is to hold train.bin): check the path"));
}
}  // namespace
