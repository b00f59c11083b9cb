#include "core/components/bf16_rates.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>

#include "core/components/bf16_rows.h"

namespace ditto {

namespace {

using torch::Tensor;

constexpr int64_t kTrialFewRows = 32, kTrialRows = 512, kTrialWidth = 384, kTrialHeads = 6, kTrialTokens = 256,
                  kTrialExperts = 4, kTrialChannels = 128, kTrialColumns = 16;
constexpr double kPlain = 4;    // times faster: few rows have shown it
constexpr double kSlow = 0.02;  // seconds of few rows: more of them would take too long, and say the same

Tensor bf16_numbers(const std::vector<int64_t>& shape, double scale) {
  const torch::NoGradGuard no_grad;
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return (torch::arange(count, torch::kFloat).sin() * scale).view(shape).to(torch::kBFloat16).requires_grad_(true);
}

// A call as layers of a transformer of DiT-S's width make them, or a small UNet's, whose places are the rows; of other
// ops their largest test case.
OpInputs trial_call(const Op& op, int64_t rows) {
  const double scale = 1 / std::sqrt(static_cast<double>(kTrialWidth));
  const auto weight = [&](std::vector<int64_t> shape) { return bf16_numbers(shape, scale); };
  if (op.name == "linear" || op.name == "linear_gelu_tanh")
    return {
        {bf16_numbers({1, rows, kTrialWidth}, 1), weight({kTrialWidth, kTrialWidth}), bf16_numbers({kTrialWidth}, 1)}};
  if (op.name == "attention") {
    const std::vector<int64_t> heads{std::max<int64_t>(1, rows / kTrialTokens), std::min(rows, kTrialTokens),
                                     kTrialHeads, kTrialWidth / kTrialHeads};
    return {{bf16_numbers(heads, 1), bf16_numbers(heads, 1), bf16_numbers(heads, 1)}};
  }
  if (op.name == "experts")
    return {{bf16_numbers({rows, kTrialWidth}, 1), weight({kTrialExperts, kTrialWidth, kTrialWidth}),
             bf16_numbers({kTrialExperts, kTrialWidth}, 1), weight({kTrialExperts, kTrialWidth, kTrialWidth}),
             bf16_numbers({kTrialExperts, kTrialWidth}, 1),
             torch::full({kTrialExperts}, rows / kTrialExperts, torch::kLong), torch::arange(rows, torch::kLong)},
            {{"tokens", rows}}};
  if (op.name == "conv_transposed") {
    const int64_t half = kTrialChannels / 2;  // of a kernel that doubles the sides
    return {{bf16_numbers({1, half, rows / kTrialColumns, kTrialColumns}, 1),
             bf16_numbers({half, half, 4, 4}, 1 / std::sqrt(4.0 * static_cast<double>(half))), bf16_numbers({half}, 1)},
            {{"stride", std::vector<int64_t>{2, 2}}, {"padding", std::vector<int64_t>{1, 1}}}};
  }
  if (op.name == "conv") {
    const std::vector<int64_t> ones{1, 1};
    return {{bf16_numbers({1, kTrialChannels, rows / kTrialColumns, kTrialColumns}, 1),
             bf16_numbers({kTrialChannels, kTrialChannels, 3, 3}, 1 / std::sqrt(9.0 * kTrialChannels)),
             bf16_numbers({kTrialChannels}, 1)},
            {{"stride", ones}, {"before", ones}, {"after", ones}}};
  }
  OpInputs largest;
  int64_t most = -1;
  for (const auto& one : op.cases) {
    auto inputs = one.inputs(torch::kBFloat16);
    int64_t count = 0;
    for (const auto& x : inputs.tensors) count += x.defined() ? x.numel() : 0;
    if (count > most) most = count, largest = std::move(inputs);
  }
  return largest;
}

void compute_once(const OpTable& table, const std::string& op, const OpInputs& inputs) {
  const torch::AutoGradMode grad(true);
  Tensors leaves, roots, grads;
  for (const auto& x : inputs.tensors)
    if (x.defined() && x.requires_grad()) leaves.push_back(x);
  for (const auto& y : table.run(op, inputs))
    if (y.requires_grad()) roots.push_back(y), grads.push_back(y.detach());
  if (!roots.empty()) torch::autograd::grad(roots, leaves, grads, false, false, true);
}

std::vector<KernelRow> without_fp32(std::vector<KernelRow> rows) {
  std::erase_if(rows, is_in_fp32);
  return rows;
}

// Of the rows that compute the op in fp32, the one with the highest score for this call; empty: none can.
std::string best_in_fp32(const std::vector<KernelRow>& rows, const std::string& op, const OpInputs& inputs) {
  const OpCall call{op, inputs, torch::kBFloat16, torch::kCPU, true};
  std::string best;
  int most = 0;
  for (const auto& row : rows)
    if (row.op == op && is_in_fp32(row))
      if (const int score = row.score(call); score > most) most = score, best = row.variant;
  return best;
}

}  // namespace

std::vector<Ways> find_ways(const std::vector<KernelRow>& rows, const std::vector<Op>& added) {
  const OpTable all(rows, {}, {}, added), others(without_fp32(rows), {}, {}, added);
  std::set<std::string> ops;
  for (const auto& row : rows)
    if (is_in_fp32(row) && all.op(row.op).leader.empty()) ops.insert(row.op);
  const torch::AutoGradMode grad(true);
  std::vector<Ways> found;
  for (const auto& op : ops) {
    const auto inputs = trial_call(all.op(op), kTrialFewRows);
    if (inputs.tensors.empty()) continue;
    Ways ways{op, {}, best_in_fp32(rows, op, inputs), false};
    if (ways.in_fp32.empty()) continue;
    const auto chosen = [&](const OpTable& table) {
      table.run(op, inputs);
      const auto made = table.chosen();
      return std::find_if(made.begin(), made.end(), [&](const auto& one) { return one.first.starts_with(op + " "); })
          ->second;
    };
    ways.in_bf16 = chosen(others);
    ways.fp32_by_scores = chosen(all) == ways.in_fp32;
    found.push_back(std::move(ways));
  }
  return found;
}

void measure(Rates& rates, const Ways& ways, const std::vector<KernelRow>& rows, const std::vector<Op>& added) {
  const auto pinned = [&](const std::string& variant) {
    return std::make_unique<OpTable>(rows, std::map<std::string, GivenOption>{{ways.op, {variant, "bf16"}}},
                                     std::function<void(const std::string&)>(), added);
  };
  const auto bf16 = pinned(ways.in_bf16), fp32 = pinned(ways.in_fp32);
  const auto& op = bf16->op(ways.op);
  const auto time = [&](const OpInputs& inputs, int most) {
    return fastest({[&] { compute_once(*bf16, op.name, inputs); }, [&] { compute_once(*fp32, op.name, inputs); }},
                   most);
  };
  auto best = time(trial_call(op, kTrialFewRows), 6);
  const bool is_slow = std::max(best[0], best[1]) > kSlow;
  const bool is_plain = std::max(best[0] / best[1], best[1] / best[0]) > kPlain;
  if (!is_slow && !is_plain) best = time(trial_call(op, kTrialRows), 15);
  rates[op.name][ways.in_bf16] = 1 / best[0];
  rates[op.name][ways.in_fp32] = 1 / best[1];
}

std::optional<bool> is_faster_in_fp32(const Rates& rates, const Ways& ways) {
  const auto of_op = rates.find(ways.op);
  if (of_op == rates.end()) return {};
  const auto bf16 = of_op->second.find(ways.in_bf16), fp32 = of_op->second.find(ways.in_fp32);
  if (bf16 == of_op->second.end() || fp32 == of_op->second.end()) return {};
  if (ways.fp32_by_scores) return !(bf16->second > kClearlyFaster * fp32->second);
  return fp32->second > kClearlyFaster * bf16->second;
}

}  // namespace ditto
