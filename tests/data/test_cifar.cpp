// SPDX-License-Identifier: Apache-2.0
#include <examples/data/cifar.hpp>

#include "temporary.hpp"

namespace {
using namespace data_sets;
using namespace test_data;

/// One record: its labels, then 3072 pixels that begin with "rgb".
std::string record(std::initializer_list<int> labels) {
  std::string text;
  for (const int label : labels) text += static_cast<char>(label);
  return text + "rgb" + std::string(3069, 'p');
}

TEST_CASE("CIFAR-10's records have a label, CIFAR-100's a superclass and a label") {
  const images ten = parse_cifar(bytes(record({3}) + record({9})), cifar::ten, "f");
  CHECK(ten.count == 2);
  CHECK(ten.channels == 3);
  CHECK(ten.height == 32);
  CHECK(ten.width == 32);
  CHECK(ten.classes == 10);
  CHECK(ten.labels == std::vector<std::int32_t>{3, 9});
  CHECK(ten.pixels.size() == 2 * 3072);
  CHECK(ten.pixels[3072] == 'r');
  const images hundred = parse_cifar(bytes(record({19, 99})), cifar::hundred, "f");
  CHECK(hundred.classes == 100);
  CHECK(hundred.labels == std::vector<std::int32_t>{99});
  CHECK(hundred.pixels[2] == 'b');
}

TEST_CASE_FIXTURE(in_folder, "a folder in the standard layout is read by part, batches in order, plain or gzip") {
  for (int batch = 1; batch <= 5; ++batch) {
    const std::string name = "data_batch_" + std::to_string(batch) + ".bin";
    batch % 2 == 0 ? in.write(name, record({batch})) : in.write(name + ".gz", gzip(record({batch})));
  }
  in.write("test_batch.bin", record({7}));
  CHECK(kind_of(in.path()) == cifar::ten);
  CHECK(read_cifar(in.path(), cifar::ten, part::train).labels == std::vector<std::int32_t>{1, 2, 3, 4, 5});
  CHECK(read_cifar(in.path(), part::test).labels == std::vector<std::int32_t>{7});
  std::filesystem::remove(in.path() / "data_batch_4.bin");
  CHECK(message_of([&] { read_cifar(in.path(), part::train); }).find("neither data_batch_4.bin nor") !=
        std::string::npos);
}

TEST_CASE_FIXTURE(in_folder, "the folder above the archive's own is found too") {
  in.write("cifar-100-binary/train.bin", record({0, 5}) + record({1, 6}));
  in.write("cifar-100-binary/test.bin", record({2, 7}));
  CHECK(read_cifar(in.path(), part::train).labels == std::vector<std::int32_t>{5, 6});
  CHECK(read_cifar(in.path() / "cifar-100-binary", part::test).labels == std::vector<std::int32_t>{7});
}

TEST_CASE_FIXTURE(in_folder, "a single file is taken for what its size says") {
  CHECK(read_cifar(in.write("a", record({1}) + record({2})), part::train).classes == 10);
  CHECK(read_cifar(in.write("b.gz", gzip(record({1, 2}))), part::test).classes == 100);
  CHECK(message_of([&] { kind_of(bytes(std::string(100, 'a')), "f"); }) ==
        "f has 100 bytes (none of CIFAR-10's records of 3073 and CIFAR-100's of 3074 fit): "
        "fetch it again, or check that it is a CIFAR file");
  const std::vector<std::byte> both(3073 * 3074);
  CHECK(message_of([&] {
          kind_of(both, "f");
        }).ends_with("(both of CIFAR-10's records of 3073 and CIFAR-100's of 3074 fit): say which it is"));
}

TEST_CASE("truncated, oversized and empty files are refused") {
  CHECK(message_of([&] { parse_cifar(bytes(record({1}) + "xy"), cifar::ten, "f"); }) ==
        "f has 3075 bytes, 2 behind the last whole record (a CIFAR-10 file is a positive multiple of 3073): "
        "fetch it again, or check that it is a CIFAR-10 file");
  CHECK(message_of([&] {
          parse_cifar(bytes(record({1}).substr(0, 3000)), cifar::ten, "f");
        }).starts_with("f has 3000 bytes, 3000"));
  CHECK(message_of([&] { parse_cifar({}, cifar::hundred, "f"); }).starts_with("f has 0 bytes"));
  const folder in;
  CHECK(message_of([&] {
          read_cifar(in.write("a", record({1})), cifar::ten, part::train, 3000);
        }).find("the limit of this reader is 3000") != std::string::npos);
}

TEST_CASE("a label out of range is refused with its offset") {
  CHECK(message_of([&] { parse_cifar(bytes(record({1}) + record({10})), cifar::ten, "f"); }) ==
        "f has label 10 at 3073 (CIFAR-10 has 10 here): check that it is a CIFAR-10 file");
  CHECK(message_of([&] {
          parse_cifar(bytes(record({20, 1})), cifar::hundred, "f");
        }) == "f has label 20 at 0 (CIFAR-100 has 20 here): check that it is a CIFAR-100 file");
  CHECK(message_of([&] {
          parse_cifar(bytes(record({1, 100})), cifar::hundred, "f");
        }) == "f has label 100 at 1 (CIFAR-100 has 100 here): check that it is a CIFAR-100 file");
}

TEST_CASE_FIXTURE(in_folder, "a folder without any CIFAR file is refused") {
  CHECK(message_of([&] { read_cifar(in.path(), part::train); }) ==
        "\"" + in.path().string() +
            "\" has no file of CIFAR's binary version (data_batch_1.bin for CIFAR-10, train.bin for "
            "CIFAR-100): unpack the data set there");
  CHECK(message_of([&] { read_cifar(in.path() / "none", part::train); }).find("does not exist") != std::string::npos);
}
}  // namespace
