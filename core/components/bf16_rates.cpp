#include "core/components/bf16_rates.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/version.h>

#include "core/components/bf16_rows.h"
#include "core/formats/text/json.h"
#include "core/measure/libtorch.h"
#include "core/measure/user_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ditto {

namespace {

using torch::Tensor;

constexpr int64_t kTrialFewRows = 32, kTrialRows = 512, kTrialWidth = 384, kTrialHeads = 6, kTrialTokens = 256,
                  kTrialExperts = 4, kTrialChannels = 128, kTrialColumns = 16;
constexpr double kPlain = 4;      // times faster: few rows have shown it
constexpr double kSlow = 0.02;    // seconds of few rows: more of them would take too long, and say the same
constexpr double kEnough = 0.08;  // seconds of rounds
constexpr int kLeastRounds = 4;

class ByOneThread {
 public:
  ByOneThread() { at::set_num_threads(1); }
  ~ByOneThread() { at::set_num_threads(before_); }
  ByOneThread(const ByOneThread&) = delete;
  ByOneThread& operator=(const ByOneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

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

// Of this thread alone, which computes: whatever else the machine does meanwhile.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of_call(const OpTable& table, const std::string& op, const OpInputs& inputs) {
  const torch::AutoGradMode grad(true);
  Tensors leaves, roots, grads;
  for (const auto& x : inputs.tensors)
    if (x.defined() && x.requires_grad()) leaves.push_back(x);
  const double began = processor_seconds();
  for (const auto& y : table.run(op, inputs))
    if (y.requires_grad()) roots.push_back(y), grads.push_back(y.detach());
  if (!roots.empty()) torch::autograd::grad(roots, leaves, grads, false, false, true);
  return processor_seconds() - began;
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

// What of the processor and of the libraries rates follow from.
std::string machine_of_rates() {
  static const std::set<std::string> kKeys{"vendor_id", "cpu family",  "model",           "model name",
                                           "stepping",  "flags",       "Features",        "CPU implementer",
                                           "CPU part",  "CPU variant", "CPU architecture"};
  std::string text;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();)
    if (const auto end = line.find_first_of("\t:"); kKeys.count(line.substr(0, end))) text += line + "; ";
  for (const char* limit : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"})
    if (const char* value = std::getenv(limit)) text += std::string(limit) + " " + value + "; ";
  return text + at::get_cpu_capability() + "; " + report::libtorch_build() + "; Ditto " + kVersion;
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
  const ByOneThread alone;
  const auto pinned = [&](const std::string& variant) {
    return std::make_unique<OpTable>(rows, std::map<std::string, GivenOption>{{ways.op, {variant, "bf16"}}},
                                     std::function<void(const std::string&)>(), added);
  };
  const auto bf16 = pinned(ways.in_bf16), fp32 = pinned(ways.in_fp32);
  const auto& op = bf16->op(ways.op);
  struct Best {
    double bf16 = std::numeric_limits<double>::infinity(), fp32 = bf16;
  } best;
  // In turn, so that what slows the processor down slows both; what is made once is made in the first round.
  const auto time = [&](const OpInputs& inputs, int most) {
    const double began = processor_seconds();
    for (int round = 0; round < most && (round < kLeastRounds || processor_seconds() - began < kEnough); ++round) {
      best.bf16 = std::min(best.bf16, seconds_of_call(*bf16, op.name, inputs));
      best.fp32 = std::min(best.fp32, seconds_of_call(*fp32, op.name, inputs));
    }
  };
  const auto few = trial_call(op, kTrialFewRows), many = trial_call(op, kTrialRows);
  time(few, 6);
  const bool is_slow = std::max(best.bf16, best.fp32) > kSlow;
  const bool is_plain = std::max(best.bf16 / best.fp32, best.fp32 / best.bf16) > kPlain;
  if (!is_slow && !is_plain) best = {}, time(many, 15);
  rates[op.name][ways.in_bf16] = 1 / best.bf16;
  rates[op.name][ways.in_fp32] = 1 / best.fp32;
}

std::optional<bool> is_faster_in_fp32(const Rates& rates, const Ways& ways) {
  const auto of_op = rates.find(ways.op);
  if (of_op == rates.end()) return {};
  const auto bf16 = of_op->second.find(ways.in_bf16), fp32 = of_op->second.find(ways.in_fp32);
  if (bf16 == of_op->second.end() || fp32 == of_op->second.end()) return {};
  if (ways.fp32_by_scores) return !(bf16->second > kClearlyFaster * fp32->second);
  return fp32->second > kClearlyFaster * bf16->second;
}

RatesFile::RatesFile() : machine_(machine_of_rates()) {
  const auto folder = report::user_cache("rates");
  const auto hash = XXH3_64bits(machine_.data(), machine_.size());
  if (!folder.empty()) path_ = (folder / (std::to_string(hash) + ".json")).string();
}

Rates RatesFile::read() const {
  std::ifstream file(path_, std::ios::binary);
  if (path_.empty() || !file) return {};
  try {
    const auto json =
        formats::parse_json(std::string(std::istreambuf_iterator<char>(file), {}), path_, ErrorKind::data);
    if (json.at("machine").get<std::string>() != machine_) return {};
    const auto rates = json.at("calls_per_s").get<Rates>();
    for (const auto& [op, variants] : rates)
      for (const auto& [variant, rate] : variants)
        if (!std::isfinite(rate) || rate <= 0) return {};
    return rates;
  } catch (const std::exception&) {  // it is no file, no JSON, or says other things
  }
  return {};
}

void RatesFile::write(const Rates& rates) const {
  if (path_.empty()) return;
  const nlohmann::json json{{"machine", machine_}, {"calls_per_s", rates}};
  report::write_cached(path_, formats::ascii_json(json) + "\n");
}

}  // namespace ditto
