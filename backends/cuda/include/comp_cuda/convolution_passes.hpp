// SPDX-License-Identifier: Apache-2.0
// The three passes of a convolution: forward, gradient of the data, gradient of the weights. The algorithm of a pass is
// chosen once for a shape and a precision. It is the fastest one that is deterministic, stays within the context's
// workspace limit and, in FP32, uses no tensor cores.
// cuDNN measures the algorithms on the real operands. That waits for the device and takes memory for a moment, which
// the plan's peak does not count. In a capture, and if dnn::measures is false, cuDNN's heuristics choose; a later call
// outside of a capture may still measure. Measurements may differ from run to run, heuristics do not.
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

/// cuDNN's functions for a pass. operands(): the descriptors in the order of the calls, two operands and the result.
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

/// The memory of a pass, which computes `to` from a and b.
struct pass_memory {
  const void *a, *b;
  void* to;
  std::int64_t bytes;  // the size of `to`
  bool adds = false;   // the result is added to `to`
};

/// One pass of one convolution.
template <conv_pass Pass>
class pass_runner {
 public:
  pass_runner(context& c, convolution& of) : c_{c}, of_{of}, library_{c.part<dnn>()} {}

  /// Returns: cuDNN's status; CUDNN_STATUS_NOT_SUPPORTED if no algorithm meets the conditions.
  /// Throws: out_of_memory if there was too little memory to find out by measuring.
  cudnnStatus_t operator()(const pass_memory& m) {
    const bool may_measure = library_.measures && !c_.capturing();
    auto& choice = of_.choice(Pass);
    if (choice && (choice->measured || !may_measure)) return run(*choice, m);
    for (const conv_choice& one : good_enough(listed(m, may_measure), may_measure)) {
      const cudnnStatus_t s = run(one, m);
      if (is_refusal(s)) continue;  // heuristics may propose an algorithm that does not run
      choice = one;
      return s;
    }
    if (short_of_memory_) std::rethrow_exception(short_of_memory_);  // with more memory there may be an algorithm
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
  /// Tells cuDNN the wanted arithmetic: FP32 without tensor cores, everything else with them.
  void use_wanted() const { of_.use(of_.exact() ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH); }
  /// Returns: the workspace that an algorithm needs. Unit: [bytes]. Nothing if the algorithm does not run here or needs
  /// more than the limit. cuDNN has numbers for algorithms that it does not implement.
  std::optional<std::int64_t> workspace(int number) const {
    const auto [a, b, to] = functions::operands(of_);
    std::size_t bytes = 0;
    const auto s = functions::workspace(library_.handle(), a, b, of_.how.get(), to, algorithm(number), &bytes);
    if (is_refusal(s)) return std::nullopt;
    check(s, "asking what an algorithm needs");
    if (std::cmp_greater(bytes, c_.workspace_limit())) return std::nullopt;  // cuDNN was seen to return over 2^63
    return static_cast<std::int64_t>(bytes);
  }
  std::vector<result> room() const {
    int most = 0;
    check(functions::most(library_.handle(), &most), "asking how many algorithms there are");
    return std::vector<result>(static_cast<std::size_t>(most));
  }
  static std::vector<result> answered(cudnnStatus_t s, std::vector<result> all, int count) {
    if (!is_refusal(s)) check(s, "looking for a convolution's algorithm");
    all.resize(is_refusal(s) ? 0 : static_cast<std::size_t>(count));
    return all;
  }

  /// Returns: the algorithms in the order of cuDNN's heuristics.
  std::vector<result> guessed() const {
    use_wanted();
    auto all = room();
    int count = 0;
    const auto [a, b, to] = functions::operands(of_);
    const auto s =
        functions::guess(library_.handle(), a, b, of_.how.get(), to, static_cast<int>(all.size()), &count, all.data());
    return answered(s, std::move(all), count);
  }
  /// Returns: memory to measure in. It has `bytes` if that fits; else `bytes` is quartered until it does.
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
  /// Returns: the algorithms as cuDNN has measured them, the fastest first.
  std::vector<result> measured(const pass_memory& m) {
    use_wanted();
    std::int64_t largest = 0;
    for (int i = 0; i < functions::algorithms; ++i) largest = std::max(largest, workspace(i).value_or(0));
    const auto scratch = room_for(largest);
    const auto spare = m.adds ? c_.allocate(m.bytes) : nullptr;  // since measuring would overwrite what is added to
    auto all = room();
    int count = 0;
    const auto [a, b, to] = functions::operands(of_);
    c_.stream().synchronize();  // cuDNN may measure on another stream, which would not wait for the operands
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

  /// Returns: the algorithms that meet the conditions, the fastest first. For FP32 those that ran without tensor cores
  /// come first, then those that ran with them and can run without.
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
