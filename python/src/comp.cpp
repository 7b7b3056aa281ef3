// SPDX-License-Identifier: Apache-2.0
// The module comp._comp: what the Python package (python/comp) is made of. Its types and signatures: _comp.pyi.
#include <torch/extension.h>
//
#include <comp/comp.hpp>
#include <comp/observe/summary.hpp>
#include <comp/strategy/annealing.hpp>
#include <comp/strategy/beam.hpp>
#include <comp/strategy/delta_debugging.hpp>
#include <comp/strategy/genetic.hpp>
#include <comp/strategy/hierarchical.hpp>
#include <comp/strategy/pareto.hpp>
#include <comp/strategy/successive_halving.hpp>
#include <comp/systems/all_rules.hpp>
#include <comp/systems/paddle.hpp>
#include <comp/systems/tensorflow.hpp>
#include <comp/systems/tvm.hpp>
#include <comp_libtorch/comp_libtorch.hpp>

#include "choices.hpp"
#include "doctor.hpp"
#include "regions.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace comp::python {
namespace {

using namespace py::literals;

void add_errors(py::module_& m) {
  static py::exception<error> base{m, "Error", PyExc_RuntimeError};
  static py::exception<plan_error> plan_fault{m, "PlanError", base.ptr()};
  static py::exception<graph_error> graph_fault{m, "GraphError", base.ptr()};
  static py::exception<settings_error> settings_fault{m, "SettingsError", base.ptr()};
  static py::exception<space_error> space_fault{m, "SpaceError", base.ptr()};
  static py::exception<file_error> file_fault{m, "FileError", base.ptr()};
  static py::exception<out_of_memory> memory_fault{m, "OutOfMemory", base.ptr()};
  static py::exception<interrupted> stopped{m, "Interrupted", base.ptr()};
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const plan_error& e) {
      PyErr_SetString(plan_fault.ptr(), e.what());
    } catch (const graph_error& e) {
      PyErr_SetString(graph_fault.ptr(), e.what());
    } catch (const settings_error& e) {
      PyErr_SetString(settings_fault.ptr(), e.what());
    } catch (const space_error& e) {
      PyErr_SetString(space_fault.ptr(), e.what());
    } catch (const file_error& e) {
      PyErr_SetString(file_fault.ptr(), e.what());
    } catch (const out_of_memory& e) {
      PyErr_SetString(memory_fault.ptr(), e.what());
    } catch (const interrupted& e) {
      PyErr_SetString(stopped.ptr(), e.what());
    } catch (const error& e) {
      PyErr_SetString(base.ptr(), e.what());
    }
  });
}

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
      .def_readonly("hands_on_fp32", &op_info::hands_on_fp32)
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
        policy::pytorch made{.list = worded("list", list,
                                            std::vector<entry>{{"by_device", policy::pytorch_list::by_device},
                                                               {"cuda", policy::pytorch_list::cuda},
                                                               {"cpu", policy::pytorch_list::cpu}})};
        if (low) made.low = precision_named(*low);
        return any_policy{made};
      },
      py::kw_only(), "list"_a = "by_device", "low"_a = py::none());
  m.def(
      "tensorflow",
      [](const std::string& list) {
        using entry = std::pair<std::string_view, policy::tensorflow_list>;
        policy::tensorflow made{.list =
                                    worded("list", list,
                                           std::vector<entry>{{"cuda_fp16", policy::tensorflow_list::cuda_fp16},
                                                              {"onednn_fp16", policy::tensorflow_list::onednn_fp16},
                                                              {"onednn_bf16", policy::tensorflow_list::onednn_bf16}})};
        return any_policy{made};
      },
      py::kw_only(), "list"_a = "cuda_fp16");
  m.def(
      "paddle",
      [](const std::string& level, const std::string& low) {
        using entry = std::pair<std::string_view, policy::paddle_level>;
        policy::paddle made{.level = worded("level", level,
                                            std::vector<entry>{{"o0", policy::paddle_level::o0},
                                                               {"od", policy::paddle_level::od},
                                                               {"o1", policy::paddle_level::o1},
                                                               {"o2", policy::paddle_level::o2}}),
                            .low = precision_named(low)};
        made.check();
        return any_policy{made};
      },
      py::kw_only(), "level"_a = "o1", "low"_a = "fp16");
  m.def(
      "tvm", [](const std::string& low) { return any_policy{policy::tvm{.low = precision_named(low)}}; }, py::kw_only(),
      "low"_a = "fp16");
  m.def(
      "custom",
      [](const std::vector<policy::rule>& rules, const any_policy& over) {
        policy::custom<any_policy> made{.over = over};
        for (const policy::rule& each : rules) made.rules.add(each);
        return any_policy{made};
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
            plan made = parse_plan(p);
            require<plan_error>(made.size() == s.base().size(),
                                "plan has {} operators, the space {} (they must agree): "
                                "begin with space.conservative",
                                made.size(), s.base().size());
            s.set(made, group, level);
            return made.str();
          },
          "plan"_a, "group"_a, "level"_a);
  py::class_<any_strategy>(m, "Strategy");
  m.def("called", [](py::object given) { return any_strategy{called_strategy{std::move(given)}}; });

  m.def(
      "guided",
      [](std::size_t proposals, double worth, double memory_worth) {
        return any_strategy{strategy::guided{.proposals = proposals, .worth = worth, .memory_worth = memory_worth}};
      },
      py::kw_only(), "proposals"_a = 4, "worth"_a = 0.003, "memory_worth"_a = 0.01);
  m.def(
      "greedy",
      [](bool both_ends, std::size_t passes) {
        return any_strategy{strategy::greedy{.both_ends = both_ends, .passes = passes}};
      },
      py::kw_only(), "both_ends"_a = true, "passes"_a = 1);
  m.def(
      "exhaustive", [](std::uint64_t limit) { return any_strategy{strategy::exhaustive{.limit = limit}}; },
      py::kw_only(), "limit"_a = 1024);
  m.def(
      "random",
      [](std::size_t trials, std::uint64_t seed) {
        return any_strategy{strategy::random{.trials = trials, .seed = seed}};
      },
      py::kw_only(), "trials"_a = 64, "seed"_a = 0);
  m.def(
      "beam",
      [](std::size_t width, std::size_t passes) {
        return any_strategy{strategy::beam{.width = width, .passes = passes}};
      },
      py::kw_only(), "width"_a = 4, "passes"_a = 1);
  m.def("delta_debugging", [] { return any_strategy{strategy::delta_debugging{}}; });
  m.def("hierarchical", [] { return any_strategy{strategy::hierarchical{}}; });
  m.def(
      "annealing",
      [](std::size_t trials, std::uint64_t seed, double hot, double cold) {
        return any_strategy{strategy::annealing{.trials = trials, .seed = seed, .hot = hot, .cold = cold}};
      },
      py::kw_only(), "trials"_a = 128, "seed"_a = 0, "hot"_a = 0.02, "cold"_a = 0.001);
  m.def(
      "genetic",
      [](std::size_t trials, std::size_t population, double mutation, std::uint64_t seed) {
        return any_strategy{
            strategy::genetic{.trials = trials, .population = population, .mutation = mutation, .seed = seed}};
      },
      py::kw_only(), "trials"_a = 128, "population"_a = 16, "mutation"_a = 0.5, "seed"_a = 0);
  m.def(
      "successive_halving",
      [](std::size_t plans, std::uint64_t seed) {
        return any_strategy{strategy::successive_halving{.plans = plans, .seed = seed}};
      },
      py::kw_only(), "plans"_a = 32, "seed"_a = 0);
  m.def(
      "pareto",
      [](std::size_t trials, bool rejected_too, std::uint64_t seed) {
        return any_strategy{strategy::pareto{.trials = trials, .rejected_too = rejected_too, .seed = seed}};
      },
      py::kw_only(), "trials"_a = 128, "rejected_too"_a = false, "seed"_a = 0);
}

void add_results(py::module_& m) {
  py::class_<sample>(m, "Sample")
      .def_readonly("loss", &sample::loss)
      .def_readonly("losses", &sample::losses)
      .def_readonly("seconds", &sample::seconds)
      .def_readonly("batches", &sample::batches)
      .def_readonly("batch_seconds", &sample::batch_seconds)
      .def_readonly("curve", &sample::curve)
      .def_readonly("score", &sample::score)
      .def_readonly("peak_bytes", &sample::peak_bytes)
      .def_property_readonly("status", [](const sample& s) { return name(s.status); })
      .def_readonly("message", &sample::message);
  py::class_<trial>(m, "Trial")
      .def_readonly("number", &trial::number)
      .def_property_readonly("stage", [](const trial& t) { return name(t.stage); })
      .def_property_readonly("plan", [](const trial& t) { return t.plan.str(); })
      .def_readonly("sample", &trial::sample)
      .def_readonly("accepted", &trial::accepted)
      .def_readonly("seconds", &trial::seconds)
      .def_readonly("label", &trial::label);
  py::class_<contestant>(m, "Contestant")
      .def_readonly("label", &contestant::label)
      .def_property_readonly("plan", [](const contestant& c) { return c.plan.str(); })
      .def_readonly("seconds", &contestant::seconds)
      .def_property_readonly("speedup", [](const contestant& c) { return c.over_fp32.ratio; })
      .def_readonly("peak_bytes", &contestant::peak_bytes);
  py::class_<training_result>(m, "TrainingResult")
      .def_readonly("epochs", &training_result::epochs)
      .def_readonly("warnings", &training_result::warnings)
      .def_property_readonly("plan", [](const training_result& r) { return r.plan.str(); });
  py::class_<outcome, std::shared_ptr<outcome>>(m, "Outcome")
      .def_property_readonly("plan", [](const outcome& o) { return o.plan.str(); })
      .def_readonly("speedup", &outcome::speedup)
      .def_property_readonly("speedup_bounds",
                             [](const outcome& o) {
                               return std::pair{o.speedup_bounds.low, o.speedup_bounds.high};
                             })
      .def_property_readonly("operators",
                             [](const outcome& o) { return std::vector<op_info>(o.graph.begin(), o.graph.end()); })
      .def_property_readonly("fingerprint",
                             [](const outcome& o) { return fmt::format("{:016x}", o.graph.fingerprint()); })
      .def_readonly("contest", &outcome::contest)
      .def_readonly("trials", &outcome::trials)
      .def_readonly("baseline", &outcome::baseline)
      .def_readonly("warnings", &outcome::warnings)
      .def_readonly("trained_batches", &outcome::trained_batches)
      .def_readonly("batches_per_epoch", &outcome::batches_per_epoch)
      .def_property_readonly("reasons",
                             [](const outcome& o) {
                               std::vector<std::string> texts;
                               for (const op_reason& r : o.reasons) texts.push_back(r.text);
                               return texts;
                             })
      .def(
          "rules",
          [](const outcome& o, const std::string& low) {
            std::vector<std::pair<std::string, std::string>> plans;
            for (const autocast::named_plan& each : autocast::all_rules(o.graph, precision_named(low), o.hardware))
              plans.emplace_back(each.name, each.types.plan.str());
            return plans;
          },
          "low"_a)
      .def("table", [](const outcome& o) { return table(o); })
      .def("summary", [](const outcome& o) { return summary(o).dump(); })
      .def(
          "save", [](const outcome& o, const std::string& path) { save(o, path); }, "path"_a)
      .def(
          "report",
          [](const outcome& o, const std::string& path, const report_info& info) { write_html(o, path, info); },
          "path"_a, "info"_a);
  py::class_<report_info>(m, "ReportInfo")
      .def(py::init([](std::string model, std::string data, std::string command, std::string use_command,
                       std::string plan_file) {
             return report_info{.model = std::move(model),
                                .data = std::move(data),
                                .command = std::move(command),
                                .use_command = std::move(use_command),
                                .plan_file = std::move(plan_file)};
           }),
           py::kw_only(), "model"_a = "", "data"_a = "", "command"_a = "", "use_command"_a = "",
           "plan_file"_a = "plan.json");
}

void add_regions(py::module_& m) {
  py::class_<place>(m, "Place");
  py::class_<regions>(m, "Regions")
      .def("enter", &regions::enter, "segment"_a)
      .def("exit", &regions::exit, "by_exception"_a)
      .def("here", &regions::here)
      .def("enter_again", &regions::enter_again, "place"_a);
  py::class_<planned>(m, "Planned")
      .def(py::init([](std::vector<std::pair<std::string, parameter_tree::named>> models, const std::string& path,
                       std::vector<std::string> segments, const std::string& match, bool forced,
                       const std::string& otherwise) {
             using matches = std::pair<std::string_view, libtorch::plan_match>;
             using ways = std::pair<std::string_view, libtorch::on_mismatch>;
             libtorch::planned_settings s{
                 .segments = std::move(segments),
                 .match = worded("match", match,
                                 std::vector<matches>{{"exact", libtorch::plan_match::exact},
                                                      {"by_name", libtorch::plan_match::by_name}}),
                 .forced = forced};
             s.program.otherwise = worded(
                 "otherwise", otherwise,
                 std::vector<ways>{{"error", libtorch::on_mismatch::error}, {"fp32", libtorch::on_mismatch::fp32}});
             return std::make_unique<planned>(std::move(models), path, std::move(s));
           }),
           "models"_a, "path"_a, py::kw_only(), "segments"_a, "match"_a, "forced"_a, "otherwise"_a)
      .def_property_readonly("regions", &planned::opened, py::return_value_policy::reference_internal)
      .def_property_readonly("in_use", [](planned& p) { return p.plan().planned(); })
      .def_property_readonly("letters", [](planned& p) { return p.plan().executor().current_plan().str(); })
      .def_property_readonly("needs_scaling", [](planned& p) { return p.plan().needs_scaling(); })
      .def_property_readonly("warnings", [](planned& p) { return p.plan().warnings(); })
      .def_property_readonly("left", [](planned& p) {
        const auto seen = p.plan().executor().problems();
        return std::pair{seen.mismatches + seen.ended_early, seen.first};
      });
}

void add_training(py::module_& m) {
  py::class_<training>(m, "Training")
      .def(py::init([](std::vector<std::pair<std::string, parameter_tree::named>> models, py::function pull,
                       py::function step, py::object score, py::function saved, py::function restore,
                       py::function tensors, std::int64_t length, std::int64_t keep_bytes, std::string data, bool tune,
                       const std::optional<std::string>& states_on, std::string about) {
             return make_training(
                 {.models = std::move(models),
                  .call = {std::move(pull), std::move(step), std::move(score), std::move(saved), std::move(restore),
                           std::move(tensors)},
                  .length = length,
                  .keep = {.limit_bytes = keep_bytes, .about = std::move(data)},
                  .choices = tune ? libtorch::executor_choices::measured : libtorch::executor_choices::fixed,
                  .states_on = states_on ? std::optional{c10::Device{*states_on}} : std::nullopt,
                  .about = std::move(about)});
           }),
           py::kw_only(), "models"_a, "pull"_a, "step"_a, "score"_a, "save"_a, "restore"_a, "tensors"_a, "length"_a,
           "keep_bytes"_a, "data"_a, "tune"_a, "states_on"_a, "about"_a)
      .def_property_readonly("regions", &training::opened, py::return_value_policy::reference_internal)
      .def("operators",
           [](training& t) {
             const op_graph& graph = t.graph();
             return std::vector<op_info>(graph.begin(), graph.end());
           })
      .def(
          "set_plan", [](training& t, const std::string& letters) { t.set_plan(parse_plan(letters)); }, "plan"_a)
      .def(
          "search",
          [](training& t, const any_policy& policy, const any_strategy& stage1, const any_strategy& stage2,
             const py::dict& settings, const std::optional<std::string>& ledger_path,
             const std::optional<std::string>& report, const report_info& info, bool progress, const py::list& told) {
            const recipe how{policy, stage1, stage2, settings_of(settings)};
            observers all;
            all.add<called_observer>(py::none());
            if (progress) all.add<progress_bar>();
            if (ledger_path) all.add<ledger>(*ledger_path);
            if (report) all.add<html_report>(*report, info);
            for (const py::handle each : told) all.add<called_observer>(py::reinterpret_borrow<py::object>(each));
            return std::make_shared<outcome>(t.search(how, all));
          },
          py::kw_only(), "policy"_a, "stage1"_a, "stage2"_a, "settings"_a, "ledger"_a, "report"_a, "info"_a,
          "progress"_a, "observers"_a)
      .def(
          "train_on",
          [](training& t, const outcome& found, std::size_t epochs, bool progress) {
            observers all;
            all.add<called_observer>(py::none());
            if (progress) all.add<progress_bar>();
            return t.train_on(found, epochs, all);
          },
          "found"_a, "epochs"_a, "progress"_a);
}

/// What a plan file says, checked: for people and for other programs. Throws: `file_error`, `plan_error`.
py::dict read_plan_file(const std::string& path) {
  const plan_listing from = load_listing(path);
  py::list operators;
  if (from.operators) {
    for (const plan_listing::entry& op : *from.operators)
      operators.append(py::make_tuple(op.name, op.kind, std::string{name(op.chosen)}));
  }
  py::dict said;
  said["operators"] = operators;
  said["letters"] = from.letters ? from.letters->str() : std::string{};
  said["machine"] = from.made_for ? from.made_for->name : std::string{};
  said["fingerprint"] = from.fingerprint.value_or("");
  said["speedup"] = from.speedup ? py::object{py::float_(*from.speedup)} : py::object{py::none()};
  return said;
}

}  // namespace
}  // namespace comp::python

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace comp::python;
  m.attr("__version__") = comp::detail::comp_version;
  add_errors(m);
  add_operators(m);
  add_policies(m.def_submodule("policy"));
  add_strategies(m.def_submodule("strategy"));
  add_results(m);
  add_regions(m);
  add_training(m);
  add_doctor(m);
  m.def("read_plan_file", &read_plan_file, pybind11::arg("path"));
}
