// SPDX-License-Identifier: Apache-2.0
// In the place of backends/cuda/graphs/attention.cpp: attention as comp_cuda/attention.hpp says it, computed head by
// head in FP64 when somebody waits for the stream, with operands, results and workspace where a library would look for
// them. Refused is what cuDNN 9.19 refuses: heads that are no multiple of 8 wide or wider than 128, GPUs before 8.0,
// dropout with a fixed order of sums on 10.x, and what would take more workspace than there is.
#include "attention_on_cpu.hpp"

#include <algorithm>
#include <cmath>
#include <comp_cuda/attention.hpp>
#include <comp_native/math/formats.hpp>
#include <cstdlib>
#include <vector>

namespace comp::cuda {

namespace {

using numbers = std::vector<double>;

template <class T>
class attention_on_cpu {
 public:
  attention_on_cpu(const attention_case& of, const attention_places& at) : of_{of}, at_{at} {}

  void forward() const {
    float* sums = simt::library_writes<float>(at_.log_sums, count(of_.batch, of_.heads, of_.queries));
    each_head([&](index b, index h) {
      const numbers q = head(at_.q, b, h, of_.queries), k = head(at_.k, b, h, of_.keys),
                    v = head(at_.v, b, h, of_.keys);
      numbers y(q.size());
      for (index i = 0; i < of_.queries; ++i) {
        numbers s = scores(q, k, b, i);
        double total = 0;
        for (const double x : s) total += std::exp(x);
        sums[(b * of_.heads + h) * of_.queries + i] = static_cast<float>(std::log(total));
        for (index j = 0; j < of_.keys; ++j) {
          add(y, i, std::exp(s[at(j)]) / total * kept(b, h, i, j), v, j);
        }
      }
      put(at_.y, b, h, of_.queries, y);
    });
  }
  void backward() const {
    const float* sums = simt::library_reads<float>(at_.log_sums, count(of_.batch, of_.heads, of_.queries));
    each_head([&](index b, index h) {
      const numbers q = head(at_.q, b, h, of_.queries), k = head(at_.k, b, h, of_.keys),
                    v = head(at_.v, b, h, of_.keys);
      const numbers y = head(at_.y, b, h, of_.queries), dy = head(at_.dy, b, h, of_.queries);
      numbers dq(q.size()), dk(k.size()), dv(v.size());
      for (index i = 0; i < of_.queries; ++i) {
        const numbers s = scores(q, k, b, i);
        const double along = dot(dy, i, y, i), log_sum = sums[(b * of_.heads + h) * of_.queries + i];
        for (index j = 0; j < of_.keys; ++j) {
          const double p = std::exp(s[at(j)] - log_sum), factor = kept(b, h, i, j);
          const double ds = p * (dot(dy, i, v, j) * factor - along) * of_.scale;
          add(dv, j, p * factor, dy, i);
          add(dq, i, ds, k, j);
          add(dk, j, ds, q, i);
        }
      }
      put(at_.dq, b, h, of_.queries, dq);
      put(at_.dk, b, h, of_.keys, dk);
      put(at_.dv, b, h, of_.keys, dv);
    });
  }

 private:
  static std::size_t at(index i) { return static_cast<std::size_t>(i); }
  static std::size_t count(index a, index b, index c) { return static_cast<std::size_t>(a * b * c); }
  index channels() const { return of_.heads * of_.width; }
  void each_head(auto f) const {
    for (index b = 0; b < of_.batch; ++b) {
      for (index h = 0; h < of_.heads; ++h) f(b, h);
    }
  }
  /// (tokens, width)
  numbers head(const void* from, index b, index h, index tokens) const {
    numbers to;
    for (index t = 0; t < tokens; ++t) {
      const T* row = simt::library_reads<T>(static_cast<const T*>(from) + (b * tokens + t) * channels() + h * of_.width,
                                            at(of_.width));
      for (index d = 0; d < of_.width; ++d) to.push_back(native::math::load(row[d]));
    }
    return to;
  }
  void put(void* to, index b, index h, index tokens, const numbers& from) const {
    for (index t = 0; t < tokens; ++t) {
      T* row =
          simt::library_writes<T>(static_cast<T*>(to) + (b * tokens + t) * channels() + h * of_.width, at(of_.width));
      for (index d = 0; d < of_.width; ++d) {
        native::math::store(row[d], static_cast<float>(from[at(t * of_.width + d)]));
      }
    }
  }
  double dot(const numbers& a, index i, const numbers& b, index j) const {
    double sum = 0;
    for (index d = 0; d < of_.width; ++d) sum += a[at(i * of_.width + d)] * b[at(j * of_.width + d)];
    return sum;
  }
  void add(numbers& to, index i, double factor, const numbers& from, index j) const {
    for (index d = 0; d < of_.width; ++d) to[at(i * of_.width + d)] += factor * from[at(j * of_.width + d)];
  }
  /// How many keys query i of example b sees. Each row of queries has to count: what does not, a library leaves as it
  /// is.
  index key_count(index b, index i) const {
    const auto count = static_cast<std::size_t>(of_.batch);
    if (simt::library_reads<std::int32_t>(at_.queries_seen, count)[b] != of_.queries) std::abort();
    const index keys = simt::library_reads<std::int32_t>(at_.keys_seen, count)[b];
    return of_.causal ? std::min(i + 1, keys) : keys;
  }
  numbers scores(const numbers& q, const numbers& k, index b, index i) const {
    const index keys = this->key_count(b, i);
    numbers s;
    for (index j = 0; j < of_.keys; ++j) s.push_back(j < keys ? of_.scale * dot(q, i, k, j) : -HUGE_VAL);
    return s;
  }
  /// What a probability is multiplied by: another mask than dropout_key's, as a library's is.
  double kept(index b, index h, index i, index j) const {
    if (of_.dropout == 0) return 1;
    const std::uint64_t* seed = simt::library_reads<std::uint64_t>(at_.seed, 2);
    const index element = ((b * of_.heads + h) * of_.queries + i) * of_.keys + j;
    std::uint32_t word[4][1] = {{static_cast<std::uint32_t>(element)}, {7}, {static_cast<std::uint32_t>(seed[1])}, {0}};
    native::math::philox(word, static_cast<std::uint32_t>(seed[0]), static_cast<std::uint32_t>(seed[0] >> 32));
    return word[2][0] < of_.dropout * 0x1p32 ? 0 : 1 / (1 - of_.dropout);
  }
  attention_case of_;
  attention_places at_;
};

class graph_on_cpu final : public attention_graph {
 public:
  graph_on_cpu(const attention_case& of, bool backward) : of_{of}, backward_{backward} {}
  /// The backward with a fixed order wants the probabilities, and sums of the queries' gradients in FP32 by blocks of
  /// 128 queries.
  std::int64_t workspace_bytes() const override {
    const std::int64_t sums = (of_.queries + 127) / 128 * 128 * of_.width * 4;
    return backward_ && !of_.any_order ? of_.batch * of_.heads * (2 * of_.queries * of_.keys + sums) : 0;
  }
  std::string run(cudnnHandle_t handle, const attention_places& at, void* workspace) const override {
    if (simt::attention_fails) return "cuDNN: asked to fail";
    simt::note_workspace(static_cast<std::size_t>(workspace_bytes()));
    simt::device.give(handle->stream, [=, *this] {
      if (workspace_bytes() > 0)
        simt::library_writes<std::uint8_t>(workspace, static_cast<std::size_t>(workspace_bytes()));
      of_.fp16 ? work(attention_on_cpu<fp16>{of_, at}) : work(attention_on_cpu<bf16>{of_, at});
    });
    return {};
  }

 private:
  void work(const auto& a) const { backward_ ? a.backward() : a.forward(); }
  attention_case of_;
  bool backward_;
};

}  // namespace

attention_graphs make_attention_graphs(cudnnHandle_t, const attention_case& of, std::int64_t most) {
  const int major = simt::device.properties.major;
  const char* why = major < 8                        ? "SDPA FP16/BF16 requires SM80 (Ampere) or newer architecture"
                    : of.width % 8 || of.width > 128 ? "hidden_dim should be a multiple of 8 and at most 128"
                    : major == 10 && of.dropout > 0 && !of.any_order
                        ? "Deterministic algorithm is not supported with dropout"
                        : nullptr;
  attention_graphs graphs{std::make_unique<graph_on_cpu>(of, false), std::make_unique<graph_on_cpu>(of, true), {}};
  if (!why && graphs.backward->workspace_bytes() > most) why = "no plan with that workspace";
  if (why) return {.why_not = fmt::format("cuDNN: {}", why)};
  return graphs;
}

}  // namespace comp::cuda
