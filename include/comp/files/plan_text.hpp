// SPDX-License-Identifier: Apache-2.0
// Formats and parses plan files (plan_file.hpp).
#pragma once

#include <algorithm>
#include <comp/core/linkage.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/plan_file.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// Returns what a plan file says of a plan with its model and machine, by which loading finds out whether it fits.
inline plan_listing listing_of(const plan& p, const op_graph& graph, const hardware& machine) {
  require_fits(p, graph);
  plan_listing listing{.letters = p,
                       .operators = std::vector<plan_listing::entry>{},
                       .model = plan_listing::model_info{fmt::format("{:016x}", graph.fingerprint()), graph.size()},
                       .made_for = machine};
  for (std::size_t i = 0; i < p.size(); ++i) {
    const op_info& op = graph[i];
    const bool gives_low = !op.outputs.empty() && is_low(op.outputs.front().dtype);
    const precision gives = gives_low ? op.outputs.front().dtype : precision::fp32;
    listing.operators->push_back({op.name, op.kind, p[i], op.as_written, op.hands_on_fp32, gives, op.author});
  }
  return listing;
}

/// Returns the text of a plan file, with a line for each field and each operator, so that people and diffs can read it.
inline std::string plan_text(const plan_listing& listing) {
  std::string text = "{";
  const json document = json_of(listing);
  for (auto field = document.begin(); field != document.end(); ++field) {
    text += fmt::format("{}\n  {}: ", field == document.begin() ? "" : ",", json_text(field.key()));
    if (field.key() != "operators") {
      text += json_text(field.value());
      continue;
    }
    const char* between = "[";
    for (const json& op : field.value()) text += fmt::format("{}\n    {}", std::exchange(between, ","), json_text(op));
    text += field.value().empty() ? "[]" : "\n  ]";
  }
  return text + "\n}\n";
}

/// Throws: `plan_error`, naming the first operator that only one of them has, if file and `graph` differ in length.
inline void require_count(const plan_listing& from, const op_graph& graph) {
  if (from.size() == graph.size()) return;
  const auto words = [](const std::string& name, const std::string& kind) {
    return fmt::format("{} ({})", in_quotes(name), in_quotes(kind));
  };
  const bool lacks = from.size() < graph.size();
  const std::size_t i = std::min(from.size(), graph.size());
  const std::string first =
      lacks ? fmt::format("the first that the file lacks is operator {}, {}", i, words(graph[i].name, graph[i].kind))
      : from.operators ? fmt::format("the first that the model lacks is operator {}, {}", i,
                                     words((*from.operators)[i].name, (*from.operators)[i].kind))
                       : std::string{"they must agree"};
  throw plan_error{
      fmt::format("\"{}\" is for a model with {} operators, this one has {} ({}): use a plan that was found for this "
                  "model, or search again",
                  from.file, from.size(), graph.size(), first)};
}

COMP_INLINE void warn_of_hardware(const hardware& made_for, const hardware& here, loaded_plan& to) {
  const auto warn = [&](std::string_view what, const auto& there, const auto& now) {
    if (there == now) return;
    to.warnings.push_back(
        fmt::format("the plan was found on other hardware: {} was {}, here it is {} (another plan may "
                    "be faster here): search again when it matters",
                    what, there, now));
  };
  const auto features = [](const hardware& h) {
    return h.isa.empty() ? std::string{"none known"} : in_quotes(joined(h.isa, " "), 200);
  };
  warn("the device", in_quotes(made_for.name), in_quotes(here.name));
  warn("its kind", name(made_for.kind), name(here.kind));
  warn("its compute capability", made_for.compute_capability, here.compute_capability);
  warn("its instruction set", features(made_for), features(here));
  warn("the number of threads", made_for.threads, here.threads);
}

/// True for equal texts, and for texts that are equal once bytes that are no UTF-8 are replaced, as they were when the
/// file was written.
inline bool same_text(const std::string& ours, const std::string& theirs) {
  return ours == theirs || json_text(ours) == json_text(theirs);
}

/// Throws: `plan_error` if the letters of a file and its operator list are not the same plan.
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

COMP_INLINE void keep_authors_choices(loaded_plan& to, const op_graph& graph, const std::string& file) {
  std::size_t kept = 0, first = 0;
  for (std::size_t i = 0; i < to.plan.size(); ++i) {
    if (graph[i].author == author_choice::none || to.plan[i] == graph[i].as_written) continue;
    if (kept++ == 0) first = i;
    to.plan[i] = graph[i].as_written;
  }
  if (kept == 0) return;
  to.warnings.push_back(
      fmt::format("\"{}\" lowers {} operators that no plan changes, first \"{}\" ({}): they run as the model's author "
                  "wrote them; where a plan is to have them, {}",
                  file, kept, graph[first].name, reason(graph[first].author),
                  by_language("set protect_blocks to false", "give protect_blocks=False")));
}

}  // namespace detail

COMP_INLINE void plan_listing::require_operator(std::size_t i, const std::string& name, const std::string& kind) const {
  require<plan_error>(i < size(),
                      "\"{}\" is for a model with {} operators, this one has more (the first that the file lacks is "
                      "operator {}, {} ({})): use a plan that was found for this model, or search again",
                      file, size(), i, in_quotes(name), in_quotes(kind));
  if (!operators) return;
  const entry& listed = (*operators)[i];
  require<plan_error>(detail::same_text(name, listed.name) && detail::same_text(kind, listed.kind),
                      "\"{}\" is for another model: its operator {} is {} ({}), the model's is {} ({}) (names and "
                      "kinds must agree): use a plan that was found for this model, or search again",
                      file, i, in_quotes(listed.name), in_quotes(listed.kind), in_quotes(name), in_quotes(kind));
}

COMP_INLINE plan_listing read_listing(std::string_view text, const std::string& file) {
  const json_place place{file, 0, save_again()};
  const json document = parse_json(text, place);
  const json_reader from{document, place};
  plan_listing listing = read_json<plan_listing>(from);
  listing.file = file;
  if (!listing.letters && !listing.operators) from.fail("an object with field \"plan\" or \"operators\"");
  detail::require_agree(listing);
  for (const later_plan& next : listing.later) {
    require<plan_error>(next.plan.size() == listing.size(),
                        "\"{}\" contradicts itself: its plan has {} operators, that from batch {} on {} (they must "
                        "agree): give each operator a letter",
                        file, listing.size(), next.batch, next.plan.size());
  }
  return listing;
}

COMP_INLINE plan_listing plan_listing::at(std::size_t batch) const {
  plan_listing now = *this;
  now.later.clear();
  for (const later_plan& next : later) {
    if (next.batch > batch) break;
    now.letters = next.plan;
    for (std::size_t i = 0; operators && i < size(); ++i) (*now.operators)[i].chosen = next.plan[i];
  }
  return now;
}

COMP_INLINE plan_listing load_listing(const std::string& path) {
  return read_listing(detail::read_file(path, detail::plan_file_limit), path);
}

COMP_INLINE void save(const plan& p, const std::string& path) {
  detail::write_file(path, detail::plan_text({.letters = p}));
}

COMP_INLINE void save(const plan& p, const op_graph& graph, const hardware& machine, const std::string& path) {
  detail::write_file(path, detail::plan_text(detail::listing_of(p, graph, machine)));
}

COMP_INLINE void save_later(const std::string& from, const std::vector<later_plan>& later, const std::string& to) {
  plan_listing listing = load_listing(from);
  listing.later = later;
  const std::string text = detail::plan_text(listing);
  (void)read_listing(text, from);
  detail::write_file(to, text);
}

COMP_INLINE loaded_plan fitted(const plan_listing& from, const op_graph& graph, const hardware* here) {
  // Names and kinds are compared before the fingerprint, because only they can say which operator differs.
  if (from.operators) {
    for (std::size_t i = 0; i < std::min(from.size(), graph.size()); ++i)
      from.require_operator(i, graph[i].name, graph[i].kind);
  }
  detail::require_count(from, graph);
  std::vector<precision> choices;
  for (std::size_t i = 0; i < from.size(); ++i) choices.push_back(from.chosen(i));
  loaded_plan result{.plan = from.run_as_listed(plan{std::move(choices)}), .execution = from.execution};
  if (from.model) {
    const std::string ours = fmt::format("{:016x}", graph.fingerprint());
    require<plan_error>(
        from.model->fingerprint == ours,
        "\"{}\" is for another model: its fingerprint is {}, the model's \"{}\" (the operators agree, so "
        "shapes, edges or what is choosable changed): search again, or use the same batch size and "
        "sizes as then",
        from.file, in_quotes(from.model->fingerprint), ours);
  } else {
    result.warnings.push_back(
        fmt::format("\"{}\" does not say which model it is for: only the number of operators was "
                    "checked",
                    from.file));
  }
  for (const later_plan& next : from.later) {
    // The author's choices hold in later plans, too; one warning is enough.
    loaded_plan kept{.plan = next.plan};
    detail::keep_authors_choices(kept, graph, from.file);
    result.later.push_back({next.batch, std::move(kept.plan), next.reason});
  }
  detail::keep_authors_choices(result, graph, from.file);
  require_fits(result.plan, graph);
  require_in_order(result.later, graph);
  if (!from.made_for) return result;
  result.made_for = *from.made_for;
  if (here != nullptr) detail::warn_of_hardware(result.made_for, *here, result);
  return result;
}

COMP_INLINE loaded_plan read_plan(std::string_view text, const op_graph& graph, const hardware* here,
                                  const std::string& file) {
  return fitted(read_listing(text, file), graph, here);
}

COMP_INLINE loaded_plan load_plan(const std::string& path, const op_graph& graph, const hardware* here) {
  return fitted(load_listing(path), graph, here);
}

}  // namespace comp
