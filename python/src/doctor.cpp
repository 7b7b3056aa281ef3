// SPDX-License-Identifier: Apache-2.0
// Gives Python the doctor, of which comp/_doctor.py is made.
#include <torch/extension.h>
//
#include <comp/doctor/difference.hpp>
#include <comp/doctor/examination_file.hpp>
#include <comp/doctor/examination_text.hpp>
#include <comp/doctor/history_text.hpp>
#include <comp_libtorch/doctor/doctor.hpp>

#include "parts.hpp"
#include "regions.hpp"

namespace comp::python {
namespace {

using namespace py::literals;

precision precision_called(const std::string& word) {
  const auto known = precision_of(word);
  require<settings_error>(known.has_value(), "precision \"{}\" is not known (bf16 and fp16 are): give one of them",
                          word);
  return *known;
}

/// A doctor over a Python model.
class examining {
 public:
  examining(std::vector<std::pair<std::string, parameter_tree::named>> models, const std::string& low, double share,
            bool many_steps)
      : trees_{planned::trees_of(models)},
        doctor_{planned::named_modules(models, trees_),
                {.low = precision_called(low), .share = share, .many_steps = many_steps}},
        regions_{[this](const std::string& segment, bool /*evaluates*/) {
          return std::unique_ptr<libtorch::region>{new libtorch::region{doctor_.examine(segment)}};
        }} {}
  regions& opened() { return regions_; }
  examination finish() const { return doctor_.finish(); }
  libtorch::doctor& doctor() { return doctor_; }

 private:
  std::vector<std::shared_ptr<parameter_tree>> trees_;
  libtorch::doctor doctor_;
  regions regions_;
};

void add_entries(py::module_& m) {
  py::class_<value_counts>(m, "Values")
      .def_readonly("count", &value_counts::values)
      .def_readonly("zeros", &value_counts::zeros)
      .def_readonly("nans", &value_counts::nans)
      .def_readonly("infinities", &value_counts::infinities)
      .def_readonly("smallest", &value_counts::smallest)
      .def_readonly("largest", &value_counts::largest)
      .def(
          "vanish", [](const value_counts& v, const std::string& p) { return v.vanish(precision_called(p)); },
          "precision"_a)
      .def(
          "subnormal", [](const value_counts& v, const std::string& p) { return v.subnormal(precision_called(p)); },
          "precision"_a)
      .def(
          "overflow", [](const value_counts& v, const std::string& p) { return v.overflow(precision_called(p)); },
          "precision"_a)
      .def("__repr__", [](const value_counts& v) { return fmt::format("<{}>", comp::detail::range_text(v)); });
  py::class_<examined>(m, "Examined")
      .def_readonly("name", &examined::name)
      .def_readonly("kind", &examined::kind)
      .def_readonly("shape", &examined::shape)
      .def_readonly("inputs", &examined::inputs)
      .def_readonly("values", &examined::values)
      .def_readonly("gradients", &examined::gradients)
      .def_readonly("error", &examined::error)
      .def("__repr__", [](const examined& e) { return fmt::format("<{} \"{}\">", e.kind, e.name); });
  py::class_<fault>(m, "Fault")
      .def_readonly("name", &fault::name)
      .def_property_readonly("kind", [](const fault& f) { return name(f.kind); })
      .def_readonly("backward", &fault::backward)
      .def_readonly("text", &fault::text)
      .def_readonly("step", &fault::step)
      .def("__repr__", [](const fault& f) { return fmt::format("<{}: {}>", name(f.kind), f.text); });
}

void add_difference(py::module_& m) {
  py::class_<run_difference>(m, "Difference")
      .def_property_readonly(
          "first",
          [](const run_difference& d) { return d.first() == nullptr ? std::optional<std::string>{} : d.first()->name; })
      .def_property_readonly("entries",
                             [](const run_difference& d) {
                               std::vector<std::tuple<std::string, double, double>> rows;
                               for (const auto& e : d.entries) rows.emplace_back(e.name, e.values, e.gradients);
                               return rows;
                             })
      .def_readonly("only_first", &run_difference::only_first)
      .def_readonly("only_second", &run_difference::only_second)
      .def(
          "table", [](const run_difference& d, std::size_t most) { return table(d, most); }, "most"_a = 40)
      .def("__str__", [](const run_difference& d) { return table(d); });
}

void add_history(py::module_& m) {
  py::class_<history>(m, "History")
      .def_property_readonly("steps", &history::steps)
      .def_property_readonly("entries", [](const history& h) { return h.merged().entries; })
      .def_property_readonly("faults", [](const history& h) { return faults(h); })
      .def_property_readonly("numbers", [](const history& h) { return numbers(h); })
      .def("__str__", [](const history& h) { return table(h); })
      .def(
          "page", [](const history& h, const std::string& path) { write_html(h, path); }, "path"_a);
}

}  // namespace

void add_doctor(py::module_& m) {
  add_entries(m);
  add_difference(m);
  add_history(m);
  py::class_<examination>(m, "Examination")
      .def_readonly("entries", &examination::entries)
      .def_property_readonly("low", [](const examination& e) { return name(e.low); })
      .def_property_readonly("faults", [](const examination& e) { return faults(e); })
      .def_property_readonly("first_nan",
                             [](const examination& e) -> std::optional<std::string> {
                               for (const fault& f : faults(e)) {
                                 if (f.kind == fault_kind::nan || f.kind == fault_kind::infinity) return f.name;
                               }
                               return std::nullopt;
                             })
      .def(
          "worst",
          [](const examination& e, std::size_t n) {
            std::vector<examined> rows;
            for (const std::size_t i : worst(e, faults(e), n)) rows.push_back(e.entries[i]);
            return rows;
          },
          "n"_a = 10)
      .def(
          "table",
          [](const examination& e, std::optional<std::size_t> n) {
            const auto wrong = faults(e);
            return n ? table(e, wrong, worst(e, wrong, *n)) : table(e);
          },
          "n"_a = py::none())
      .def("__str__", [](const examination& e) { return table(e); })
      .def(
          "save", [](const examination& e, const std::string& path) { save(e, path); }, "path"_a)
      .def(
          "page", [](const examination& e, const std::string& path) { write_html(e, path); }, "path"_a)
      .def_static("load", &load_examination, "path"_a)
      .def_static("compare", &compared, "a"_a, "b"_a, "tolerance"_a = 1e-3);
  py::class_<examining>(m, "Examining")
      .def(py::init<std::vector<std::pair<std::string, parameter_tree::named>>, const std::string&, double, bool>(),
           "models"_a, py::kw_only(), "low"_a, "share"_a, "many_steps"_a)
      .def_property_readonly("regions", &examining::opened, py::return_value_policy::reference_internal)
      .def("finish", &examining::finish)
      .def("before_update", [](examining& e, const std::vector<at::Tensor>& parameters,
                               const std::vector<double>& rates) { e.doctor().before_update(parameters, rates); })
      .def("after_update", [](examining& e) { e.doctor().after_update(); })
      .def("note_evaluation", [](examining& e, const std::string& model) { e.doctor().note_evaluation(model); })
      .def("end_step",
           [](examining& e, const std::optional<at::Tensor>& loss, std::vector<at::Tensor> batch, std::size_t number,
              std::vector<std::string> apart) {
             e.doctor().end_step({.loss = loss.value_or(at::Tensor{}),
                                  .batch = std::move(batch),
                                  .batch_number = number,
                                  .apart = std::move(apart)});
           })
      .def("history", [](examining& e) { return e.doctor().history(); });
}

}  // namespace comp::python
