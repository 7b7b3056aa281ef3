// SPDX-License-Identifier: Apache-2.0
// Attention as a graph of cuDNN's C++ front end. It is a header of its own, so that a test can plan the graphs for GPUs
// that the machine does not have.
#pragma once

#include <comp_cuda/attention.hpp>
#include <memory>

#include "planning.hpp"

namespace comp::cuda::graphs {

/// The numbers by which execute() is told the addresses of tensors.
enum uid : std::int64_t {
  of_q = 1,
  of_k,
  of_v,
  of_y,
  of_log_sums,
  of_dy,
  of_dq,
  of_dk,
  of_dv,
  of_seed,
  of_offset,
  of_queries_seen,
  of_keys_seen
};

/// Returns: the graph of the case, which the front end has not yet validated.
inline std::shared_ptr<fe::graph::Graph> described(const attention_case& a, bool backward) {
  using attributes = fe::graph::Tensor_attributes;
  auto g = std::make_shared<fe::graph::Graph>();
  g->set_io_data_type(a.fp16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto heads_of = [&](attributes& t, uid number, std::int64_t tokens) -> attributes& {  // of (B,T,H*D)
    return t.set_uid(number)
        .set_dim({a.batch, a.heads, tokens, a.width})
        .set_stride({tokens * a.heads * a.width, a.width, a.heads * a.width, 1});
  };
  const auto input = [&](uid number, std::int64_t tokens) {
    attributes t;
    return g->tensor(heads_of(t, number, tokens));
  };
  const auto sums = [&](attributes& t) -> attributes& {
    return t.set_uid(of_log_sums)
        .set_dim({a.batch, a.heads, a.queries, 1})
        .set_stride({a.heads * a.queries, a.queries, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  };
  const auto set = [&](auto options) {
    options.set_name("attention").set_attn_scale(static_cast<float>(a.scale)).set_causal_mask(a.causal);
    const auto numbers = [&](uid n, std::int64_t count, fe::DataType_t type) {
      return g->tensor(attributes{}.set_uid(n).set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type));
    };
    // cuDNN is told how many queries and keys count, even if all do. Without that the backward of cuDNN 9.25 and 9.26
    // returned NaN on compute capability 9.0 (NVIDIA/cudnn-frontend, issue 1072), and with cuDNN up to 9.15 the front
    // end writes such numbers itself at each call.
    options.set_padding_mask(true)
        .set_seq_len_q(numbers(of_queries_seen, a.batch, fe::DataType_t::INT32))
        .set_seq_len_kv(numbers(of_keys_seen, a.batch, fe::DataType_t::INT32));
    if (a.dropout > 0) {
      const auto seed = numbers(of_seed, 1, fe::DataType_t::INT64),
                 offset = numbers(of_offset, 1, fe::DataType_t::INT64);
      options.set_dropout(static_cast<float>(a.dropout), seed, offset);
    }
    return options;
  };
  const auto q = input(of_q, a.queries), k = input(of_k, a.keys), v = input(of_v, a.keys);
  if (!backward) {
    auto [y, log_sums] = g->sdpa(q, k, v, set(fe::graph::SDPA_attributes{}.set_generate_stats(true)));
    heads_of(y->set_output(true), of_y, a.queries);
    sums(log_sums->set_output(true));
    return g;
  }
  attributes log_sums;
  auto [dq, dk, dv] =
      g->sdpa_backward(q, k, v, input(of_y, a.queries), input(of_dy, a.queries), g->tensor(sums(log_sums)),
                       set(fe::graph::SDPA_backward_attributes{}.set_deterministic_algorithm(!a.any_order)));
  heads_of(dq->set_output(true), of_dq, a.queries);
  heads_of(dk->set_output(true), of_dk, a.keys);
  heads_of(dv->set_output(true), of_dv, a.keys);
  return g;
}

}  // namespace comp::cuda::graphs
