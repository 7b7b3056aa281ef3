// SPDX-License-Identifier: Apache-2.0
// The module comp._comp, of which the Python package (python/comp) is made. Its types and signatures: _comp.pyi.
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/extension.h>
//
#include <comp/comp.hpp>
#include <comp/files/training_file.hpp>
#include <comp/observe/compare.hpp>
#include <comp_libtorch/comp_libtorch.hpp>
#include <comp_libtorch/plan/optimized_scripts.hpp>
#include <comp_libtorch/train/kept_moments.hpp>

#include "choices.hpp"
#include "loop.hpp"
#include "parts.hpp"
#include "ranks.hpp"
#include "regions.hpp"
#include "settings.hpp"
#include "training.hpp"

namespace comp::python {
namespace {

using namespace py::literals;

/// Adds a class of exceptions. A message may quote a file, so it need not be UTF-8.
template <class E>
py::handle add_error(py::module_& m, const char* name, py::handle base) {
  static py::exception<E> type{m, name, base};
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const E& e) {
      const std::string_view text{e.what()};
      const auto size = static_cast<Py_ssize_t>(text.size());
      PyErr_SetObject(
          type.ptr(),
          py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(text.data(), size, "backslashreplace")).ptr());
    }
  });
  return type;
}

void add_errors(py::module_& m) {
  const py::handle base = add_error<error>(m, "Error", PyExc_RuntimeError);  // registered first, so it is tried last
  add_error<plan_error>(m, "PlanError", base);
  add_error<graph_error>(m, "GraphError", base);
  add_error<settings_error>(m, "SettingsError", base);
  add_error<space_error>(m, "SpaceError", base);
  add_error<file_error>(m, "FileError", base);
  add_error<out_of_memory>(m, "OutOfMemory", base);
  const py::handle stopped = add_error<interrupted>(m, "Interrupted", base);
  add_error<rank_error>(m, "RankError", stopped);
  add_error<ranks::detail::abandoned>(m, "Abandoned", base);
}

libtorch::freed_memory freed(bool keep) {
  return keep ? libtorch::freed_memory::kept : libtorch::freed_memory::returned;
}

/// A copy of a TorchScript function, which TorchScript does not optimize because it is called in regions alone.
struct script_copy {
  std::weak_ptr<torch::jit::CompilationUnit> unit;  // owns the original
  std::unique_ptr<torch::jit::GraphFunction> function;
  bool calls_methods;  // those of interfaces, which cannot be inlined
};

script_copy& copy_of(torch::jit::Function& original, const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  static auto& copies = *new std::map<const torch::jit::Function*, script_copy>;  // never destroyed, as Python's unit
  if (const auto known = copies.find(&original); known != copies.end() && known->second.unit.lock() == unit)
    return known->second;
  std::erase_if(copies, [](const auto& each) { return each.second.unit.expired(); });
  torch::jit::GraphFunction& graph = torch::jit::toGraphFunction(original);
  graph.ensure_defined();
  auto copy = std::make_unique<torch::jit::GraphFunction>(graph.qualname(), graph.graph()->copy(), nullptr);
  copy->setSchema(graph.getSchema());
  const c10::impl::ExcludeDispatchKeyGuard unseen{libtorch::detail::claimed_key};  // making it computes with constants
  const torch::jit::GraphOptimizerEnabledGuard inlines{true};  // what it calls, which is optimized by itself otherwise
  (void)copy->get_executor();
  const bool calls = copy->optimized_graph()->toString(false).find("prim::CallMethod") != std::string::npos;
  return copies[&original] = {unit, std::move(copy), calls};
}

/// Returns: the copy of a ScriptMethod or ScriptFunction for regions. TorchScript watches the first calls of the
/// original, and from then on runs fused operators and derivatives of its own in it, which no plan knows.
py::object script_for_regions(const py::object& script) {
  if (!py::isinstance<torch::jit::Method>(script)) {
    const auto function = script.cast<torch::jit::StrongFunctionPtr>();
    script_copy& copy = copy_of(*function.function_, function.cu_);
    return py::cast(torch::jit::StrongFunctionPtr{function.cu_, copy.function.get()});
  }
  const auto method = script.cast<torch::jit::Method>();
  const torch::jit::Module owner = method.owner();
  script_copy& copy = copy_of(method.function(), owner._ivalue()->compilation_unit());
  if (copy.calls_methods) {
    libtorch::detail::script_executors parts;
    parts.add(owner);
    parts.forget_optimized();
  }
  return py::cast(torch::jit::Method{owner._ivalue(), copy.function.get()});
}

void add_regions(py::module_& m) {
  py::class_<place>(m, "Place");
  py::class_<libtorch::detail::captured_part>(m, "CapturedPart")
      .def_readonly("stray", &libtorch::detail::captured_part::stray);
  py::class_<regions>(m, "Regions")
      .def("enter", &regions::enter, "segment"_a)
      .def("exit", &regions::exit, "by_exception"_a)
      .def("here", &regions::here)
      .def("format_of_parameter", &regions::format_of_parameter, "parameter"_a)
      .def("exchange", &regions::exchange, "begin"_a)
      .def("formats_of_states", &regions::formats_of_states)
      .def(
          "begin_update", [](regions& of, const std::string& name) { return py::cpp_function{of.begin_update(name)}; },
          "name"_a)
      .def("pass_on", &regions::pass_on, "was"_a, "now"_a)
      .def("enter_again", &regions::enter_again, "place"_a)
      .def("compiles", &regions::compiles)
      .def_static("unheard", &regions::unheard, "work"_a)
      .def_static("listens", [] { return libtorch::detail::listening != nullptr; })
      .def_static("script_for_regions", &script_for_regions, "script"_a)
      .def_static("dispatch_keys", &regions::dispatch_keys)
      .def("next_operator", &regions::next_operator)
      .def("go_to", &regions::go_to, "number"_a)
      .def("begin_capture", &regions::begin_capture, "first"_a, "traced"_a, "parameters"_a)
      .def("end_capture", &regions::end_capture)
      .def("run_compiled", [](regions& of, const py::function& compiled, const libtorch::detail::captured_part& part,
                              const std::vector<std::size_t>& inputs, const py::args& arguments) {
        return of.run_compiled(compiled, part, inputs, arguments);
      });
  py::class_<planned>(m, "Planned")
      .def(py::init([](std::vector<std::pair<std::string, parameter_tree::named>> models, const std::string& path,
                       std::vector<std::string> segments, const std::string& match, bool forced,
                       const std::string& otherwise, bool protect_blocks, bool keep_memory, bool keeps_states) {
             using matches = std::pair<std::string_view, libtorch::plan_match>;
             using ways = std::pair<std::string_view, libtorch::on_mismatch>;
             libtorch::planned_settings s{
                 .segments = std::move(segments),
                 .match = worded("match", match,
                                 std::vector<matches>{{"exact", libtorch::plan_match::exact},
                                                      {"by_name", libtorch::plan_match::by_name}}),
                 .forced = forced,
                 .keeps_states = keeps_states};
             s.program.otherwise = worded("otherwise", otherwise,
                                          std::vector<ways>{{"follow", libtorch::on_mismatch::follow},
                                                            {"error", libtorch::on_mismatch::error},
                                                            {"fp32", libtorch::on_mismatch::fp32}});
             s.program.protect_blocks = protect_blocks;
             s.program.freed = freed(keep_memory);
             return std::make_unique<planned>(std::move(models), path, std::move(s));
           }),
           "models"_a, "path"_a, py::kw_only(), "segments"_a, "match"_a, "forced"_a, "otherwise"_a, "protect_blocks"_a,
           "keep_memory"_a, "keeps_states"_a)
      .def("name_parameters", &planned::name_parameters, "models"_a)
      .def_property_readonly("regions", &planned::opened, py::return_value_policy::reference_internal)
      .def(
          "set_batch", [](planned& p, std::size_t batch) { p.plan().set_batch(batch); }, "batch"_a)
      .def_property_readonly("in_use", [](planned& p) { return p.plan().planned(); })
      .def_property_readonly("letters", [](planned& p) { return p.plan().executor().current_plan().str(); })
      .def_property_readonly("needs_scaling", [](planned& p) { return p.plan().needs_scaling(); })
      .def_property_readonly("warnings", [](planned& p) { return p.plan().warnings(); })
      .def_property_readonly("left", [](planned& p) {
        const auto problems = p.plan().executor().problems();
        return std::pair{problems.unknown + problems.mismatches + problems.ended_early, problems.first};
      });
}

void add_loop(py::module_& m) {
  py::class_<loop>(m, "Loop")
      .def(py::init([](std::vector<std::pair<std::string, parameter_tree::named>> models, py::function trains,
                       py::function stepped, py::function leave, py::function saved, py::function restore,
                       py::function is_sound, const any_policy& policy, const py::dict& settings,
                       std::string ledger_path, std::string plan_path, bool forced, std::size_t batches_per_epoch,
                       bool tune, bool protect_blocks, bool exchange, bool keep_memory,
                       std::shared_ptr<rank_team> ranks, std::vector<op_info> states, bool keeps_states) {
             return std::make_unique<loop>(loop_job{.models = std::move(models),
                                                    .trains = std::move(trains),
                                                    .stepped = std::move(stepped),
                                                    .leave = std::move(leave),
                                                    .save = std::move(saved),
                                                    .restore = std::move(restore),
                                                    .is_sound = std::move(is_sound),
                                                    .policy = policy,
                                                    .settings = settings_of(settings),
                                                    .ledger_path = std::move(ledger_path),
                                                    .plan_path = std::move(plan_path),
                                                    .forced = forced,
                                                    .keeps_states = keeps_states,
                                                    .batches_per_epoch = batches_per_epoch,
                                                    .tune = tune,
                                                    .protect_blocks = protect_blocks,
                                                    .exchange = exchange,
                                                    .states = std::move(states),
                                                    .freed = freed(keep_memory),
                                                    .ranks = std::move(ranks)});
           }),
           "models"_a, py::kw_only(), "trains"_a, "stepped"_a, "leave"_a, "save"_a, "restore"_a, "is_sound"_a,
           "policy"_a, "settings"_a, "ledger"_a, "plan_file"_a, "forced"_a, "batches_per_epoch"_a, "tune"_a,
           "protect_blocks"_a, "exchange"_a, "keep_memory"_a, "ranks"_a = nullptr, "states"_a = std::vector<op_info>{},
           "keeps_states"_a = false)
      .def_property_readonly("regions", &loop::opened, py::return_value_policy::reference_internal)
      .def("step", &loop::step, "losses"_a, "seconds"_a)
      .def("fail", &loop::fail)
      .def("end", &loop::end)
      .def_property_readonly("found", &loop::found)
      .def_property_readonly("owns_ledger", &loop::owns_ledger)
      .def_property_readonly("letters", [](const loop& l) { return l.current_plan().str(); })
      .def_property_readonly("searches", &loop::searches)
      .def_property_readonly("batches", &loop::batches)
      .def_property_readonly("batches_undone", &loop::batches_undone)
      .def_property_readonly("left", &loop::left);
}

void add_moments(py::module_& m) {
  using libtorch::detail::piecewise;
  m.def("moment_operator", &libtorch::detail::moment_operator, "which"_a, "suffix"_a, "elements"_a);
  m.def(
      "lie_alike", [](const at::Tensor& a, const at::Tensor& b) { return libtorch::detail::lie_alike(a, b); }, "a"_a,
      "b"_a);
  m.def("is_moment_of", &libtorch::detail::is_moment_of, "parameter"_a, "moment"_a);
  m.def("new_moment", &libtorch::detail::new_moment, "parameter"_a, "format"_a);
  m.def("in_format", &libtorch::detail::in_format, "parameter"_a, "moment"_a, "format"_a, "key"_a, "which"_a);
  m.def("mix_key", &mix_key, "seed"_a, "stream"_a);
  py::class_<piecewise>(m, "Piecewise")
      .def(py::init<const at::Tensor&, std::uint64_t, int>(), "whole"_a, "key"_a, "which"_a)
      .def_readonly_static("most", &piecewise::most)
      .def("begin", &piecewise::begin, "at"_a, "n"_a, "reads"_a = true)
      .def("end", &piecewise::end, "at"_a, "n"_a);
}

/// Runs a training that `watcher` watches, and that it may end after any epoch.
template <class Train>
training_result watched(bool progress, py::object watcher, Train train) {
  watched_training by{.watcher = std::move(watcher)};
  observers all;
  all.add<called_observer>(py::none());
  if (progress) all.add<progress_bar>();
  all.add<training_watch>(by);
  return train(all, by);
}

/// Reads what TrainingProgress.text() gave. Throws: `file_error`.
training_progress progress_of(const std::string& text) {
  const json_place place{"the checkpoint", 0, "go on from another one, or begin anew"};
  const json document = parse_json(text, place);
  return read_json<training_progress>(json_reader{document, place});
}

void add_training(py::module_& m) {
  py::class_<rank_team, std::shared_ptr<rank_team>>(m, "RankTeam")
      .def(py::init<c10::intrusive_ptr<c10d::ProcessGroup>, double>(), "group"_a, "seconds"_a)
      .def(
          "maximum", [](rank_team& t, std::vector<double> own) { return t.team().maximum(std::move(own)); }, "own"_a)
      .def(
          "exchange", [](rank_team& t, const std::string& own) { return t.team().exchange(own); }, "own"_a);
  py::class_<training>(m, "Training")
      .def(py::init([](std::vector<std::pair<std::string, parameter_tree::named>> models,
                       std::vector<std::pair<std::string, parameter_tree::named>> read, py::function pull,
                       py::function step, py::object score, py::function saved, py::function restore,
                       py::function tensors, py::function others, py::function compile, py::object rates,
                       std::int64_t length, std::int64_t keep_bytes, bool keep_memory, std::string data, bool tune,
                       bool protect_blocks, const std::optional<std::string>& states_on, std::string about,
                       std::string target, bool separate_products, bool exchange, std::shared_ptr<rank_team> ranks,
                       std::vector<op_info> states, py::function prepare) {
             return make_training({.models = std::move(models),
                                   .read = std::move(read),
                                   .call = {std::move(pull), std::move(step), std::move(score), std::move(saved),
                                            std::move(restore), std::move(tensors), std::move(others),
                                            std::move(compile), std::move(rates), std::move(prepare)},
                                   .length = length,
                                   .keep = {.limit_bytes = keep_bytes, .about = std::move(data)},
                                   .choices = tune && target.empty() ? libtorch::executor_choices::measured
                                                                     : libtorch::executor_choices::fixed,
                                   .protect_blocks = protect_blocks,
                                   .target = std::move(target),
                                   .separate_products = separate_products,
                                   .exchange = exchange,
                                   .states = std::move(states),
                                   .freed = freed(keep_memory),
                                   .states_on = states_on ? std::optional{c10::Device{*states_on}} : std::nullopt,
                                   .about = std::move(about),
                                   .ranks = std::move(ranks)});
           }),
           py::kw_only(), "models"_a, "read"_a, "pull"_a, "step"_a, "score"_a, "save"_a, "restore"_a, "tensors"_a,
           "others"_a, "compile"_a, "rates"_a, "length"_a, "keep_bytes"_a, "keep_memory"_a, "data"_a, "tune"_a,
           "protect_blocks"_a, "states_on"_a, "about"_a, "target"_a = "", "separate_products"_a = false,
           "exchange"_a = false, "ranks"_a = py::none(), "states"_a, "prepare"_a)
      .def_property_readonly("regions", &training::opened, py::return_value_policy::reference_internal)
      .def("operators",
           [](training& t) {
             const op_graph& graph = t.graph();
             return std::vector<op_info>(graph.begin(), graph.end());
           })
      .def("fingerprint", [](training& t) { return fmt::format("{:016x}", t.graph().fingerprint()); })
      .def(
          "set_plan", [](training& t, const std::string& letters) { t.set_plan(parse_plan(letters)); }, "plan"_a)
      .def_property_readonly("plan", [](training& t) { return t.current_plan().str(); })
      .def(
          "search",
          [](training& t, const any_policy& policy, const any_strategy& stage1, const any_strategy& stage2,
             const py::dict& settings, const std::optional<std::string>& ledger_path,
             const std::optional<std::string>& report, const report_info& info, bool progress,
             const py::list& listeners) {
            const recipe how{policy, stage1, stage2, settings_of(settings)};
            observers all;
            all.add<called_observer>(py::none());
            if (progress) all.add<progress_bar>();
            if (ledger_path) all.add<ledger>(*ledger_path);
            if (report) all.add<html_report>(*report, info);
            for (const py::handle each : listeners) all.add<called_observer>(py::reinterpret_borrow<py::object>(each));
            return std::make_shared<outcome>(t.search(how, all));
          },
          py::kw_only(), "policy"_a, "stage1"_a, "stage2"_a, "settings"_a, "ledger"_a, "report"_a, "info"_a,
          "progress"_a, "observers"_a)
      .def(
          "train_on",
          [](training& t, outcome& found, std::size_t epochs, double finish, bool progress, py::object watcher) {
            const post_training settings{.epochs = epochs, .finish = finish};
            const training_result got =
                watched(progress, std::move(watcher),
                        [&](observers& all, watched_training& by) { return t.train_on(found, settings, all, by); });
            if (got.fallbacks.empty()) found.later = got.later;  // a plan that was given up is saved without them
            return got;
          },
          "found"_a, "epochs"_a, "finish"_a, "progress"_a, "watcher"_a)
      .def(
          "go_on",
          [](training& t, const std::string& from, std::size_t epochs, double finish, bool progress,
             py::object watcher) {
            const post_training settings{.epochs = epochs, .finish = finish};
            return watched(progress, std::move(watcher), [&](observers& all, watched_training& by) {
              return t.go_on(progress_of(from), settings, all, by);
            });
          },
          "progress_text"_a, "epochs"_a, "finish"_a, "progress"_a, "watcher"_a);
}

/// Returns: what a plan file says, checked, for people and for other programs. Throws: `file_error`, `plan_error`.
py::dict read_plan_file(const std::string& path) {
  const plan_listing from = load_listing(path);
  py::list operators, fixed;
  for (const plan_listing::entry& op : from.operators.value_or(std::vector<plan_listing::entry>{})) {
    operators.append(py::make_tuple(op.name, op.kind, std::string{name(op.chosen)}));
    fixed.append(std::string{reason(op.author)});
  }
  py::dict result;
  result["operators"] = operators;
  result["fixed"] = fixed;
  result["letters"] = from.letters ? from.letters->str() : std::string{};
  result["machine"] = from.made_for ? from.made_for->name : std::string{};
  result["later"] = from.later;
  result["fingerprint"] = from.model ? from.model->fingerprint : std::string{};
  result["speedup"] = from.speedup ? py::object{py::float_(*from.speedup)} : py::object{py::none()};
  return result;
}

/// Returns: the listing of which a PlanFile (comp/_plan_file.py) has the parts, for the texts that C++ prints, too.
plan_listing listing_of(const py::object& file) {
  plan_listing listing{.file = "", .operators = std::vector<plan_listing::entry>{}};
  const auto letters = file.attr("letters").cast<std::string>();
  if (!letters.empty()) listing.letters = parse_plan(letters);
  const auto fixed = file.attr("fixed").cast<std::vector<std::string>>();
  using triple = std::tuple<std::string, std::string, std::string>;
  for (const auto& [called, kind, chosen] : file.attr("operators").cast<std::vector<triple>>()) {
    plan_listing::entry& op = listing.operators->emplace_back();
    op.name = called, op.kind = kind, op.chosen = *precision_of(chosen);
    for (const author_choice c : {author_choice::autocast_off, author_choice::autocast_on}) {
      const std::size_t i = listing.operators->size() - 1;
      if (i < fixed.size() && fixed[i] == reason(c)) op.author = c;
    }
  }
  listing.made_for.emplace().name = file.attr("machine").cast<std::string>();
  listing.speedup = file.attr("speedup").cast<std::optional<double>>();
  listing.later = file.attr("later").cast<std::vector<later_plan>>();
  return listing;
}

}  // namespace
}  // namespace comp::python

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace comp::python;
  comp::reader_language = comp::language::python;
  m.attr("__version__") = comp::detail::comp_version;
  add_errors(m);
  add_choices(m);
  add_results(m);
  add_regions(m);
  add_training(m);
  add_loop(m);
  add_moments(m);
  add_doctor(m);
  m.def("read_plan_file", &read_plan_file, pybind11::arg("path"));
  m.def(
      "plan_text", [](const pybind11::object& file) { return comp::listing_text(listing_of(file)); },
      pybind11::arg("file"));
  m.def(
      "plan_difference",
      [](const pybind11::object& a, const pybind11::object& b) {
        return comp::compare_text(listing_of(a), listing_of(b));
      },
      pybind11::arg("a"), pybind11::arg("b"));
  m.def(
      "compare_files", [](const std::vector<std::string>& paths) { return comp::compare_text(paths); },
      pybind11::arg("paths"));
}
