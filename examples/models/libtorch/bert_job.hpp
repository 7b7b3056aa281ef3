// SPDX-License-Identifier: Apache-2.0
// BERT on SQuAD: which words of a text answer a question, if any do. It is fine-tuned from job_options::weights, or
// trained from scratch without them, each with the learning rate for that. The batch is that of the CoMP paper, section
// 4.1.
// Source: Devlin et al. 2019, appendix A.3 (the rate of fine-tuning is one of its three)
#pragma once

#include <examples/data/read_squad.hpp>
#include <examples/data/squad_spans.hpp>
#include <libtorch/bert_weights.hpp>
#include <libtorch/job.hpp>

namespace torch_models {

/// The columns are tokens, segments and which tokens are no padding, each (N,T), and the answer's first and last token,
/// (N,2).
struct question_set {
  columns train = {}, validation = {};
  data_sets::squad questions = {};  // the questions of the validation rows
  std::vector<data_sets::squad_window> windows = {};
  std::int64_t vocabulary = 0;
  std::string source = {};
};

namespace detail {

inline columns window_columns(const std::vector<data_sets::squad_window>& windows, std::int64_t length,
                              std::int32_t pad) {
  const std::int64_t count = std::ssize(windows);
  columns tensors = {torch::full({count, length}, pad, torch::kLong), torch::zeros({count, length}, torch::kLong),
                     torch::zeros({count, length}, torch::kBool), torch::zeros({count, 2}, torch::kLong)};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& window = windows[static_cast<std::size_t>(i)];
    const std::int64_t used = std::ssize(window.tokens);
    tensors[0][i].narrow(0, 0, used).copy_(torch::tensor(torch::ArrayRef<std::int32_t>(window.tokens)));
    tensors[1][i].narrow(0, 0, used).copy_(torch::tensor(torch::ArrayRef<std::int32_t>(window.segments)));
    tensors[2][i].narrow(0, 0, used).fill_(true);
    tensors[3][i].copy_(torch::tensor({window.first, window.last}));
  }
  return tensors;
}

inline question_set read_questions(const job_options& o, std::int64_t length) {
  using namespace data_sets;
  auto [train, validation, pieces] = read_squad_folder(o.data);
  if (o.limit > 0)
    validation.questions.resize(std::min(validation.questions.size(), static_cast<std::size_t>(o.limit)));
  const window_options shape{.length = static_cast<std::size_t>(length),
                             .stride = static_cast<std::size_t>(length / 2),
                             .question = static_cast<std::size_t>(length / 6)};
  question_set set{
      .windows = windows(validation, pieces, shape), .vocabulary = pieces.size(), .source = o.data.filename().string()};
  set.train = window_columns(windows(train, pieces, shape), length, pieces.pad);
  set.validation = window_columns(set.windows, length, pieces.pad);
  set.questions = std::move(validation);
  return set;
}

/// Made-up data: the question is one token, and the answer is where the text has the same token.
inline columns made_up_questions(std::int64_t count, std::int64_t length, std::int64_t vocabulary) {
  const torch::Tensor tokens = torch::randint(3, vocabulary, {count, length});
  const torch::Tensor answer = torch::randint(3, length - 1, {count, 1});
  tokens.select(1, 0).fill_(1);
  tokens.narrow(1, 1, 1).copy_(tokens.gather(1, answer));
  tokens.select(1, 2).fill_(2);
  const torch::Tensor segments = torch::arange(length).gt(2).to(torch::kLong).expand({count, length}).contiguous();
  return {tokens, segments, torch::ones({count, length}, torch::kBool), answer.repeat({1, 2})};
}

/// (B,2,T) logits -> (B,3) doubles: for each row the first and last token of the likeliest answer, and by how much that
/// is likelier than no answer.
inline torch::Tensor best_spans(const torch::Tensor& logits, const torch::Tensor& segments, const torch::Tensor& text) {
  constexpr std::int64_t longest = 30;  // [tokens], as BERT's own evaluation
  const torch::Tensor in_text = (segments.eq(1) & text).unsqueeze(1);
  const torch::Tensor scores = logits.to(torch::kDouble).masked_fill(in_text.logical_not(), -1e8);
  const std::int64_t length = logits.size(2);
  const torch::Tensor allowed =
      torch::ones({length, length}, logits.options().dtype(torch::kBool)).triu().tril(longest - 1);
  const torch::Tensor sums = (scores.select(1, 0).unsqueeze(2) + scores.select(1, 1).unsqueeze(1))
                                 .masked_fill(allowed.logical_not(), -1e9)
                                 .flatten(1);
  const auto [best, at] = sums.max(1);
  const torch::Tensor none = logits.select(2, 0).to(torch::kDouble).sum(1);
  return torch::stack(
             {at.div(length, "floor").to(torch::kDouble), at.remainder(length).to(torch::kDouble), best - none}, 1)
      .cpu();
}

/// Returns: the logits of all validation rows, (N,2,T) in FP32.
inline torch::Tensor predicted_logits(bert_for_spans net, const job& of) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& rows :
       torch::arange(of.validation[0].size(0)).to(of.validation[0].device()).split(of.batch)) {
    const columns batch = pick(of, of.validation, rows);
    parts.push_back(net->forward(batch[0], batch[1], batch[2]).to(torch::kCPU, torch::kFloat));
  }
  return torch::cat(parts).contiguous();
}

/// Returns: the share of rows whose answer is predicted exactly.
inline double exact_spans(const columns& data, const torch::Tensor& logits) {
  return best_spans(logits, data[1].cpu(), data[2].cpu())
      .narrow(1, 0, 2)
      .to(torch::kLong)
      .eq(data[3].cpu())
      .all(1)
      .to(torch::kDouble)
      .mean()
      .item<double>();
}

}  // namespace detail

/// The sizes are base (the paper's), small (the default) and tiny.
inline job bert_job(const job_options& o) {
  torch::manual_seed(o.seed);
  bert_options shape = o.size == "base" ? bert_base() : o.size == "tiny" ? bert_tiny() : bert_small();
  const std::int64_t length = o.size == "base" ? 384 : o.size == "tiny" ? 64 : 192;
  auto set = std::make_shared<question_set>();
  if (o.data.empty()) {
    const std::int64_t count = detail::chosen(o.limit, 512);
    set->vocabulary = o.size == "base" ? shape.vocabulary : 1000;
    set->train = detail::made_up_questions(count, length, set->vocabulary);
    set->validation = detail::made_up_questions(std::max<std::int64_t>(count / 5, 1), length, set->vocabulary);
    set->source = "made-up questions";
  } else {
    *set = detail::read_questions(o, length);
  }
  shape.vocabulary = set->vocabulary;
  bert_for_spans net(shape);
  if (!o.weights.empty()) read_bert_weights(net, o.weights.string());
  net->to(o.device);
  job task{.name = "bert",
           .modules = {{"net", net.ptr()}},
           .batch = detail::chosen(o.batch, 16),
           .score_name = "f1",
           .clip_norm = 1};
  task.train = detail::on_device(detail::first_rows(set->train, o.limit), o.device);
  task.validation = detail::on_device(set->validation, o.device);
  task.description =
      fmt::format("bert of {} layers, width {}, {}on {} windows of {} tokens of {}", shape.layers, shape.width,
                  o.weights.empty() ? "" : "pre-trained, ", task.examples(), length, set->source);
  task.optimizers = {std::make_shared<torch::optim::AdamW>(
      net->parameters(),
      torch::optim::AdamWOptions(detail::rate(o, o.weights.empty() ? 1e-4 : 3e-5)).weight_decay(0.01))};
  task.phases = {{"forward", [net](const columns& rows) mutable {
                    return torch::cross_entropy_loss(net->forward(rows[0], rows[1], rows[2]).flatten(0, 1),
                                                     rows[3].flatten());
                  }}};
  task.score = [net, set](const job& of) {
    const torch::Tensor logits = detail::predicted_logits(net, of);
    if (set->windows.empty()) return detail::exact_spans(of.validation, logits);
    return data_sets::span_f1(set->questions, set->windows,
                              {logits.data_ptr<float>(), static_cast<std::size_t>(logits.numel())});
  };
  return task;
}

}  // namespace torch_models
