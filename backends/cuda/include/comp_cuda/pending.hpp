// SPDX-License-Identifier: Apache-2.0
// Element-wise operators are pending: they are launched when their result is read. By then it is known which
// neighbours can share a launch, and which of the tensors between them nobody holds any more. The launch does not write
// those tensors, and it writes the others on its way. Each operator's result is rounded as if it had been stored, so
// that results do not depend on what was fused.
// An operator has no launch of its own if the work before it (epilogue.hpp) or behind it (layer_norm.hpp) can compute
// it in its own pass over the data. A change of precision or of order ends a chain.
// With settings::fuse off each operator runs at once.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "epilogue.hpp"

namespace comp::cuda {

namespace detail {

/// from + other, or dropout(from) + other: what layer_norm.hpp can compute together with the norm of the sum.
struct pending_sum {
  tensor from, other;
  std::optional<pending_step> dropout = {};
};

/// One pending operator. Its steps are one operator, so they are rounded once, at the end.
class pending_operator final : public pending_work {
 public:
  pending_operator(tensor from, std::vector<pending_step> steps)
      : from_{std::move(from)}, steps_{std::move(steps)}, all_steps_{steps_.size()} {
    if (const pending_operator* b = before()) all_steps_ += b->all_steps_;
  }
  /// Returns: how many steps a launch of it and of the pending operators before it would have.
  std::size_t all_steps() const { return all_steps_; }

  void run(memory& into) override {
    if (const work_with_epilogue* work = ended()) {
      work->write(into, steps_.data());
      return written_by_another(into, 1, 2 * bytes());
    }
    const std::vector<link> path = fused_with(into);
    with_storage(from_.precision(), [&]<class T>(std::type_identity<T>) { launch<T>(path); });
    count(into.life().fused, path);
    std::vector<std::unique_ptr<pending_work>>
        done;  // keeps the tensors between the operators alive until the loop has seen all of them
    for (const link& l : path) {
      if (l.written) done.push_back(l.to->release_pending());
    }
  }

  /// Returns: the pending operator that is to fill `m`; null if there is none.
  static pending_operator* of(const memory* m) { return m ? dynamic_cast<pending_operator*>(m->pending()) : nullptr; }

  /// Returns: the sum that this operator is, with the dropout before it if nobody else reads that. The reader of the
  /// sum can compute it in its own pass. Nothing for any other operator.
  std::optional<pending_sum> as_sum() const {
    if (!alone(step_kind::add) || ended()) return {};
    const pending_operator* b = before();
    if (!b) return pending_sum{from_, steps_[0].other};
    if (!b->alone(step_kind::dropout) || b->before() || from_.held().use_count() > 1) return {};
    return pending_sum{b->from_, steps_[0].other, b->steps_[0]};
  }
  /// Must be called when the reader has launched the work that writes as_sum() to `into`.
  void made_by_reader(memory& into) const {
    const bool drops = before() != nullptr;
    written_by_another(into, drops ? 2 : 1, (drops ? 3 : 1) * bytes());
  }

 private:
  /// One operator of a fused launch.
  struct link {
    memory* to;            // its result
    pending_operator* by;  // the operator
    bool written;          // False for a result that nobody else holds
  };
  /// Returns: the pending operator whose result this one reads, if both can share a launch; else null.
  pending_operator* before() const {
    pending_operator* b = of(from_.held().get());
    return b && !b->ended() ? b : nullptr;
  }
  bool alone(step_kind kind) const { return steps_.size() == 1 && steps_[0].kind == kind; }
  /// Returns: the work that can compute this operator as its epilogue, if nobody else reads its result; else null.
  const work_with_epilogue* ended() const {
    const std::shared_ptr<memory>& read = from_.held();
    if (steps_.size() > 1 || read.use_count() > 1) return nullptr;
    const work_with_epilogue* work = work_with_epilogue::of(read.get());
    return work && work->makes(steps_[0]) ? work : nullptr;
  }
  /// Counts `operators` that the work before or behind has computed, and `saved` bytes of traffic.
  static void written_by_another(memory& into, std::int64_t operators, std::int64_t saved) {
    into.life().fused.operators += operators;
    into.life().fused.bytes_saved += saved;
    const auto done = into.release_pending();
  }
  std::int64_t bytes() const { return from_.size() * bytes_of(storage_of(from_.precision())); }

  /// Returns: the operators of one launch, this one first and the oldest last: as many as a launch has steps for.
  std::vector<link> fused_with(memory& into) {
    std::vector<link> path{{&into, this, true}};
    std::size_t steps = steps_.size();
    for (pending_operator* first = this; pending_operator* b = first->before(); first = b) {
      const std::shared_ptr<memory>& between = first->from_.held();
      const bool held = between.use_count() > 1;  // somebody beside the operator that reads it
      steps += b->steps_.size() + (held ? 1 : 0);
      if (steps > static_cast<std::size_t>(most_steps)) break;
      path.push_back({between.get(), b, held});
    }
    return path;
  }
  /// Launches the operators of `path`, the oldest first. Each one but the last rounds its result to T, and a result
  /// that somebody holds is written by a step of its own.
  template <class T>
  static void launch(const std::vector<link>& path) {
    const tensor& from = path.back().by->from_;
    const T* start = from.materialize_as<T>();
    std::vector<chain_step<T>> steps;
    for (std::size_t i = path.size(); i-- > 0;) {
      for (const pending_step& s : path[i].by->steps_)
        steps.push_back({.kind = s.kind, .other = s.other.materialize_as<T>(), .mask = s.mask, .draws = s.draws});
      steps.back().rounds = i > 0;
      if (i > 0 && path[i].written)
        steps.push_back({.kind = step_kind::keep, .kept = static_cast<T*>(path[i].to->take_place())});
    }
    lifeline& life = path[0].to->life();
    check(cudaSetDevice(life.card.device), "choosing a GPU");
    run_chain<T>(life.stream.get(), start, static_cast<T*>(path[0].to->take_place()), from.size(), steps);
  }
  void count(fusion_counts& all, const std::vector<link>& path) const {
    all.operators += std::ssize(path);
    ++all.launches;
    for (const link& l : path) {
      if (&l != &path[0]) all.bytes_saved += l.written ? bytes() : 2 * bytes();  // one read, or a write and a read
    }
  }

  tensor from_;
  std::vector<pending_step> steps_;
  std::size_t all_steps_;
};

}  // namespace detail

/// Applies the steps to x one after another and rounds the result once.
/// Requires: at most most_steps steps. Returns: a pending tensor like x.
inline tensor apply(context& c, const tensor& x, std::vector<pending_step> steps) {
  for (const pending_step& s : steps) (void)s.other.materialize();  // a chain waits for one tensor, not for a tree
  const auto* before = detail::pending_operator::of(x.held().get());
  if (before && before->all_steps() + steps.size() > static_cast<std::size_t>(most_steps)) (void)x.materialize();
  const std::int64_t bytes = x.size() * bytes_of(storage_of(x.precision()));
  auto work = std::make_unique<detail::pending_operator>(x, std::move(steps));
  const tensor y{x.shape(), x.precision(), x.order(), c.promise(bytes, std::move(work))};
  if (!c.chosen().fuse) (void)y.materialize();
  return y;
}

}  // namespace comp::cuda
