// SPDX-License-Identifier: Apache-2.0
// Pre-trained weights of BERT from a safetensors file with Hugging Face's names, with or without "bert." before them,
// and with LayerNorm's weight and bias or, as older files have them, gamma and beta. The head stays as initialised.
// Not here: the vocabulary, which comes with the data.
#pragma once

#include <fmt/ranges.h>

#include <comp/files/safetensors.hpp>
#include <libtorch/bert.hpp>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace torch_models {

namespace detail {

/// Returns: Hugging Face's name of a parameter of bert_for_spans; empty for those of the head.
inline std::string hugging_face_name(std::string_view parameter) {
  static constexpr std::pair<std::string_view, std::string_view> modules[] = {
      {"embeddings.token", "embeddings.word_embeddings"},
      {"embeddings.position", "embeddings.position_embeddings"},
      {"embeddings.segment", "embeddings.token_type_embeddings"},
      {"embeddings.norm", "embeddings.LayerNorm"},
      {"attention.query", "attention.self.query"},
      {"attention.key", "attention.self.key"},
      {"attention.value", "attention.self.value"},
      {"attention.output", "attention.output.dense"},
      {"attention_norm", "attention.output.LayerNorm"},
      {"up", "intermediate.dense"},
      {"down", "output.dense"},
      {"norm", "output.LayerNorm"}};
  const std::size_t last = parameter.rfind('.');
  std::string_view module = parameter.substr(0, last);
  std::string block;
  if (module.starts_with("block")) {
    const std::size_t dot = module.find('.');
    block = fmt::format("encoder.layer.{}.", std::stoi(std::string{module.substr(5, dot - 5)}) - 1);
    module.remove_prefix(dot + 1);
  }
  for (const auto& [ours, theirs] : modules) {
    if (module == ours) return fmt::format("{}{}{}", block, theirs, parameter.substr(last));
  }
  return {};
}

/// Reads a file's tensors by their names without "bert.", gamma and beta.
inline std::map<std::string, comp::named_tensor> read_bert_tensors(const std::string& file) {
  std::map<std::string, comp::named_tensor> found;
  comp::tensor_file read = comp::read_safetensors(file, comp::other_dtypes::left_out);
  for (comp::named_tensor& tensor : read.tensors) {
    std::string name = tensor.name.substr(tensor.name.starts_with("bert.") ? 5 : 0);
    for (const auto& [old, now] : {std::pair{"gamma", "weight"}, std::pair{"beta", "bias"}}) {
      const std::size_t at = name.rfind(old);
      if (name.ends_with(std::string{"LayerNorm."} + old)) name.replace(at, std::string::npos, now);
    }
    found[name] = std::move(tensor);
  }
  return found;
}

}  // namespace detail

/// Sets all weights but the head's to those of `file`. Throws: `comp::file_error`, naming the tensor, its shape and
/// what is expected, for a tensor that is missing or has another shape, and for a file with more blocks.
inline void read_bert_weights(bert_for_spans net, const std::string& file) {
  const auto found = detail::read_bert_tensors(file);
  const auto shape_text = [](const auto& shape) { return fmt::format("({})", fmt::join(shape, ",")); };
  const torch::NoGradGuard no_gradients;
  for (const auto& parameter : net->named_parameters()) {
    const std::string name = detail::hugging_face_name(parameter.key());
    if (name.empty()) continue;
    const auto tensor = found.find(name);
    comp::require<comp::file_error>(
        tensor != found.end(),
        "\"{}\" has no tensor {} ({} is expected): give a file of Hugging Face's BERT with as many layers", file, name,
        shape_text(parameter.value().sizes()));
    const auto& [read_name, shape, values] = tensor->second;
    comp::require<comp::file_error>(parameter.value().sizes().equals(shape),
                                    "\"{}\": tensor {} is {} ({} is expected): give weights of this --size, and the "
                                    "vocabulary that they were trained with",
                                    file, read_name, shape_text(shape), shape_text(parameter.value().sizes()));
    parameter.value().copy_(torch::tensor(torch::ArrayRef<float>(values)).view(shape));
  }
  comp::require<comp::file_error>(
      !found.contains(fmt::format("encoder.layer.{}.output.dense.weight", net->blocks.size())),
      "\"{}\" has more layers than this bert (which has {}): give weights of this --size", file, net->blocks.size());
}

}  // namespace torch_models
