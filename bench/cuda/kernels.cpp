// SPDX-License-Identifier: Apache-2.0
// The bandwidth of each own kernel: the bytes of its tensors, each read or written once, over its time, beside a copy
// within the device of as many bytes (half of them read, half written), in turns. Sizes from what a cache holds to what
// none does. What a node's neighbours have is counted at each edge. Not here: kernels that read a value of a row, or
// less (nll_loss, judge_step).
//   bench_cuda_kernels [--small] [file.json]
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>

#include "measure.hpp"

namespace comp::cuda::bench {
namespace {

constexpr stream on{};
constexpr index width = 1024, heads = 8, head_width = 16, degree = 16;

struct job {
  std::string kernel, precision;
  double bytes;
  std::function<void()> run;
};

/// What the jobs of one size and storage work on. Tensors of n elements are also rows of `width`.
template <class T>
struct tensors {
  index n, rows = n / width, edges = n / heads, nodes = edges / degree, few_edges = edges / head_width,
           entries = std::clamp<index>(n / 32, 16, 32768);
  array<T> x = noise<T>(count(n), 1), y = noise<T>(count(n), 2), z = noise<T>(count(n), 3),
           sum = noise<T>(count(n), 11);
  array<float> vector = noise<float>(count(width), 4), d_vector = noise<float>(count(width), 5),
               per_row = noise<float>(count(rows), 6), inverse = noise<float>(count(rows), 7), one = noise<float>(1, 8),
               table = noise<float>(count(entries * width), 9),
               scratch{count(
                   std::max({column_scratch(rows, width, 2), most_partials, embedding_scratch(rows, width, entries)}))};
  array<float> partial{count(most_partials)}, product = noise<float>(count(rows * (width + 16)), 10);
  array<std::uint8_t> codes{count(fp8_padded(rows) * width)}, codes_across{count(fp8_padded(rows) * width)};
  array<T> out{count(nodes * heads)};
  array<double> number{1};
  array<int> tally = numbers({0});
  array<std::int32_t> label = drawn(rows, width, 1), token = drawn(rows, entries, 2), begin = starts(),
                      target = targets(), source = drawn(edges, nodes, 3),
                      near = drawn(few_edges, few_edges / degree, 4);

  static std::size_t count(index i) { return static_cast<std::size_t>(i); }
  static array<std::int32_t> drawn(index how_many, index below, unsigned seed) {
    std::mt19937 engine{seed};
    std::uniform_int_distribution<std::int32_t> draw{0, static_cast<std::int32_t>(below - 1)};
    std::vector<std::int32_t> all(count(how_many));
    for (auto& i : all) i = draw(engine);
    return numbers(all);
  }
  array<std::int32_t> starts() const {
    std::vector<std::int32_t> all(count(nodes + 1));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i * degree);
    return numbers(all);
  }
  array<std::int32_t> targets() const {
    std::vector<std::int32_t> all(count(edges));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i / degree);
    return numbers(all);
  }
};

template <class T>
class jobs_of {
 public:
  jobs_of(const tensors<T>& t, std::vector<job>& to) : t_{t}, to_{to} {
    elementwise();
    rows();
    losses();
    graphs();
    sums();
    pooling();
    if constexpr (!std::is_same_v<T, fp16>) fp8();
  }

 private:
  /// tensors: how many times the n elements of T go through memory; more: other bytes.
  void add(std::string kernel, double tensors, double more, std::function<void()> run) {
    to_.push_back({std::move(kernel), precision_name<T>,
                   tensors * static_cast<double>(sizeof(T)) * static_cast<double>(t_.n) + more, std::move(run)});
  }
  void chain(std::string kernel, double tensors, std::vector<chain_step<T>> steps) {
    const tensors_type& t = t_;
    add(std::move(kernel), tensors, 0, [&t, steps] { run_chain<T>(on, t.x.data(), t.y.data(), t.n, steps); });
  }
  void elementwise() {
    const tensors_type& t = t_;
    chain("relu", 2, {{.kind = step_kind::relu}});
    chain("gelu", 2, {{.kind = step_kind::gelu}});
    chain("gelu_tanh", 2, {{.kind = step_kind::gelu_tanh}});
    chain("add", 3, {{.kind = step_kind::add, .other = t.z.data()}});
    chain("gelu_backward", 3, {{.kind = step_kind::gelu_backward, .other = t.z.data()}});
    chain("gelu, dropout, add", 3,
          {{.kind = step_kind::gelu},
           {.kind = step_kind::dropout, .mask = {0.1, {9, 4}}},
           {.kind = step_kind::add, .other = t.z.data()}});
    chain("dropout", 2, {{.kind = step_kind::dropout, .mask = {0.1, {9, 4}}}});
    add("add_bias", 2, 0, [&t] { add_bias<T>(on, t.x.data(), t.vector.data(), t.y.data(), t.rows, width); });
    add("add_bias, relu", 2, 0,
        [&t] { add_bias<T>(on, t.x.data(), t.vector.data(), t.y.data(), t.rows, width, true); });
    add("transpose", 2, 0, [&t] { transpose<T>(on, t.x.data(), t.y.data(), 1, t.rows, width); });
    add("swap_middle", 2, 0, [&t] { swap_middle<T>(on, t.x.data(), t.y.data(), 1, t.rows, 16, width / 16); });
  }
  void rows() {
    const tensors_type& t = t_;
    const double half_causal = 1 + (width + 1) / (2.0 * width);  // of a row it reads up to the diagonal
    for (const auto& [name, kind, times] : {std::tuple{"softmax", softmax_kind::full, 2.0},
                                            std::tuple{"softmax, causal", softmax_kind::causal, half_causal},
                                            std::tuple{"log_softmax", softmax_kind::log, 2.0}}) {
      add(name, times, 0, [&t, k = kind] { softmax<T>(on, t.x.data(), t.y.data(), t.rows, width, k); });
      add(fmt::format("{}, backward", name), 2 * times - 1, 0,
          [&t, k = kind] { softmax_backward<T>(on, t.x.data(), t.z.data(), t.y.data(), t.rows, width, k); });
    }
    const double both = 8.0 * static_cast<double>(t.rows);  // mean and deviation
    add("layer_norm", 2, both, [&t] {
      layer_norm<T>(on, t.x.data(), t.vector.data(), t.d_vector.data(), t.y.data(), t.per_row.data(), t.inverse.data(),
                    t.rows, width, 1e-5);
    });
    add("dropout, add, layer_norm", 4, both, [&t] {
      layer_norm<T>(on, {t.x.data(), t.z.data(), true, {0.1, {9, 4}}}, t.sum.data(), t.vector.data(), t.d_vector.data(),
                    t.y.data(), t.per_row.data(), t.inverse.data(), t.rows, width, 1e-5);
    });
    add("layer_norm_backward", 3, both, [&t] {
      layer_norm_backward<T>(on, t.x.data(), t.z.data(), t.vector.data(), t.per_row.data(), t.inverse.data(),
                             t.y.data(), t.rows, width);
    });
    add("layer_norm_backward, add", 4, both, [&t] {
      layer_norm_backward<T>(on, t.x.data(), t.z.data(), t.vector.data(), t.per_row.data(), t.inverse.data(),
                             t.y.data(), t.rows, width, t.sum.data());
    });
    add("layer_norm_parameters_backward", 2, both, [&t] {
      layer_norm_parameters_backward<T>(on, t.x.data(), t.z.data(), t.per_row.data(), t.inverse.data(), t.vector.data(),
                                        t.d_vector.data(), t.rows, width, false, t.scratch.data());
    });
  }
  void losses() {
    const tensors_type& t = t_;
    const double labels = 4.0 * static_cast<double>(t.rows);
    add("cross_entropy", 1, 3 * labels, [&t] {
      cross_entropy<T>(on, t.x.data(), t.label.data(), t.per_row.data(), t.inverse.data(), t.number.data(),
                       t.one.data(), t.rows, width);
    });
    add("cross_entropy_backward", 2, 2 * labels, [&t] {
      cross_entropy_backward<T>(on, t.x.data(), t.label.data(), t.per_row.data(), t.one.data(), t.y.data(), t.rows,
                                width, 1);
    });
    add("nll_loss_backward", 1, labels,
        [&t] { nll_loss_backward<T>(on, t.label.data(), t.one.data(), t.y.data(), t.rows, width, 1); });
    add("mse_loss", 2, 0, [&t] { mse_loss<T>(on, t.x.data(), t.z.data(), t.n, t.number.data(), t.scratch.data()); });
    add("mse_loss_backward", 3, 0, [&t] { mse_loss_backward<T>(on, t.x.data(), t.z.data(), t.y.data(), t.n, 1); });
    add("count_correct", 1, labels,
        [&t] { count_correct<T>(on, t.x.data(), t.label.data(), t.tally.data(), t.rows, width); });
    const double in_table = 4.0 * static_cast<double>(t.n);
    add("embedding", 1, in_table + labels,
        [&t] { embedding<T>(on, t.table.data(), t.token.data(), t.y.data(), t.rows, width, t.entries); });
    add("embedding_backward", 1, 2 * in_table + labels, [&t] {
      embedding_backward<T>(on, t.x.data(), t.token.data(), t.table.data(), t.rows, width, t.entries, t.scratch.data());
    });
  }
  void graphs() {
    const tensors_type& t = t_;
    const double lists = 4.0 * static_cast<double>(t.nodes);
    add("edge_softmax", 2, lists,
        [&t] { edge_softmax<T>(on, t.x.data(), t.begin.data(), t.y.data(), t.nodes, heads); });
    add("edge_softmax_backward", 3, lists,
        [&t] { edge_softmax_backward<T>(on, t.x.data(), t.z.data(), t.begin.data(), t.y.data(), t.nodes, heads); });
    const double of_edges = 8.0 * static_cast<double>(t.edges);
    add("edge_scores", 1 + 2.0 / degree, of_edges, [&t] {
      edge_scores<T>(on, t.x.data(), t.z.data(), t.target.data(), t.source.data(), t.y.data(), t.edges, heads, 0.2F);
    });
    add("edge_scores_backward", 2 + 2.0 / degree, of_edges / 2 + lists, [&t] {
      edge_scores_backward<T>(on, t.y.data(), t.x.data(), t.z.data(), t.begin.data(), t.source.data(), nullptr,
                              t.out.data(), t.nodes, heads, 0.2F);
    });
    const index few_nodes = t.few_edges / degree;
    const double few = 4.0 * static_cast<double>(t.few_edges), share = 1.0 / head_width;
    add("weighted_sums", 1 + share + 1.0 / degree, few + 4.0 * static_cast<double>(few_nodes), [&t, few_nodes] {
      weighted_sums<T>(on, t.z.data(), t.x.data(), t.begin.data(), t.near.data(), nullptr, t.y.data(), few_nodes, heads,
                       head_width);
    });
    add("edge_products", 2 + share, 2 * few, [&t] {
      edge_products<T>(on, t.x.data(), t.z.data(), t.target.data(), t.near.data(), t.y.data(), t.few_edges, heads,
                       head_width);
    });
  }
  void sums() {
    const tensors_type& t = t_;
    add("column_sums", 1, 0,
        [&t] { column_sums<T>(on, t.x.data(), t.d_vector.data(), t.rows, width, false, t.scratch.data()); });
  }

  void pooling() {
    const tensors_type& t = t_;
    for (const bool last : {false, true}) {
      const bin_sizes bins{t.n / 64, 64, {8, 8}, {4, 4}, last};
      const std::string order = last ? ", channels last" : "";
      add("adaptive_pooling" + order, 1.25, 0, [&t, bins] { adaptive_pooling<T>(on, t.x.data(), t.y.data(), bins); });
      add("adaptive_pooling_backward" + order, 1.25, 0,
          [&t, bins] { adaptive_pooling_backward<T>(on, t.x.data(), t.y.data(), bins); });
    }
  }
  void fp8() {
    using native::math::e4m3;
    const tensors_type& t = t_;
    add("largest_magnitudes", 1, 0, [&t] { (void)largest_magnitudes<T>(on, t.x.data(), t.n, t.partial.data()); });
    const index partials = largest_magnitudes<T>(on, t.x.data(), t.n, t.partial.data());
    const auto bytes = static_cast<double>(t.n);
    auto* by_rows = reinterpret_cast<e4m3*>(t.codes.data());
    auto* by_columns = reinterpret_cast<e4m3*>(t.codes_across.data());
    add("quantize by rows", 1, bytes, [&t, partials, by_rows] {
      quantize<e4m3, T>(on, t.x.data(), t.rows, width, t.partial.data(), partials, t.one.data(), by_rows, nullptr);
    });
    add("quantize by rows and columns", 1, 2 * bytes, [&t, partials, by_rows, by_columns] {
      quantize<e4m3, T>(on, t.x.data(), t.rows, width, t.partial.data(), partials, t.one.data(), by_rows, by_columns);
    });
    add("take_columns", 1, 4 * bytes, [&t] {
      take_columns<T>(on, t.product.data(), width + 16, t.y.data(), t.rows, width, t.vector.data(), true, false);
    });
  }

  using tensors_type = tensors<T>;
  const tensors_type& t_;
  std::vector<job>& to_;
};

template <class From, class To>
void add_cast(const tensors<From>& from, const tensors<To>& to, std::vector<job>& jobs) {
  jobs.push_back({fmt::format("cast to {}", precision_name<To>), precision_name<From>,
                  static_cast<double>((sizeof(From) + sizeof(To)) * static_cast<std::size_t>(from.n)), [&from, &to] {
                    const cast_job<From, To> one{from.x.data(), to.y.data(), from.n};
                    cast<From, To>(on, {&one, 1});
                  }});
}

/// Gradients and optimizers, over n elements in 40 tensors. The copies are in Low.
template <class Low>
struct update {
  index n, each = n / 40 / 8 * 8;
  array<float> value = noise<float>(size(), 1), gradient = noise<float>(size(), 2, 1e-3F),
               first = noise<float>(size(), 3, 1e-3F), second{positive(size())};
  array<Low> copy{size()};
  array<double> norm{1};
  array<unsigned long long> bad{1};
  std::vector<update_job<Low>> steps;
  std::vector<gradient_job> gradients;
  std::unique_ptr<array<float>> scratch;  // as large as the gradients say

  explicit update(index elements) : n{elements} {
    for (index i = 0; i < 40; ++i) {
      const index at = i * each;
      steps.push_back(
          {value.data() + at, gradient.data() + at, first.data() + at, second.data() + at, copy.data() + at, each});
      gradients.push_back({gradient.data() + at, each});
    }
    scratch = std::make_unique<array<float>>(static_cast<std::size_t>(norm_scratch(gradients)));
    check(cudaMemsetAsync(bad.data(), 0, sizeof(unsigned long long), on), "clearing a count");
  }
  std::size_t size() const { return static_cast<std::size_t>(n); }
  static array<float> positive(std::size_t n) {
    array<float> buffer{n};
    const std::vector<float> ones(std::min<std::size_t>(n, std::size_t{1} << 20), 1e-6F);
    buffer.fill(ones);
    return buffer;
  }
  void add_to(std::vector<job>& jobs) const {
    const double all = 40.0 * static_cast<double>(each);
    const auto add = [&](const char* kernel, double bytes, std::function<void()> run) {
      jobs.push_back({kernel, precision_name<Low>, bytes * all, std::move(run)});
    };
    add("sgd_step with momentum, copy", 4 * 5 + 2,
        [this] { sgd_step<Low>(on, steps, {.learning_rate = 1e-6, .momentum = 0.9}, {.not_finite = bad.data()}); });
    add("adam_step, copy", 4 * 7 + 2, [this] {
      adam_step<Low>(on, steps, {.learning_rate = 1e-9, .decoupled = true}, 1, {.not_finite = bad.data()});
    });
    if constexpr (std::is_same_v<Low, bf16>) {
      jobs.push_back(
          {"gradient_norm", "FP32", 4 * all, [this] { gradient_norm(on, gradients, norm.data(), scratch->data()); }});
      jobs.push_back({"count_not_finite", "FP32", 4 * all, [this] { count_not_finite(on, gradients, bad.data()); }});
      jobs.push_back({"scale_gradients", "FP32", 8 * all, [this] { scale_gradients(on, gradients, 1); }});
    }
  }
};

/// Times a job and a copy of as many bytes in turns.
nlohmann::json measured(const job& j, index n, const array<char>& from, const array<char>& to, int rounds) {
  const stopwatch clock;
  const auto half = std::min(static_cast<std::size_t>(j.bytes / 2), from.size());
  const auto copy = [&] {
    check(cudaMemcpyAsync(to.data(), from.data(), half, cudaMemcpyDeviceToDevice, on), "copying within the device");
  };
  const int repeats = clock.repeats_for(j.run), copies = clock.repeats_for(copy);
  std::vector<double> seconds, of_copy;
  for (int round = 0; round < rounds; ++round) {
    seconds.push_back(clock.seconds(repeats, j.run));
    const double copied = clock.seconds(copies, copy);
    of_copy.push_back(j.bytes / seconds.back() / (2 * static_cast<double>(half) / copied));
  }
  const double typical = median(seconds), share = median(of_copy);
  if (rounds > 1) {
    fmt::print("{:<32} {} {:>12} elements {:>8.1f} MiB {:>9.1f} us {:>7.0f} GB/s, {:.0f}% of a copy\n", j.kernel,
               j.precision, n, j.bytes / 0x1p20, typical * 1e6, j.bytes / typical / 1e9, share * 100);
  }
  return {{"kernel", j.kernel},
          {"precision", j.precision},
          {"elements", n},
          {"bytes", j.bytes},
          {"seconds", typical},
          {"quartiles", quartiles(seconds)},
          {"gb_per_s", j.bytes / typical / 1e9},
          {"of_copy", share},
          {"of_copy_quartiles", quartiles(of_copy)}};
}

void measure_size(index n, int rounds, nlohmann::json& rows, failures& failed) {
  const tensors<float> single{n};
  const tensors<bf16> brain{n};
  const tensors<fp16> half{n};
  const update<bf16> with_bf16{n};
  const update<fp16> with_fp16{n};
  std::vector<job> jobs;
  jobs_of<float>{single, jobs};
  jobs_of<bf16>{brain, jobs};
  jobs_of<fp16>{half, jobs};
  add_cast(single, brain, jobs);
  add_cast(single, half, jobs);
  add_cast(brain, single, jobs);
  add_cast(half, single, jobs);
  add_cast(brain, half, jobs);
  add_cast(half, brain, jobs);
  with_bf16.add_to(jobs);
  with_fp16.add_to(jobs);
  const auto from = noise<float>(static_cast<std::size_t>(n) * 4, 1);
  const array<char> source{static_cast<std::size_t>(n) * 15}, target{static_cast<std::size_t>(n) * 15};
  check(cudaMemcpy(source.data(), from.data(), source.size(), cudaMemcpyDeviceToDevice), "filling memory");
  for (const job& j : jobs) {
    failed.hold(fmt::format("{} of {} elements in {}", j.kernel, n, j.precision),
                [&] { rows.push_back(measured(j, n, source, target, rounds)); });
  }
}

/// 2^18 elements are in a cache; the largest size is many times what one holds, as far as the memory goes: some 130
/// bytes for each element.
std::vector<int> sizes() {
  int largest = 28;
  while (largest > 22 && probe().memory_bytes >> largest < 256) --largest;
  return {18, 22, largest};
}

}  // namespace
}  // namespace comp::cuda::bench

int main(int argc, char** argv) {
  using namespace comp::cuda::bench;
  return run_main(argc, argv, "bench_cuda_kernels", [](bool small, const auto& keep) {
    nlohmann::json figures;
    figures["rows"] = nlohmann::json::array();
    failures failed;
    if (!small) warm_up();
    for (const int bits : small ? std::vector{13} : sizes()) {
      const comp::cuda::index n = comp::cuda::index{1} << bits;
      try {
        failed.hold(fmt::format("kernels over {} elements", n),
                    [&] { measure_size(n, small ? 1 : 11, figures["rows"], failed); });
      } catch (const comp::cuda::device_lost&) {
        keep(figures);
        throw;
      }
      keep(figures);
    }
    failed.tell();
  });
}
