// SPDX-License-Identifier: Apache-2.0
// The three passes of a convolution, each by an algorithm that is chosen once for a shape and a precision: the fastest
// that is deterministic, stays within the context's workspace limit and, in FP32, uses no tensor cores. Measured by
// cuDNN on the real operands, which waits for the device and takes memory for a moment, that no plan's peak counts;
// while a graph is captured, or where dnn::measures is false, taken from cuDNN's heuristics (a later call outside may
// still measure). Measurements may differ from run to run, heuristics do not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "convolutions.hpp"

namespace comp::cuda {

/// cuDNN's functions for a pass, and in which order they take what: two operands, then what is written.
template <conv_pass>
struct pass_functions;
template <>
struct pass_functions<conv_pass::forward> {
  using result = cudnnConvolutionFwdAlgoPerf_t;
  static constexpr int algorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;
  static constexpr auto most = cudnnGetConvolutionForwardAlgorithmMaxCount;
  static constexpr auto measure = cudnnFindConvolutionForwardAlgorithmEx;
  static constexpr auto guess = cudnnGetConvolutionForwardAlgorithm_v7;
  static constexpr auto workspace = cudnnGetConvolutionForwardWorkspaceSize;
  static constexpr auto run = cudnnConvolutionForward;
  static auto operands(const convolution& c) { return std::tuple{c.x.get(), c.w.get(), c.y.get()}; }
};
template <>
struct pass_functions<conv_pass::data> {
  using result = cudnnConvolutionBwdDataAlgoPerf_t;
  static constexpr int algorithms = CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT;
  static constexpr auto most = cudnnGetConvolutionBackwardDataAlgorithmMaxCount;
  static constexpr auto measure = cudnnFindConvolutionBackwardDataAlgorithmEx;
  static constexpr auto guess = cudnnGetConvolutionBackwardDataAlgorithm_v7;
  static constexpr auto workspace = cudnnGetConvolutionBackwardDataWorkspaceSize;
  static constexpr auto run = cudnnConvolutionBackwardData;
  static auto operands(const convolution& c) { return std::tuple{c.w.get(), c.y.get(), c.x.get()}; }
};
template <>
struct pass_functions<conv_pass::weights> {
  using result = cudnnConvolutionBwdFilterAlgoPerf_t;
  static constexpr int algorithms = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT;
  static constexpr auto most = cudnnGetConvolutionBackwardFilterAlgorithmMaxCount;
  static constexpr auto measure = cudnnFindConvolutionBackwardFilterAlgorithmEx;
  static constexpr auto guess = cudnnGetConvolutionBackwardFilterAlgorithm_v7;
  static constexpr auto workspace = cudnnGetConvolutionBackwardFilterWorkspaceSize;
  static constexpr auto run = cudnnConvolutionBackwardFilter;
  static auto operands(const convolution& c) { return std::tuple{c.x.get(), c.y.get(), c.w.get()}; }
};

/// The memory of a pass: to = a with b.
struct pass_memory {
  const void *a, *b;
  void* to;
  std::int64_t bytes;  // of `to`
  bool adds = false;   // `to` has a value that counts
};

/// One pass of one convolution.
template <conv_pass Pass>
class pass_runner {
 public:
  pass_runner(context& c, convolution& of) : c_{c}, of_{of}, library_{c.part<dnn>()} {}

  /// Returns: cuDNN's status; CUDNN_STATUS_NOT_SUPPORTED where no algorithm is good enough.
  /// Throws: out_of_memory where there was none to look for one in.
  cudnnStatus_t operator()(const pass_memory& m) {
    const bool may_measure = library_.measures && !c_.capturing();
    auto& choice = of_.choice(Pass);
    if (choice && (choice->measured || !may_measure)) return run(*choice, m);
    for (const conv_choice& one : good_enough(listed(m, may_measure), may_measure)) {
      const cudnnStatus_t s = run(one, m);
      if (is_unsupported(s)) continue;  // heuristics are estimates, of this too
      choice = one;
      return s;
    }
    if (short_of_memory_) std::rethrow_exception(short_of_memory_);  // with more there may be one
    return CUDNN_STATUS_NOT_SUPPORTED;
  }

 private:
  using functions = pass_functions<Pass>;
  using result = typename functions::result;
  static auto algorithm(int number) { return static_cast<decltype(result::algo)>(number); }

  cudnnStatus_t run(const conv_choice& by, const pass_memory& m) const {
    of_.use(by.math);
    const auto [a, b, to] = functions::operands(of_);
    return functions::run(library_.handle(), &dnn_one, a, m.a, b, m.b, of_.how.get(), algorithm(by.algorithm),
                          c_.scratch(by.workspace), static_cast<std::size_t>(by.workspace),
                          m.adds ? &dnn_one : &dnn_zero, to, m.to);
  }
  void use_wanted() const { of_.use(of_.exact() ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH); }
  /// What an algorithm wants beside its tensors; nothing where it does not run, or its number stands for none: cuDNN
  /// has numbers that it calls not implemented, and does not say with which of these two statuses it refuses them.
  std::optional<std::int64_t> workspace(int number) const {
    const auto [a, b, to] = functions::operands(of_);
    std::size_t bytes = 0;
    const auto s = functions::workspace(library_.handle(), a, b, of_.how.get(), to, algorithm(number), &bytes);
    if (is_unsupported(s) || s == CUDNN_STATUS_BAD_PARAM) return std::nullopt;
    check(s, "asking what an algorithm needs");
    if (std::cmp_greater(bytes, c_.workspace_limit())) return std::nullopt;  // sizes of more than 63 bits were seen
    return static_cast<std::int64_t>(bytes);
  }
  std::vector<result> room() const {
    int most = 0;
    check(functions::most(library_.handle(), &most), "asking how many algorithms there are");
    return std::vector<result>(static_cast<std::size_t>(most));
  }
  static std::vector<result> answered(cudnnStatus_t s, std::vector<result> all, int count) {
    if (!is_unsupported(s)) check(s, "looking for a convolution's algorithm");
    all.resize(is_unsupported(s) ? 0 : static_cast<std::size_t>(count));
    return all;
  }

  std::vector<result> guessed() const {
    use_wanted();
    auto all = room();
    int count = 0;
    const auto [a, b, to] = functions::operands(of_);
    const auto s =
        functions::guess(library_.handle(), a, b, of_.how.get(), to, static_cast<int>(all.size()), &count, all.data());
    return answered(s, std::move(all), count);
  }
  /// `bytes` to measure in, or, by quarters, as much of it as there is memory for: `bytes` is that then.
  std::shared_ptr<memory> room_for(std::int64_t& bytes) {
    for (;; bytes = bytes > 1024 ? bytes / 4 : 0) {
      try {
        return c_.allocate(bytes);
      } catch (const out_of_memory&) {
        if (bytes == 0) throw;
        short_of_memory_ = std::current_exception();
      }
    }
  }
  std::vector<result> measured(const pass_memory& m) {
    use_wanted();
    std::int64_t largest = 0;
    for (int i = 0; i < functions::algorithms; ++i) largest = std::max(largest, workspace(i).value_or(0));
    const auto scratch = room_for(largest);
    const auto spare = m.adds ? c_.allocate(m.bytes) : nullptr;  // measuring overwrites the result
    auto all = room();
    int count = 0;
    const auto [a, b, to] = functions::operands(of_);
    c_.stream().synchronize();  // it may measure on another stream: operands are to be there, and no memory in use
    const auto s = functions::measure(library_.handle(), a, m.a, b, m.b, of_.how.get(), to,
                                      spare ? spare->materialize() : m.to, static_cast<int>(all.size()), &count,
                                      all.data(), scratch->materialize(), static_cast<std::size_t>(largest));
    return answered(s, std::move(all), count);
  }

  std::vector<result> listed(const pass_memory& m, bool measure) {
    if (!measure) return guessed();
    const std::int64_t peak = c_.pool().peak_bytes();
    auto all = measured(m);
    c_.pool().forget_peak_since(peak);
    return all;
  }

  /// The best first. FP32 takes what ran without tensor cores, then what can be run without.
  std::vector<conv_choice> good_enough(std::span<const result> sorted, bool measured) const {
    std::vector<conv_choice> all;
    for (const bool as_it_ran : {true, false}) {
      for (const result& r : sorted) {
        if (r.status != CUDNN_STATUS_SUCCESS || r.determinism != CUDNN_DETERMINISTIC) continue;
        if ((!of_.exact() || r.mathType == CUDNN_FMA_MATH) != as_it_ran) continue;
        const cudnnMathType_t math = of_.exact() ? CUDNN_FMA_MATH : r.mathType;
        of_.use(math);
        if (const auto bytes = workspace(static_cast<int>(r.algo)))
          all.push_back({static_cast<int>(r.algo), *bytes, math, measured});
      }
    }
    return all;
  }

  context& c_;
  convolution& of_;
  dnn& library_;
  std::exception_ptr short_of_memory_;
};

}  // namespace comp::cuda
