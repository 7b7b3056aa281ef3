// SPDX-License-Identifier: Apache-2.0
// What a plan file says, before it is held against a model (plan_file.hpp): for who knows a model's operators only as
// they come by.
#pragma once

#include <comp/core/execution.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/plan.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// At least one of letters and operators is there, and they agree.
struct plan_listing {
  struct entry {
    std::string name, kind;
    precision chosen = precision::fp32;
    bool hands_on_fp32 = false;
  };
  std::string file;
  std::optional<comp::plan> letters = {};
  std::optional<std::vector<entry>> operators = {};
  std::optional<std::string> fingerprint = {};
  std::optional<comp::hardware> made_for = {};
  comp::execution execution = {};

  /// Throws: `plan_error`, saying what differs, unless operator `i` of a model may be called so.
  template <class Json = json>
  void require_operator(std::size_t i, const std::string& name, const std::string& kind) const;
  /// What it gives operator `i`. Requires: there is one.
  precision chosen(std::size_t i) const { return operators ? (*operators)[i].chosen : (*letters)[i]; }
  std::size_t size() const { return operators ? operators->size() : letters->size(); }
  bool runs_autocast() const { return letters && letters->runs_autocast(); }
};

namespace detail {

inline constexpr std::size_t plan_file_limit = std::size_t{64} << 20;

/// Equal, or equal once bytes that are no UTF-8 are replaced.
template <class Json>
bool same_text(const std::string& ours, const std::string& theirs) {
  return ours == theirs || json_text<Json>(ours) == json_text<Json>(theirs);
}

/// The letters and the operator list of a file are two ways to say one plan.
inline void require_agree(const plan_listing& from) {
  if (!from.letters || !from.operators) return;
  require<plan_error>(from.letters->size() == from.operators->size(),
                      "\"{}\" contradicts itself: its plan has {} operators, its operator list {} (they must agree): "
                      "edit one of them and delete the other",
                      from.file, from.letters->size(), from.operators->size());
  for (std::size_t i = 0; i < from.letters->size(); ++i) {
    const plan_listing::entry& listed = (*from.operators)[i];
    require<plan_error>((*from.letters)[i] == listed.chosen,
                        "\"{}\" contradicts itself: its plan gives operator {} (\"{}\") {}, its operator list {} (they "
                        "must agree): edit one of them and delete the other",
                        from.file, i, listed.name, name((*from.letters)[i]), name(listed.chosen));
  }
}

/// The fields that only tell, checked all the same.
template <class Json>
void check_facts(const basic_json_reader<Json>& from) {
  from["comp_plan"].integer(1, 1);
  if (const auto version = from.find("comp_version")) version->text();
  if (const auto speedup = from.find("speedup")) speedup->seconds();
  if (const auto bounds = from.find("speedup_bounds")) interval_from(*bounds);
  if (const auto searched = from.find("precisions")) {
    searched->each([](const basic_json_reader<Json>& p) {
      if (!precision_of(std::string_view{p.text()})) p.fail("the name of a precision");
    });
  }
}

}  // namespace detail

template <class Json>
void plan_listing::require_operator(std::size_t i, const std::string& name, const std::string& kind) const {
  require<plan_error>(i < size(),
                      "\"{}\" is for a model with {} operators, this one has more (the first that the file lacks is "
                      "operator {}, {} ({})): use a plan that was found for this model, or search again",
                      file, size(), i, in_quotes<Json>(name), in_quotes<Json>(kind));
  if (!operators) return;
  const entry& listed = (*operators)[i];
  require<plan_error>(detail::same_text<Json>(name, listed.name) && detail::same_text<Json>(kind, listed.kind),
                      "\"{}\" is for another model: its operator {} is {} ({}), the model's is {} ({}) (names and "
                      "kinds must agree): use a plan that was found for this model, or search again",
                      file, i, in_quotes<Json>(listed.name), in_quotes<Json>(listed.kind), in_quotes<Json>(name),
                      in_quotes<Json>(kind));
}

/// What the text of a plan file says; `file` names it in errors.
/// Throws: `file_error` when it cannot be understood, `plan_error` when it contradicts itself.
template <class Json = json>
plan_listing read_listing(std::string_view text, const std::string& file) {
  const json_place place{file, 0, "save the plan again with comp::save"};
  const Json document = parse_json<Json>(text, place);
  const basic_json_reader<Json> from{document, place};
  from.only({"comp_plan", "comp_version", "plan", "operators", "model", "hardware", "precisions", "speedup",
             "speedup_bounds", "execution"});
  detail::check_facts(from);
  plan_listing found{.file = file};
  if (const auto letters = from.find("plan")) found.letters = plan_from(*letters);
  if (const auto list = from.find("operators")) {
    found.operators.emplace();
    list->each([&](const basic_json_reader<Json>& op) {
      op.only({"name", "kind", "precision", "hands_on_fp32"});
      const auto chosen = precision_of(std::string_view{op["precision"].text()});
      if (!chosen) op["precision"].fail("one of fp32, tf32, bf16, fp16, fp8_e4m3, fp8_e5m2");
      const auto hands_on = op.find("hands_on_fp32");
      found.operators->push_back({op["name"].text(), op["kind"].text(), *chosen, hands_on && hands_on->boolean()});
    });
  }
  if (!found.letters && !found.operators) from.fail("an object with field \"plan\" or \"operators\"");
  if (const auto model = from.find("model")) found.fingerprint = (*model)["fingerprint"].text();
  if (const auto machine = from.find("hardware")) found.made_for = hardware_from(*machine);
  if (const auto how = from.find("execution")) found.execution = execution_from(*how);
  detail::require_agree(found);
  return found;
}

/// Throws: `file_error` when the file cannot be read or understood, `plan_error` when it contradicts itself.
template <class Json = json>
plan_listing load_listing(const std::string& path) {
  return read_listing<Json>(detail::read_file(path, detail::plan_file_limit), path);
}

}  // namespace comp
