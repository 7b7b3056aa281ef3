// SPDX-License-Identifier: Apache-2.0
// Regions as Python's `with` enters and leaves them, and a Python model's parameters as LibTorch's.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <comp_libtorch/comp_libtorch.hpp>
#include <comp_libtorch/hook/capture.hpp>
#include <comp_libtorch/hook/session.hpp>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace comp::python {

namespace py = pybind11;

/// A Python model's parameters under their names, in a tree of modules as deep as the names. To record a plan nothing
/// else of the model is needed.
class parameter_tree : public torch::nn::Module {
 public:
  using named = std::vector<std::pair<std::string, at::Tensor>>;
  explicit parameter_tree(const named& parameters) {
    for (const auto& [name, parameter] : parameters) add(name, parameter);
  }

 private:
  void add(std::string_view name, const at::Tensor& parameter) {
    const auto dot = name.find('.');
    const std::string first{name.substr(0, dot)};
    if (dot == std::string_view::npos) {
      parameters_.insert(first, parameter);  // register_parameter() would refuse what cannot have a gradient now
      return;
    }
    const auto children = named_children();
    const auto* known = children.find(first);
    const auto child = known != nullptr ? std::static_pointer_cast<parameter_tree>(*known)
                                        : register_module(first, std::make_shared<parameter_tree>(named{}));
    child->add(name.substr(dot + 1), parameter);
  }
};

/// The place at which a part of a forward begins that the backward runs again.
struct place {
  libtorch::detail::resumption resume;
};

/// The open regions of one plan, those of each thread with the innermost last. Under no_grad a region is one of
/// evaluation: operators go by names.
class regions {
 public:
  using maker = std::function<std::unique_ptr<libtorch::region>(const std::string& segment, bool evaluates)>;
  using owner = std::function<libtorch::program&()>;
  explicit regions(maker make, owner program = {}) : make_{std::move(make)}, program_{std::move(program)} {}
  regions(const regions&) = delete;
  regions& operator=(const regions&) = delete;

  void enter(const std::string& segment) {
    ++entered_;
    add(make_(segment, !c10::GradMode::is_enabled()));
  }
  void exit(bool by_exception) {
    const auto at = innermost();
    require<error>(at != open_.end(),
                   "a region was left that is not open (enter and exit are for `with`): write `with`");
    failed_ = failed_ || by_exception;
    if (by_exception) at->second->abandon();
    std::unique_ptr<libtorch::region> left = std::move(at->second);
    open_.erase(at);
    left.reset();
    if (!by_exception && at_end_ && !open() && c10::GradMode::is_enabled()) at_end_();
  }
  /// Calls `work` after each region that a forward with gradients was in. It may throw.
  void at_end(std::function<void()> work) { at_end_ = std::move(work); }
  /// Returns: how the part of the forward that begins now runs again in the backward; nothing if that needs no region.
  std::optional<place> here() {
    const auto at = innermost();
    place found{at == open_.end() ? libtorch::detail::resumption{} : at->second->from_here()};
    return found.resume ? std::optional{std::move(found)} : std::nullopt;
  }
  /// Returns: how torch.compile may compile what runs in the innermost region of this thread: "as it is", as if comp
  /// were not there; "captured", by the members below; "not", operator by operator.
  std::string compiles() {
    const auto at = innermost();
    if (at == open_.end()) return "not";
    return !at->second->listens() ? "as it is" : at->second->as_capturable() != nullptr ? "captured" : "not";
  }
  /// Calls `work()`, which compiles: its operators do not come to the region.
  static py::object unheard(const py::function& work) {
    const libtorch::detail::unheard_guard none;
    return work();
  }
  /// Returns: the names of the dispatch keys by which operators come to comp; none before the first region.
  static std::vector<std::string> dispatch_keys() {
    std::vector<std::string> names;
    for (const c10::DispatchKey key : libtorch::detail::claimed_keys) names.emplace_back(c10::toString(key));
    return names;
  }
  /// Returns: the number of the operator that comes next.
  std::size_t next_operator() { return captured().place(); }
  void go_to(std::size_t number) { captured().go_to(number); }
  /// Captures operators from `first` on. `traced`: tensors without data that stand for `parameters`.
  void begin_capture(std::size_t first, const std::vector<at::Tensor>& traced,
                     const std::vector<at::Tensor>& parameters) {
    libtorch::detail::capturable& to = captured();
    to.go_to(first);
    to.begin_capture(traced, parameters);
    heard_.emplace(to.as_listener());
  }
  libtorch::detail::captured_part end_capture() {
    heard_.reset();
    return captured().end_capture();
  }
  /// Runs `compiled(*arguments)` in place of the operators that were captured, or of others that the plan treats alike.
  /// `inputs`: the numbers of the arguments that are parameters. Returns: its result, in a tuple; an empty one if
  /// other operators come next.
  py::tuple run_compiled(const py::function& compiled, const libtorch::detail::captured_part& part,
                         const std::vector<std::size_t>& inputs, const py::args& arguments) {
    const auto at = innermost();
    libtorch::detail::capturable* const now = at == open_.end() ? nullptr : at->second->as_capturable();
    if (now == nullptr) return py::tuple{};
    std::vector<const c10::TensorImpl*> given;
    for (const std::size_t i : inputs) given.push_back(arguments[i].cast<at::Tensor>().unsafeGetTensorImpl());
    if (!now->can_run(part, given)) return py::tuple{};
    const std::size_t end = now->place() + (part.end - part.first);
    const libtorch::detail::unheard_guard none;
    py::object result = compiled(*arguments);
    now->go_to(end);
    return py::make_tuple(std::move(result));
  }
  /// Returns: the format in which the operators of an open region of this thread read `parameter`, if it is one; else
  /// FP32.
  at::ScalarType format_of_parameter(const at::Tensor& parameter) {
    return open() && program_ ? program_().format_of_parameter(parameter) : at::kFloat;
  }
  /// Calls `begin(format)`, which begins to average gradients among ranks in that format. Returns: its future.
  py::object exchange(const py::function& begin) {
    if (!program_) return begin(at::kFloat);
    return program_().exchange([&](at::ScalarType format) -> py::object { return begin(format); },
                               [](const py::object& future) { future.attr("wait")(); });
  }
  /// Returns: the name of each state that the training keeps, and its format in the plan.
  std::vector<std::pair<std::string, at::ScalarType>> formats_of_states() {
    return program_ ? program_().formats_of_states() : std::vector<std::pair<std::string, at::ScalarType>>{};
  }
  /// Begins an optimizer's update, whose time is that of the operator of that name. Returns: what ends it.
  std::function<void()> begin_update(const std::string& name) {
    const op_graph& graph = program_().graph();
    const auto at = std::ranges::find(graph, name, &op_info::name);
    return program_().begin_update(at == graph.end() ? 0 : static_cast<std::size_t>(at - graph.begin()));
  }
  /// Tells the innermost region that code which it does not hear gave `now` for `was`, and changed no value.
  void pass_on(const at::Tensor& was, const at::Tensor& now) {
    if (const auto at = innermost(); at != open_.end()) at->second->pass_on(was, now);
  }
  void enter_again(const place& from) { add(std::make_unique<libtorch::region>(from.resume())); }
  bool open() { return innermost() != open_.end(); }
  std::size_t entered() const { return entered_; }
  /// Returns: whether an exception has left a region since forget_failure().
  bool failed() const { return failed_; }
  void forget_failure() { failed_ = false; }
  /// What a region ran is of no use, as if an exception had left it.
  void fail() { failed_ = true; }
  void abandon_all() {
    while (open()) exit(true);
  }

 private:
  using entered_region = std::pair<std::thread::id, std::unique_ptr<libtorch::region>>;

  void add(std::unique_ptr<libtorch::region> inner) {
    open_.emplace_back(std::this_thread::get_id(), std::move(inner));
  }
  /// Returns: the innermost region of this thread, because a region ends in the thread that it was opened in.
  std::vector<entered_region>::iterator innermost() {
    const auto at = std::ranges::find(open_.rbegin(), open_.rend(), std::this_thread::get_id(), &entered_region::first);
    return at == open_.rend() ? open_.end() : std::prev(at.base());
  }

  libtorch::detail::capturable& captured() {
    const auto at = innermost();
    auto* const found = at == open_.end() ? nullptr : at->second->as_capturable();
    require<error>(found != nullptr,
                   "torch.compile captures operators where no plan's region can be captured (one that was left, or a "
                   "first forward): call compiled code in `with plan:` itself");
    return *found;
  }

  maker make_;
  owner program_;
  std::function<void()> at_end_;
  std::vector<entered_region> open_;
  std::size_t entered_ = 0;
  bool failed_ = false;
  std::optional<libtorch::detail::listening_guard> heard_;  // while operators are captured
};

/// A plan from a file over a Python model, for a loop of the user's own.
class planned {
 public:
  planned(std::vector<std::pair<std::string, parameter_tree::named>> models, const std::string& path,
          libtorch::planned_settings settings)
      : trees_{trees_of(models)},
        plan_{named_modules(models, trees_), path, std::move(settings)},
        regions_{[this](const std::string& segment, bool evaluates) {
                   return std::unique_ptr<libtorch::region>{evaluates ? new libtorch::region{plan_.evaluate()}
                                                                      : new libtorch::region{plan_.enter(segment)}};
                 },
                 [this]() -> libtorch::program& { return plan_.executor(); }} {}

  static std::vector<std::shared_ptr<parameter_tree>> trees_of(
      const std::vector<std::pair<std::string, parameter_tree::named>>& models) {
    std::vector<std::shared_ptr<parameter_tree>> result;
    for (const auto& [name, parameters] : models) result.push_back(std::make_shared<parameter_tree>(parameters));
    return result;
  }
  static std::vector<libtorch::named_module> named_modules(
      const std::vector<std::pair<std::string, parameter_tree::named>>& models,
      const std::vector<std::shared_ptr<parameter_tree>>& trees) {
    std::vector<libtorch::named_module> result;
    for (std::size_t i = 0; i < models.size(); ++i) result.emplace_back(models[i].first, *trees[i]);
    return result;
  }

  /// Names parameters that have replaced others since, as load_state_dict(assign=True) does.
  void name_parameters(const std::vector<std::pair<std::string, parameter_tree::named>>& models) {
    add_names(plan_.executor(), models);
  }
  static void add_names(libtorch::program& executor,
                        const std::vector<std::pair<std::string, parameter_tree::named>>& models) {
    for (const auto& [name, parameters] : models) {
      const parameter_tree tree{parameters};
      executor.name_parameters(static_cast<const torch::nn::Module&>(tree), name);
    }
  }
  regions& opened() { return regions_; }
  libtorch::planned_region& plan() { return plan_; }

 private:
  std::vector<std::shared_ptr<parameter_tree>> trees_;
  libtorch::planned_region plan_;
  regions regions_;
};

}  // namespace comp::python
