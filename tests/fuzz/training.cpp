// SPDX-License-Identifier: Apache-2.0
// Safetensors files, and trainings in their metadata: what is read is written again and reads the same.
#include <comp/files/training_file.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  fuzz::read_or_refuse([&] {
    const auto read = comp::parse_safetensors(text, "f");
    const std::string again = comp::safetensors_text(read.tensors, read.metadata);
    const auto back = comp::parse_safetensors(again, "f");
    fuzz::must(back.metadata == read.metadata && back.tensors.size() == read.tensors.size());
    fuzz::must(comp::safetensors_text(back.tensors, back.metadata) == again);
  });
  fuzz::read_or_refuse([&] {
    const comp::json_place place{"f", 0, "give another"};
    const auto document = comp::parse_json(text, place);
    const auto read = comp::read_json<comp::training_progress>(comp::json_reader{document, place});
    const comp::json again = comp::json_of(read);
    const auto back = comp::read_json<comp::training_progress>(comp::json_reader{again, place});
    fuzz::must(comp::json_of(back) == again);
  });
  return 0;
}
