// SPDX-License-Identifier: Apache-2.0
// Translates C++'s messages for Python by replacing substrings: what they tell a reader to set or to call has another
// name there, or none. Change a line here with the message that it is of; add one when a message that Python can show
// names something of C++.
#pragma once

#include <algorithm>
#include <array>
#include <comp/comp.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::python {

namespace detail {

using words = std::pair<std::string_view, std::string_view>;

/// Pairs of words of C++ and of Python. If one contains another, the longer one comes first.
inline constexpr std::array in_cpp_and_python{
    words{"with a higher settings.race.fp32_rounds", "with a higher race={\"fp32_rounds\": ...}"},
    words{"with a higher settings.race.contest_rounds", "with a higher race={\"contest_rounds\": ...}"},
    words{"set protect_blocks to false", "give protect_blocks=False"},
    words{"raise replay_options::limit_bytes, or use indexed_batches", "raise keep_bytes"},
    words{"set planned_settings::forced", "give forced=True"},
    words{"; measure here with planned_choices::measured", ""},
    words{"evaluate under program::evaluate(), or set on_mismatch::fp32",
          "evaluate under torch.no_grad(), or give otherwise=\"fp32\""},
    words{"set on_mismatch::fp32", "give otherwise=\"fp32\""},
    words{"save the plan again with comp::save", "save the plan again with found.save(path)"},
    words{"delete the line, or start again with ledger::mode::restart or another file",
          "delete the line, or give another file"},
    words{"or ledger::mode::restart to overwrite it", "or delete this one"},
    words{
        "(a comp::sample's loss is NaN until it is set, and += leaves it NaN; plans are judged against FP32's losses): "
        "begin with loss = 0, or look at the data and the learning rate",
        "(plans are judged against FP32's losses): look at the data and the learning rate, or at what comp.doctor "
        "says of a step"},
    words{"by the seconds of run_batch(), ", "by what each batch took, "},
    words{
        "look at what is timed (sample.seconds is the wall time of the whole batch, data loading included), or leave 0 "
        "and comp takes the time itself",
        "search again when nothing else runs on the machine"},
    words{"(this backend has no validate()): give it double validate(), or", "(there is no score): give score=..., or"},
    words{"check validate()", "check score"},
    words{"by its base(), set() or random()", "by its base and set()"},
    words{"(batches_per_epoch() says ", "(len(data) or batches_per_epoch says "},
    words{"give the number that run_epoch() trains", "give batches_per_epoch"},
    words{"look at what the trainer does there", "look at what the step does there"},
    words{"what sample.loss is set to", "what the step returns"},
    words{"(the trainer does not say what a batch needs): set sample.peak_bytes",
          "(another allocator than torch's is set, and is not measured): leave memory_limit out"},
    words{"(so set_precision() has no effect in it): look at what it does with plan[i], or leave ",
          "(so it has no effect in this step): look whether the forward is inside `with plan:`, or leave "},
    words{"out of supported_precisions()", "out of precisions"},
    words{"after restore() the same batch", "put back, the same batch"},
    words{": save and restore weights, optimizer, random generators and the place in the data",
          ": give the search state=[...] with what else the step changes"},
    words{"call backward() for the same losses in each step", "return the same losses in each step"},
    words{"call backward() of the step", "return the loss"},
    words{"a trainer, which compares plans by their times,", "a search, which compares plans by their times,"},
    words{"planned_region{models, \"plan.json\"}", "comp.plan(\"plan.json\", model)"},
    words{"; the trainer is in its last good state", "; the training is in its last good state"},
    words{"call the model inside step.forward([&] { ... })", "call the model inside `with plan:`"},
};

inline void replace(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// "settings.budget" is the keyword budget.
inline void name_keywords(std::string& text) {
  constexpr std::string_view prefix = "settings.";
  for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at + 1)) {
    const std::size_t after = at + prefix.size();
    if (after < text.size() && text[after] >= 'a' && text[after] <= 'z') text.erase(at, prefix.size());
  }
}

}  // namespace detail

inline std::string in_python(std::string text) {
  for (const auto& [cpp, python] : detail::in_cpp_and_python) detail::replace(text, cpp, python);
  detail::name_keywords(text);
  return text;
}
inline void put_in_python(sample& of) { of.message = in_python(std::move(of.message)); }
inline void put_in_python(std::vector<std::string>& sentences) {
  for (std::string& each : sentences) each = in_python(std::move(each));
}
inline void put_in_python(outcome& of) {
  put_in_python(of.warnings);
  put_in_python(of.baseline);
  for (trial& each : of.trials) put_in_python(each.sample);
}
inline void put_in_python(training_result& of) {
  put_in_python(of.warnings);
  for (sample& each : of.epochs) put_in_python(each);
  for (training_fallback& each : of.fallbacks) each.message = in_python(std::move(each.message));
}

/// An observer of C++ that gets sentences in Python's words.
template <class O>
class in_python_words : public O {
 public:
  using O::O;
  void warned(const std::string& sentence) {
    if constexpr (requires(O & o) { o.warned(sentence); }) O::warned(in_python(sentence));
  }
  void search_done(const outcome& found) {
    outcome said = found;
    put_in_python(said);
    if constexpr (requires(O & o) { o.search_done(said); }) O::search_done(said);
  }
};

}  // namespace comp::python
