// Claim (sampling): Every sampler with every schedule here: each pair makes samples of known data, or is refused
// with a reason. The table in docs/sampling.md is what this test finds.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include <ditto/sampler.h>
#include <support/open_plugin.h>

using ditto::test::make_plugin;
using torch::Tensor;

namespace {

namespace fs = std::filesystem;
using Options = std::map<std::string, ditto::OptionValue>;

// Ids of the kind's libraries here, in order.
std::set<std::string> ids_in(const std::string& folder) {
  std::set<std::string> ids;
  for (const auto& file : fs::directory_iterator(fs::path(ditto::test::plugin_folder()) / folder))
    if (file.path().extension() == ".so") ids.insert(file.path().stem().string().substr(3));
  return ids;
}

// Where the defaults would hide what a sampler needs.
const std::map<std::string, Options> kOptions{{"heun_edm", {{"s_churn", 4.0}}}};

// The best prediction for data N(0.3, 0.5^2).
Tensor predict(const ditto::Scheduler& scheduler, const Tensor& x, double t) {
  const auto [alpha, sigma] = level(scheduler, t);
  const double total = alpha * alpha * 0.25 + sigma * sigma;
  const auto clean = 0.3 + alpha * 0.25 / total * (x - alpha * 0.3), noise = sigma / total * (x - alpha * 0.3);
  const auto target = scheduler.target(clean, noise, torch::full({x.size(0)}, t, at::kDouble));
  return scheduler.out_channels(x.size(1)) == x.size(1) ? target : torch::cat({target, torch::zeros_like(x)}, 1);
}

Tensor draws(int64_t seed) {
  return torch::randn({1, 1, 64, 64}, at::detail::createCPUGenerator(static_cast<uint64_t>(seed)), at::kDouble);
}

// Why the pair is refused; empty: it makes samples of that mean and deviation.
std::string refusal(const std::string& sampler_id, const std::string& scheduler_id) {
  const auto scheduler = make_plugin<ditto::Scheduler>("schedulers", scheduler_id);
  const auto options = kOptions.find(sampler_id);
  const auto sampler =
      make_plugin<ditto::Sampler>("samplers", sampler_id, options == kOptions.end() ? Options{} : options->second);
  if (const auto why = sampler->refuses(*scheduler); !why.empty()) return why;
  const int64_t steps = sampler->adaptive() ? 200 : 60;
  const ditto::SamplingRequest request{*scheduler,
                                       [&](const Tensor& x, double t) { return predict(*scheduler, x, t); },
                                       draws(0) * scheduler->start_scale(scheduler->time_grid(steps).front()),
                                       steps,
                                       [](int64_t step) { return draws(step + 1); },
                                       {}};
  const auto made = sampler->sample(request);
  const double mean = made.mean().item<double>(), deviation = made.std().item<double>();
  CHECK_MESSAGE(std::abs(mean - 0.3) < 0.1, sampler_id << " with " << scheduler_id << ": mean " << mean);
  CHECK_MESSAGE(std::abs(deviation - 0.5) < 0.1, sampler_id << " with " << scheduler_id << ": deviation " << deviation);
  return {};
}

// The table, and below it each reason once.
std::string table() {
  const auto schedulers = ids_in("schedulers");
  std::string text = "| |", lines = "|---|";
  for (const auto& id : schedulers) text += " `" + id + "` |", lines += "---|";
  text += "\n" + lines + "\n";
  std::vector<std::string> reasons;
  for (const auto& sampler : ids_in("samplers")) {
    text += "| `" + sampler + "` |";
    for (const auto& scheduler : schedulers) {
      const auto why = refusal(sampler, scheduler);
      const auto known = std::find(reasons.begin(), reasons.end(), why);
      const auto number = std::to_string(known - reasons.begin() + 1);
      if (!why.empty() && known == reasons.end()) reasons.push_back(why);
      text += why.empty() ? " runs |" : " refused (" + number + ") |";
    }
    text += "\n";
  }
  for (size_t i = 0; i < reasons.size(); ++i) text += "\n(" + std::to_string(i + 1) + ") " + reasons[i] + "\n";
  return text;
}

}  // namespace

TEST_CASE("each sampler makes samples with each schedule or refuses it, as docs/sampling.md says") {
  const auto page = ditto::test::read_text(std::string(DITTO_SOURCE_DIR) + "/docs/sampling.md");
  const auto found = table();
  CHECK_MESSAGE(page.find(found) != std::string::npos, "docs/sampling.md has another table than:\n" << found);
}
