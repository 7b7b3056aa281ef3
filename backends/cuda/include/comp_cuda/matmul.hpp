// SPDX-License-Identifier: Apache-2.0
// Products of row-major matrices by cuBLASLt, summed in FP32 and rounded once. FP32 operands are not rounded to TF32
// unless the caller asks for it.
// The algorithm of a shape is chosen once. The candidates are those that cuBLASLt's heuristics propose and whose sums
// have a fixed order, so that results do not change from run to run. The fastest is found by measuring the candidates
// on the operands at hand, with their results in other memory.
// cuBLASLt stores matrices by columns. A row-major matrix is its own transpose there, so that C = A B becomes C' = B'
// A'.
// The product also adds the bias and applies ReLU. It does not apply GELU: cuBLASLt takes it of the sum before that is
// rounded, so that a plan's loss would depend on what else reads the product.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "blas.hpp"

namespace comp::cuda {

/// One or more dense row-major matrices of (rows, columns), one after another; the product says how many.
struct matrix {
  const void* at;
  cudaDataType_t type;
  index rows, columns;
  bool transposed = false;       // the product reads the transpose
  const float* scale = nullptr;  // FP8: the factor of all elements, in device memory; null: none

  index out_rows() const { return transposed ? columns : rows; }
  index out_columns() const { return transposed ? rows : columns; }
  /// Returns: the matrices without the first `first` of the batch.
  matrix after(index first) const {
    matrix rest = *this;
    rest.at = static_cast<const std::byte*>(at) + first * rows * columns * bytes_of(type);
    return rest;
  }
};
/// to (m,n) = relu(alpha a (m,k) b (k,n) + beta to + bias (n)), for each of the batch.
struct matrix_product {
  matrix a, b;
  void* to;
  cudaDataType_t type;  // of `to`
  bool tf32 = false;
  bool fast = false;  // FP8: sums may have fewer bits (CUBLASLT_MATMUL_DESC_FAST_ACCUM), which is faster
  index batch = 1;
  float alpha = 1, beta = 0;
  const void* bias = nullptr;  // stored as `to` is; BF16 for FP8 operands
  bool relu = false;

  index m() const { return a.out_rows(); }
  index n() const { return b.out_columns(); }
  index k() const { return a.out_columns(); }
  /// Returns: the product of `count` matrices of the batch, from the one numbered `first`.
  matrix_product part(index first, index count) const {
    matrix_product some = *this;
    some.a = a.after(first), some.b = b.after(first), some.batch = count;
    some.to = static_cast<std::byte*>(to) + first * m() * n() * bytes_of(type);
    return some;
  }
};

/// How algorithms are chosen.
struct matmul_settings {
  bool measure;          // false: take the heuristics' first proposal
  int candidates = 8;    // how many proposals are measured
  int repeats = 3;       // products in each measurement
  double margin = 0.02;  // another proposal must be faster than the first by this part of its time, or noise decides
};

/// The part of a context that multiplies. It keeps the algorithm that it has found for each shape.
class matrix_products {
 public:
  explicit matrix_products(context& c) : settings{.measure = c.measures_algorithms()}, library_{c.part<blas>()} {}

  matmul_settings settings;
  std::size_t shapes() const { return known_.size(); }
  std::size_t measured() const { return measured_; }

  /// Throws: unsupported if cuBLASLt has no algorithm; out_of_memory; library_error.
  void multiply(context& c, const matrix_product& job) {
    if (job.batch <= most_at_once) return multiply_at_once(c, job);
    for (index first = 0; first < job.batch; first += most_at_once) {
      multiply_at_once(c, job.part(first, std::min(most_at_once, job.batch - first)));
    }
  }

 private:
  static constexpr index most_at_once = 65535;  // matrices in a call: not every algorithm of cuBLASLt takes more
  /// A product as cuBLASLt is told of it, with the algorithm that computes it.
  struct plan {
    product_description description;
    matrix_layout a, b, to;  // in cuBLASLt's order: a is the job's b
    cublasLtMatmulHeuristicResult_t algorithm{};
  };
  using key = std::array<index, 17>;

  void multiply_at_once(context& c, const matrix_product& job) {
    const plan& p = planned(c, job);
    const std::size_t bytes = p.algorithm.workspaceSize;
    give(c, p, p.algorithm, job, job.to, bytes ? c.scratch(static_cast<std::int64_t>(bytes)) : nullptr);
  }

  /// Returns: the largest power of two that divides the address, at most 256 [bytes]. Algorithms need different
  /// alignments, so it is part of the shape by which algorithms are kept.
  static index alignment(const void* p) {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    return at == 0 || at % 256 == 0 ? 256 : static_cast<index>(at & -at);
  }
  static key keyed(const matrix_product& j) {
    return {j.m(),
            j.n(),
            j.k(),
            j.batch,
            j.a.type,
            j.b.type,
            j.type,
            j.a.transposed,
            j.b.transposed,
            j.tf32,
            j.fast,
            j.beta != 0,
            j.relu,
            alignment(j.a.at),
            alignment(j.b.at),
            alignment(j.to),
            j.bias ? alignment(j.bias) : 0};
  }
  static matrix_layout laid_out(const matrix& of, index batch) {
    return {of.type, of.columns, of.rows, of.columns, batch, of.rows * of.columns};
  }
  static plan described(const matrix_product& j) {
    plan p{product_description{j.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F}, laid_out(j.b, j.batch),
           laid_out(j.a, j.batch), matrix_layout{j.type, j.n(), j.m(), j.n(), j.batch, j.m() * j.n()}};
    p.description.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{j.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N});
    p.description.set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{j.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N});
    const int epilogue = j.bias ? (j.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                                : (j.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT);
    p.description.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue));
    const bool fp8 = j.a.type == CUDA_R_8F_E4M3 || j.a.type == CUDA_R_8F_E5M2;
    if (j.fast) p.description.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    if (j.bias) {
      p.description.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{fp8 ? CUDA_R_16BF : j.type});
    }
    return p;
  }
  /// Sets the addresses that are part of cuBLASLt's description and change from call to call.
  static void point(plan& p, const matrix_product& j) {
    if (j.bias) p.description.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, j.bias);
    if (j.b.scale) p.description.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(j.b.scale));
    if (j.a.scale) p.description.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(j.a.scale));
  }

  /// Returns: the kept plan of this shape, or a new one. In a capture nothing is measured, since nothing may wait.
  const plan& planned(context& c, const matrix_product& j) {
    const key of = keyed(j);
    if (const auto found = known_.find(of); found != known_.end()) return point(found->second, j), found->second;
    plan p = described(j);
    point(p, j);
    const auto proposed = proposals(c, p, j);
    p.algorithm = proposed.front();
    if (settings.measure && proposed.size() > 1 && !c.capturing()) p.algorithm = fastest(c, p, j, proposed);
    return known_.emplace(of, std::move(p)).first->second;
  }

  /// Returns: the algorithms that cuBLASLt proposes, its best first, without those whose sums have no fixed order or
  /// are rounded in between. Throws: unsupported if there is none.
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(context& c, const plan& p, const matrix_product& j) const {
    search_preference wish;
    wish.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(c.workspace_limit()));
    wish.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    wish.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(alignment(j.b.at)));
    wish.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(alignment(j.a.at)));
    wish.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(alignment(j.to)));
    wish.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(alignment(j.to)));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(std::max(settings.candidates, 1)));
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(library_.get(), p.description.get(), p.a.get(), p.b.get(), p.to.get(),
                                       p.to.get(), wish.get(), static_cast<int>(found.size()), found.data(), &count);
    const library_status answer = status_of(status);
    if (answer.verdict != verdict::unsupported) check(answer, "looking for an algorithm for " + text_of(j));
    found.resize(static_cast<std::size_t>(count));
    std::erase_if(found, [](const auto& f) { return f.state != CUBLAS_STATUS_SUCCESS; });
    require<unsupported>(!found.empty(),
                         "{} on {} (cuBLASLt has no algorithm for these types, sizes and a workspace of {} bytes): use "
                         "another precision or size",
                         text_of(j), c.card().name, c.workspace_limit());
    return found;
  }

  /// Launches the product by one algorithm. workspace: the memory that `by` asks for.
  void give(context& c, const plan& p, const cublasLtMatmulHeuristicResult_t& by, const matrix_product& j, void* to,
            void* workspace) const {
    const cublasStatus_t status =
        cublasLtMatmul(library_.get(), p.description.get(), &j.alpha, j.b.at, p.a.get(), j.a.at, p.b.get(), &j.beta,
                       j.to, p.to.get(), to, p.to.get(), &by.algo, workspace, by.workspaceSize, c.stream().get());
    if (status != CUBLAS_STATUS_SUCCESS) check(status, text_of(j));  // the if: the text costs more than the call
  }

  /// Memory of a measurement: for results that nobody reads, and for workspaces.
  struct elsewhere {
    std::shared_ptr<memory> results, workspace;
  };
  /// Returns: the fastest of the proposed algorithms; the first one if there is no memory to measure. Waits for the
  /// device. Results go to other memory, so that j.to, which a product may read, is unchanged. That memory does not
  /// count in the peak, which is the plan's.
  cublasLtMatmulHeuristicResult_t fastest(context& c, const plan& p, const matrix_product& j,
                                          const std::vector<cublasLtMatmulHeuristicResult_t>& proposed) {
    cublasLtMatmulHeuristicResult_t best = proposed.front();
    const std::int64_t peak = c.pool().peak_bytes();
    try {
      std::size_t most = 0;
      for (const auto& one : proposed) most = std::max(most, one.workspaceSize);
      const elsewhere use{c.allocate(j.m() * j.n() * j.batch * bytes_of(j.type)),
                          c.allocate(static_cast<std::int64_t>(most))};
      double least = seconds(c, p, best, j, use) * (1 - settings.margin);
      for (std::size_t i = 1; i < proposed.size(); ++i) {
        const double time = seconds(c, p, proposed[i], j, use);
        if (time < least) least = time, best = proposed[i];
      }
      ++measured_;
    } catch (const out_of_memory&) {
    }
    c.pool().forget_peak_since(peak);
    return best;
  }
  /// Returns: the time of one product. Unit: [s]. It is infinite for an algorithm that fails although it was proposed.
  double seconds(context& c, const plan& p, const cublasLtMatmulHeuristicResult_t& by, const matrix_product& j,
                 const elsewhere& use) const {
    const auto run = [&] { give(c, p, by, j, use.results->materialize(), use.workspace->materialize()); };
    try {
      run();
    } catch (const unsupported&) {
      return std::numeric_limits<double>::infinity();
    } catch (const library_error&) {
      return std::numeric_limits<double>::infinity();
    }
    return time_of(c.stream(), settings.repeats, run);
  }

  static std::string text_of(const matrix_product& j) {
    return fmt::format("a product ({},{}) by ({},{}) of {} and {} into {}", j.m(), j.k(), j.k(), j.n(),
                       j.tf32 ? "TF32" : name_of(j.a.type), j.tf32 ? "TF32" : name_of(j.b.type), name_of(j.type));
  }

  blas& library_;
  std::map<key, plan> known_;
  std::size_t measured_ = 0;
};

inline void multiply(context& c, const matrix_product& job) { c.part<matrix_products>().multiply(c, job); }

}  // namespace comp::cuda
