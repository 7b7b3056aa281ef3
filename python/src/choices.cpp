// SPDX-License-Identifier: Apache-2.0
// Gives Python what a search takes: operators and decisions about them, policies, strategies.
#include <torch/csrc/utils/pybind.h>
//
#include <comp/comp.hpp>
#include <comp/strategy/beam.hpp>
#include <comp/strategy/delta_debugging.hpp>
#include <comp/strategy/genetic.hpp>
#include <comp/systems/paddle.hpp>
#include <comp/systems/tensorflow.hpp>
#include <comp/systems/tvm.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choices.hpp"
#include "parts.hpp"
#include "settings.hpp"

namespace comp::python {
namespace {

using namespace py::literals;

void add_operators(py::module_& m) {
  py::class_<op_info>(m, "Operator")
      .def_readonly("name", &op_info::name)
      .def_readonly("kind", &op_info::kind)
      .def_readonly("scopes", &op_info::scopes)
      .def_readonly("producers", &op_info::producers)
      .def_readonly("m", &op_info::m)
      .def_readonly("n", &op_info::n)
      .def_readonly("k", &op_info::k)
      .def_readonly("channels_in", &op_info::channels_in)
      .def_readonly("channels_out", &op_info::channels_out)
      .def_readonly("bytes", &op_info::bytes)
      .def_readonly("flops", &op_info::flops)
      .def_readonly("choosable", &op_info::choosable)
      .def_property_readonly("as_written", [](const op_info& op) { return name(op.as_written); })
      .def_readonly("hands_on_fp32", &op_info::hands_on_fp32)
      .def_property_readonly("fixed_by_author", [](const op_info& op) { return std::string{reason(op.author)}; })
      .def_property_readonly("shapes",
                             [](const op_info& op) {
                               std::vector<std::vector<std::int64_t>> shapes;
                               for (const tensor_info& input : op.inputs) shapes.push_back(input.shape);
                               return shapes;
                             })
      .def("__repr__", [](const op_info& op) { return fmt::format("<{} \"{}\">", op.kind, op.name); });

  py::class_<decision>(m, "Decision")
      .def_property_readonly("category", [](const decision& d) { return name(d.category); })
      .def_property_readonly("compute", [](const decision& d) { return name(d.compute); })
      .def_readonly("is_fixed", &decision::fixed)
      .def("__eq__", [](const decision& a, const decision& b) { return a == b; })
      .def("__repr__", [](const decision& d) { return policy::detail::text(d); });
  m.def(
      "allow", [](const std::string& low) { return policy::allow(precision_named(low)); }, "precision"_a);
  m.def("deny", &policy::deny);
  m.def("follow", &policy::follow);
  m.def(
      "fixed", [](const std::string& p) { return policy::fixed(precision_named(p)); }, "precision"_a);

  py::class_<policy::rule>(m, "Rule").def("__repr__", &policy::rule::str);
  m.def("by_kind", &policy::by_kind, "kind"_a, "then"_a);
  m.def("by_name", &policy::by_name, "pattern"_a, "then"_a);
  m.def("by_scope", &policy::by_scope, "scope"_a, "then"_a);
}

void add_policies(py::module_ m) {
  py::class_<any_policy>(m, "Policy")
      .def("classify", &any_policy::classify, "operator"_a)
      .def("__call__", &any_policy::classify, "operator"_a);
  m.def("called", [](py::function classifies) { return any_policy{called_policy{std::move(classifies)}}; });
  m.def("all_fp32", [] { return any_policy{policy::all_fp32{}}; });
  m.def(
      "pytorch",
      [](const std::string& list, const std::optional<std::string>& low) {
        using entry = std::pair<std::string_view, policy::pytorch_list>;
        policy::pytorch result{.list = worded("list", list,
                                              std::vector<entry>{{"by_device", policy::pytorch_list::by_device},
                                                                 {"cuda", policy::pytorch_list::cuda},
                                                                 {"cpu", policy::pytorch_list::cpu}})};
        if (low) result.low = precision_named(*low);
        return any_policy{result};
      },
      py::kw_only(), "list"_a = "by_device", "low"_a = py::none());
  m.def(
      "tensorflow",
      [](const std::string& list) {
        using entry = std::pair<std::string_view, policy::tensorflow_list>;
        policy::tensorflow result{
            .list = worded("list", list,
                           std::vector<entry>{{"cuda_fp16", policy::tensorflow_list::cuda_fp16},
                                              {"onednn_fp16", policy::tensorflow_list::onednn_fp16},
                                              {"onednn_bf16", policy::tensorflow_list::onednn_bf16}})};
        return any_policy{result};
      },
      py::kw_only(), "list"_a = "cuda_fp16");
  m.def(
      "paddle",
      [](const std::string& level, const std::string& low) {
        using entry = std::pair<std::string_view, policy::paddle_level>;
        policy::paddle result{.level = worded("level", level,
                                              std::vector<entry>{{"o0", policy::paddle_level::o0},
                                                                 {"od", policy::paddle_level::od},
                                                                 {"o1", policy::paddle_level::o1},
                                                                 {"o2", policy::paddle_level::o2}}),
                              .low = precision_named(low)};
        result.check();
        return any_policy{result};
      },
      py::kw_only(), "level"_a = "o1", "low"_a = "fp16");
  m.def(
      "tvm", [](const std::string& low) { return any_policy{policy::tvm{.low = precision_named(low)}}; }, py::kw_only(),
      "low"_a = "fp16");
  m.def(
      "custom",
      [](const std::vector<policy::rule>& rules, const any_policy& over) {
        policy::custom<any_policy> result{.over = over};
        for (const policy::rule& each : rules) result.rules.add(each);
        return any_policy{result};
      },
      "rules"_a, py::kw_only(), "over"_a = any_policy{policy::pytorch{}});
}

void add_strategies(py::module_ m) {
  py::class_<op_group>(m, "Group")
      .def_readonly("name", &op_group::name)
      .def_readonly("operators", &op_group::operators)
      .def_property_readonly("levels", [](const op_group& g) {
        std::vector<std::string_view> names;
        for (const precision p : g.levels) names.push_back(name(p));
        return names;
      });
  py::class_<search_space>(m, "Space")
      .def_property_readonly("base", [](const search_space& s) { return s.base().str(); })
      .def_property_readonly("conservative", [](const search_space& s) { return s.conservative().str(); })
      .def_property_readonly("groups", &search_space::groups)
      .def_property_readonly("size", &search_space::size)
      .def(
          "valid", [](const search_space& s, const std::string& p) { return s.valid(parse_plan(p)); }, "plan"_a)
      .def(
          "set",
          [](const search_space& s, const std::string& p, std::size_t group, std::size_t level) {
            require<space_error>(group < s.groups().size() && level < s.groups()[group].levels.size(),
                                 "level {} of group {} (the space has {} groups): see space.groups", level, group,
                                 s.groups().size());
            plan candidate = parse_plan(p);
            require<plan_error>(candidate.size() == s.base().size(),
                                "plan has {} operators, the space {} (they must agree): "
                                "begin with space.conservative",
                                candidate.size(), s.base().size());
            s.set(candidate, group, level);
            return candidate.str();
          },
          "plan"_a, "group"_a, "level"_a);
  py::class_<any_strategy>(m, "Strategy");
  m.def("called", [](py::object given) { return any_strategy{called_strategy{std::move(given)}}; });

  m.def(
      "guided", [](std::size_t questions) { return any_strategy{strategy::guided{.questions = questions}}; },
      py::kw_only(), "questions"_a = 40);
  m.def("greedy", [] { return any_strategy{strategy::greedy{}}; });
  m.def(
      "exhaustive", [](std::uint64_t limit) { return any_strategy{strategy::exhaustive{.limit = limit}}; },
      py::kw_only(), "limit"_a = 1024);
  m.def(
      "beam", [](std::size_t width) { return any_strategy{strategy::beam{.width = width}}; }, py::kw_only(),
      "width"_a = 4);
  m.def("delta_debugging", [] { return any_strategy{strategy::delta_debugging{}}; });
  m.def(
      "genetic",
      [](std::size_t trials, std::size_t population, double mutation, std::uint64_t seed) {
        return any_strategy{
            strategy::genetic{.trials = trials, .population = population, .mutation = mutation, .seed = seed}};
      },
      py::kw_only(), "trials"_a = 128, "population"_a = 16, "mutation"_a = 0.5, "seed"_a = 0);
}

}  // namespace

void add_choices(py::module_& m) {
  add_operators(m);
  add_policies(m.def_submodule("policy"));
  add_strategies(m.def_submodule("strategy"));
}

}  // namespace comp::python
