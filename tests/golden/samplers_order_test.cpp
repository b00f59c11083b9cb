// The samplers' orders of accuracy, measured on a mixture of two Gaussians in one dimension: its denoiser is known, and
// so is its flow, which keeps every point's share of the mass below it.
//
// On EDM's grid from 20 to 0.02, whose last step, to no noise, all of them take alike: as the denoiser's answer. With
// DITTO_SAMPLERS_ORDER=FILE the errors are written there, of which samplers_order.py draws
// docs/generated/samplers_order.svg.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>

#include <ditto/sampler.h>
#include <support/open_plugin.h>

using ditto::test::make_plugin;
using torch::Tensor;

namespace {

using Options = std::map<std::string, ditto::OptionValue>;
constexpr double kFirst = 20, kLast = 0.02;

struct Mixture {
  struct Part {
    double share, mean, deviation;
  };
  Part parts[2] = {{0.3, -0.8, 0.3}, {0.7, 0.6, 0.4}};

  // E[x_0 | x] at noise sigma.
  double clean(double x, double sigma) const {
    double total = 0, sum = 0;
    for (const auto& [share, mean, deviation] : parts) {
      const double variance = deviation * deviation + sigma * sigma, apart = x - mean;
      const double mass = share / std::sqrt(variance) * std::exp(-0.5 * apart * apart / variance);
      total += mass;
      sum += mass * (mean + deviation * deviation / variance * apart);
    }
    return sum / total;
  }
  double below(double x, double sigma) const {
    double sum = 0;
    for (const auto& [share, mean, deviation] : parts)
      sum += share * 0.5 * std::erfc((mean - x) / std::sqrt(2 * (deviation * deviation + sigma * sigma)));
    return sum;
  }
  // Where the flow takes x from kFirst to kLast.
  double flow(double x) const {
    const double share = below(x, kFirst);
    double low = -10, high = 10;
    for (int i = 0; i < 200; ++i) {
      const double middle = (low + high) / 2;
      (below(middle, kLast) < share ? low : high) = middle;
    }
    return (low + high) / 2;
  }
};

Tensor each(const Tensor& x, const std::function<double(double)>& f) {
  auto result = x.clone();
  for (int64_t i = 0; i < x.numel(); ++i) result.view(-1)[i] = f(x.view(-1)[i].item<double>());
  return result;
}

// Largest distance from the exact flow; of an adaptive sampler with as many steps as its options ask for, which are
// counted.
struct Measured {
  double error;
  int64_t evaluations;
};
Measured measure(const ditto::Sampler& sampler, int64_t steps) {
  static const auto edm =
      make_plugin<ditto::Scheduler>("schedulers", "edm", {{"sigma_min", kLast}, {"sigma_max", kFirst}});
  const Mixture data;
  Measured found{};
  for (const double place : {-1.2, -0.5, 0.1, 0.4, 1.1}) {
    const ditto::SamplingRequest request{*edm,
                                         [&](const Tensor& x, double t) {
                                           ++found.evaluations;
                                           return each(x, [&](double one) { return data.clean(one, t); });
                                         },
                                         torch::full({1, 1}, kFirst * place, at::kDouble),
                                         steps,
                                         {},
                                         {}};
    const double exact = data.clean(data.flow(kFirst * place), kLast);
    found.error = std::max(found.error, std::abs(sampler.sample(request).item<double>() - exact));
  }
  found.evaluations /= 5;
  return found;
}

struct Case {
  const char* name;
  const char* sampler;
  Options options;
  double order;
  int64_t steps;  // where it is measured: at so many, and at twice as many
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"euler", "euler", {}, 1, 256},
      {"ddim", "ddim", {}, 1, 256},
      {"heun", "heun", {}, 2, 128},
      {"heun_edm", "heun_edm", {}, 2, 128},
      {"dpmpp_2m", "dpmpp_2m", {}, 2, 256},
      {"dpmpp_2m_sde, eta = 0", "dpmpp_2m_sde", {{"eta", 0.0}}, 2, 256},
      {"unipc, order 1", "unipc", {{"order", int64_t{1}}}, 2, 256},
      {"unipc, order 2", "unipc", {{"order", int64_t{2}}}, 3, 256},
      {"unipc, order 3", "unipc", {{"order", int64_t{3}}}, 4, 128},
      {"rk4", "rk4", {}, 4, 64},
  };
  return all;
}

// dopri5's steps follow from its tolerance.
std::shared_ptr<ditto::Sampler> adaptive(double tolerance) {
  return make_plugin<ditto::Sampler>("samplers", "dopri5", {{"rtol", tolerance}, {"atol", tolerance}});
}

}  // namespace

TEST_CASE("each sampler has its order of accuracy") {
  for (const auto& one : cases()) {
    const auto sampler = make_plugin<ditto::Sampler>("samplers", one.sampler, one.options);
    const auto coarse = measure(*sampler, one.steps), fine = measure(*sampler, 2 * one.steps);
    const double found = std::log2(coarse.error / fine.error);
    MESSAGE(std::string(one.name) << ": order " << found << ", error " << fine.error << " after " << 2 * one.steps
                                  << " steps");
    CHECK_MESSAGE(std::abs(found - one.order) < 0.2, std::string(one.name) << " has order " << found);
  }
  // dopri5's error is what its tolerance asks for: of its first power.
  const auto coarse = measure(*adaptive(1e-9), 100000), fine = measure(*adaptive(1e-12), 100000);
  const double power = std::log10(coarse.error / fine.error) / 3;
  MESSAGE("dopri5: error by tolerance to the power of " << power << ", " << fine.error << " after " << fine.evaluations
                                                        << " evaluations");
  CHECK(std::abs(power - 1) < 0.1);
}

TEST_CASE("the errors for docs/generated/samplers_order.svg") {
  const char* path = std::getenv("DITTO_SAMPLERS_ORDER");
  if (!path) return;
  std::ofstream file(path);
  file << "sampler,evaluations,error\n";
  const auto row = [&](const std::string& name, const Measured& at) {
    file << '"' << name << "\"," << at.evaluations << ',' << at.error << '\n';
  };
  for (const auto& one : cases()) {
    const auto sampler = make_plugin<ditto::Sampler>("samplers", one.sampler, one.options);
    for (int64_t steps = 8; steps <= 512; steps *= 2) row(one.name, measure(*sampler, steps));
  }
  for (double tolerance = 1e-2; tolerance > 1e-12; tolerance /= 10)
    row("dopri5", measure(*adaptive(tolerance), 100000));
}
