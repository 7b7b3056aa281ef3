// SPDX-License-Identifier: Apache-2.0
// What the dispatcher computes in: each operator that a piece of code calls, with the dtypes that its kernel reads and
// gives, whatever casts autocast or comp puts in between. Through LibTorch's own observer (RecordFunction), so that
// both are seen by the same means.
#pragma once

#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace observe {

using dtypes = std::vector<at::ScalarType>;  // of the floating tensors, in order

struct call {
  std::string name;
  dtypes read = {}, given = {};
  std::vector<call> inner = {};
};

namespace detail {

inline void add_dtypes(dtypes& to, const c10::IValue& value) {
  const auto add = [&](const at::Tensor& t) {
    if (t.defined() && at::isFloatingType(t.scalar_type())) to.push_back(t.scalar_type());
  };
  if (value.isTensor()) add(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) add(t);
  }
}

inline thread_local std::vector<call>* open = nullptr;  // the calls that have not ended; the first is the root

inline std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& f) {
  call made{.name = f.name()};
  for (const c10::IValue& value : f.inputs()) add_dtypes(made.read, value);
  open->push_back(std::move(made));
  return nullptr;
}

inline void end(const at::RecordFunction& f, at::ObserverContext*) {
  call done = std::move(open->back());
  open->pop_back();
  for (const c10::IValue& value : f.outputs()) add_dtypes(done.given, value);
  open->back().inner.push_back(std::move(done));
}

/// The call whose kernel ran: casting layers call the same operator again, with other arguments.
inline call innermost(call of) {
  for (;;) {
    const auto again = std::find_if(of.inner.begin(), of.inner.end(), [&](const call& c) { return c.name == of.name; });
    if (again == of.inner.end()) return of;
    call next = std::move(*again);
    of = std::move(next);
  }
}

}  // namespace detail

/// The operators that `code` calls on this thread, in order.
inline std::vector<call> calls_of(const std::function<void()>& code) {
  std::vector<call> open{call{.name = "root"}};
  detail::open = &open;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&detail::begin, &detail::end)
                                                     .needsInputs(true)
                                                     .needsOutputs(true)
                                                     .scopes({at::RecordScope::FUNCTION}));
  code();
  at::removeCallback(handle);
  std::vector<call> seen;
  for (call& outer : open.front().inner) seen.push_back(detail::innermost(std::move(outer)));
  return seen;
}

}  // namespace observe
