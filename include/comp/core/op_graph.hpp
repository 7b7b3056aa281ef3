// SPDX-License-Identifier: Apache-2.0
// The operators of one forward pass in execution order, with the edges between them. The paper flattens a model to a
// chain of operators; here it is a DAG, since residuals and branches decide where casts stand. A graph does not change
// once it is made, so who reads an operator is computed once. 10^5 operators are fine.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <comp/core/fnv1a.hpp>
#include <comp/core/op_info.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

class op_graph {
 public:
  op_graph() = default;

  /// Takes operators in execution order. When none of them names a producer they are read as a chain, as in the paper's
  /// plan strings: operator i reads operator i-1.
  /// Throws: `graph_error`, naming the operator, when a producer does not come before its reader.
  op_graph(std::vector<op_info> operators) : operators_{std::move(operators)} {  // NOLINT: implicit on purpose
    bool chain = true;
    for (const op_info& op : operators_) chain = chain && op.producers.empty();
    for (std::size_t i = 1; chain && i < operators_.size(); ++i) operators_[i].producers = {i - 1};
    index_consumers();
  }

  std::size_t size() const { return operators_.size(); }
  bool empty() const { return operators_.empty(); }
  const op_info& operator[](std::size_t i) const { return operators_[i]; }
  auto begin() const { return operators_.begin(); }
  auto end() const { return operators_.end(); }

  /// Returns the operators that read operator `i`, in execution order.
  std::span<const std::uint32_t> consumers(std::size_t i) const {
    return std::span{consumers_}.subspan(first_consumer_[i], first_consumer_[i + 1] - first_consumer_[i]);
  }

  /// A hash of names, kinds, shapes and edges (FNV-1a, 64 bit). It is equal for the same model at the same sizes on
  /// every machine; a plan file holds it, so that its plan is not used for another model.
  std::uint64_t fingerprint() const {
    detail::fnv1a all;
    const auto mix = [&](std::uint64_t value) {
      for (int shift = 0; shift < 64; shift += 8) all.add(static_cast<unsigned char>(value >> shift));
    };
    const auto mix_text = [&](std::string_view text) {
      mix(text.size());
      all.add_bytes(text.data(), text.size());
    };
    for (const op_info& op : operators_) {
      mix_text(op.name);
      mix_text(op.kind);
      mix(computes(op));  // freeing the blocks that its author fixed leaves the model the same
      if (op.as_written != precision::fp32) mix_text(name(op.as_written));
      for (const auto* tensors : {&op.inputs, &op.outputs}) {
        mix(tensors->size());
        for (const tensor_info& tensor : *tensors) {
          mix(tensor.shape.size());
          for (const auto extent : tensor.shape) mix(static_cast<std::uint64_t>(extent));
        }
      }
      if (const std::array sizes{op.m, op.n, op.k, op.channels_in, op.channels_out};
          !has_shapes(op) && sizes != std::array<std::int64_t, 5>{}) {
        // A backend that gives no shapes may give these sizes; without them a model of another width would be the same.
        for (const auto size : sizes) mix(static_cast<std::uint64_t>(size));
      }
      mix(op.producers.size());
      for (const auto producer : op.producers) mix(producer);
    }
    return all.hash;
  }

 private:
  static bool has_shapes(const op_info& op) {
    const auto shaped = [](const tensor_info& tensor) { return !tensor.shape.empty(); };
    return std::any_of(op.inputs.begin(), op.inputs.end(), shaped) ||
           std::any_of(op.outputs.begin(), op.outputs.end(), shaped);
  }

  void index_consumers() {
    first_consumer_.assign(operators_.size() + 1, 0);
    for (std::size_t i = 0; i < operators_.size(); ++i) {
      for (const auto producer : operators_[i].producers) {
        require<graph_error>(producer < i,
                             "operator {} (\"{}\") reads operator {} (a producer comes before its readers): "
                             "give the operators in execution order",
                             i, operators_[i].name, producer);
        ++first_consumer_[producer + 1];
      }
    }
    for (std::size_t i = 0; i < operators_.size(); ++i) first_consumer_[i + 1] += first_consumer_[i];
    consumers_.resize(first_consumer_.back());
    std::vector<std::uint32_t> next{first_consumer_.begin(), first_consumer_.end() - 1};
    for (std::size_t i = 0; i < operators_.size(); ++i) {
      for (const auto producer : operators_[i].producers) {
        consumers_[next[producer]++] = static_cast<std::uint32_t>(i);
      }
    }
  }

  // Compressed rows: the consumers of operator i stand in consumers_ from first_consumer_[i] to first_consumer_[i + 1].
  // A vector for each operator would be an allocation each, 10^5 of them in a large graph.
  std::vector<op_info> operators_;
  std::vector<std::uint32_t> consumers_;
  std::vector<std::uint32_t> first_consumer_ = {0};
};

/// Returns: FP64 if an operator whose precision can be chosen is written in it; else FP32.
inline precision widest_written(const op_graph& graph) {
  const bool any = std::any_of(graph.begin(), graph.end(),
                               [](const op_info& op) { return op.choosable && op.as_written == precision::fp64; });
  return any ? precision::fp64 : precision::fp32;
}

/// What the plan is called, in tables, that a search compares all others with.
inline std::string_view reference_label(const op_graph& graph) {
  return widest_written(graph) == precision::fp64 ? "as written" : "fp32";
}
/// The same in sentences.
inline std::string_view reference_name(const op_graph& graph) {
  return widest_written(graph) == precision::fp64 ? "the model as written" : "FP32";
}

}  // namespace comp
