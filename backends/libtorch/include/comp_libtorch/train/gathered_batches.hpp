// SPDX-License-Identifier: Apache-2.0
// Batches that are gathered from tensors (data_order.hpp).
#pragma once

#include <ATen/ATen.h>

#include <comp/core/error.hpp>
#include <comp_libtorch/train/data_order.hpp>
#include <optional>
#include <string>
#include <utility>

namespace comp::libtorch {

COMP_INLINE indexed_batches<torch::data::Example<>> tensor_batches(const at::Tensor& data, const at::Tensor& target,
                                                                   batch_options options, augmentation augment,
                                                                   std::optional<c10::Device> device) {
  require<settings_error>(data.dim() > 0 && target.dim() > 0 && data.size(0) == target.size(0),
                          "data of {} examples with targets of {} (one target per example): give as many of both",
                          data.dim() > 0 ? data.size(0) : 0, target.dim() > 0 ? target.size(0) : 0);
  std::string about = fmt::format("tensors {:016x} {:016x}{}", detail::sampled_hash(data), detail::sampled_hash(target),
                                  augment ? " augmented" : "");
  const auto gather = [=](const at::Tensor& indices, at::Generator& generator) {
    const at::Tensor where = indices.to(data.device());
    at::Tensor x = data.index_select(0, where), y = target.index_select(0, where);
    if (augment) x = augment(std::move(x), generator);
    return torch::data::Example<>{device ? x.to(*device) : x, device ? y.to(*device) : y};
  };
  return {data.size(0), options, gather, std::move(about)};
}

}  // namespace comp::libtorch
