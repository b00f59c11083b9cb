// The fifth-order method of Dormand and Prince with the error control of torchdiffeq (tableau as Shampine's, 1986;
// first step as Hairer, Norsett and Wanner, 1993, II.4), for dx/dt = alpha' E[x_0 | x] + sigma' E[eps | x]. Steps are
// each sample's own, and end at the schedule's end; where that has no slope (EDM's sigma = 0), at the grid's time
// before, and euler goes on.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <ditto/math/elementary.h>
#include <ditto/sampler.h>

namespace {

using torch::Tensor;

constexpr int kStages = 6;  // after the first, which is the last one's of the step before
constexpr double kTimes[kStages] = {1.0 / 5, 3.0 / 10, 4.0 / 5, 8.0 / 9, 1, 1};
constexpr double kWeights[kStages][kStages] = {
    {1.0 / 5},
    {3.0 / 40, 9.0 / 40},
    {44.0 / 45, -56.0 / 15, 32.0 / 9},
    {19372.0 / 6561, -25360.0 / 2187, 64448.0 / 6561, -212.0 / 729},
    {9017.0 / 3168, -355.0 / 33, 46732.0 / 5247, 49.0 / 176, -5103.0 / 18656},
    {35.0 / 384, 0, 500.0 / 1113, 125.0 / 192, -2187.0 / 6784, 11.0 / 84}};
constexpr double kErrors[kStages + 1] = {35.0 / 384 - 1951.0 / 21600,
                                         0,
                                         500.0 / 1113 - 22642.0 / 50085,
                                         125.0 / 192 - 451.0 / 720,
                                         -2187.0 / 6784 + 12231.0 / 42400,
                                         11.0 / 84 - 649.0 / 6300,
                                         -1.0 / 60};

struct Dopri5Options {
  double rtol = 1e-3, atol = 1e-6;
  void read(ditto::OptionReader& option) {
    option("rtol", rtol, "error of a step as a share of x, root of the mean square over a sample").at_least(0.0);
    option("atol", atol, "and this much more").above(0.0);
  }
};

double fifth_root(double x) { return ditto::elementary::exp(ditto::elementary::log(x) / 5); }

// One sample on its way: u counts time from the start.
struct Way {
  const ditto::SamplingRequest& request;
  const Dopri5Options& options;
  double start, direction;
  int64_t evaluations = 0;

  Tensor slope(const Tensor& x, double u) {
    ++evaluations;
    return direction * flow(request, x, start + direction * u);
  }
  // The root of the mean square of error / (atol + rtol max(|x|, |y|)), summed in order on every machine.
  double size(const Tensor& error, const Tensor& x, const Tensor& y) const {
    const auto numbers = [](const Tensor& tensor) { return tensor.to(torch::kCPU).contiguous(); };
    const auto errors = numbers(error), before = numbers(x), after = numbers(y);
    const auto *e = errors.const_data_ptr<double>(), *a = before.const_data_ptr<double>(),
               *b = after.const_data_ptr<double>();
    double sum = 0;
    for (int64_t i = 0; i < errors.numel(); ++i) {
      const double part = e[i] / (options.atol + options.rtol * std::max(std::abs(a[i]), std::abs(b[i])));
      sum += part * part;
    }
    return std::sqrt(sum / static_cast<double>(errors.numel()));
  }
  double first_step(const Tensor& x, const Tensor& f) {
    const double d0 = size(x, x, x), d1 = size(f, x, x);
    const double h0 = d0 < 1e-5 || d1 < 1e-5 ? 1e-6 : 0.01 * d0 / d1;
    const double d2 = size(slope(x + h0 * f, h0) - f, x, x) / h0;
    const double h1 = d1 <= 1e-15 && d2 <= 1e-15 ? std::max(1e-6, h0 * 1e-3) : fifth_root(0.01 / std::max(d1, d2));
    return std::min(100 * h0, h1);
  }
};

struct Dopri5 final : ditto::Sampler {
  using Options = Dopri5Options;
  Dopri5(const Options& o, const Needs&) : options(o) {}

  bool adaptive() const override { return true; }
  std::string refuses(const ditto::Scheduler& scheduler) const override {
    return has_flow(scheduler) ? "" : "it evaluates the model between the schedule's times";
  }

  Tensor sample(const ditto::SamplingRequest& request) const override {
    if (request.start.size(0) != 1)
      throw ditto::Error(
          ditto::ErrorKind::shape, "sampler 'dopri5'",
          "was given " + std::to_string(request.start.size(0)) + " samples, and each has steps of its own",
          "give it one at a time (Sampler::adaptive)");
    const auto& scheduler = request.scheduler;
    const auto grid = scheduler.time_grid(request.steps);
    const double end = scheduler.slope(grid.back()) ? grid.back() : grid.at(grid.size() - 2);
    Way way{request, options, grid.front(), end > grid.front() ? 1.0 : -1.0};
    auto x = walked(way, request.start.to(at::kDouble), std::abs(end - grid.front()));
    if (end != grid.back())
      x = go_straight(x, estimate(request, x, end), level(scheduler, end), level(scheduler, grid.back()));
    return x.to(request.start.scalar_type());
  }

 private:
  Tensor walked(Way& way, Tensor x, double length) const {
    std::array<Tensor, kStages + 1> k;
    k[0] = way.slope(x, 0);
    double u = 0, h = way.first_step(x, k[0]);
    int64_t tried = 0, rejected = 0;
    const auto& request = way.request;
    while (u < length) {
      if (tried == request.steps)
        throw ditto::Error(ditto::ErrorKind::config, "sampler.steps",
                           "a sample is not done after " + std::to_string(tried) + " steps of dopri5",
                           "allow more, or raise sampler.rtol");
      if (!(u + h > u))
        throw ditto::Error(
            ditto::ErrorKind::config, "sampler 'dopri5'",
            "no step is small enough for its tolerances at time " + std::to_string(way.start + way.direction * u),
            "raise sampler.rtol or sampler.atol");
      const bool is_last = u + h > length;
      const double to = is_last ? length : u + h;
      if (is_last) h = length - u;
      auto y = x, error = kErrors[0] * h * k[0];
      for (int stage = 0; stage < kStages; ++stage) {
        y = x;
        for (int j = 0; j <= stage; ++j)
          if (kWeights[stage][j] != 0) y = y + (kWeights[stage][j] * h) * k[j];
        k[stage + 1] = way.slope(y, kTimes[stage] == 1 ? to : u + kTimes[stage] * h);
        if (kErrors[stage + 1] != 0) error = error + (kErrors[stage + 1] * h) * k[stage + 1];
      }
      const double ratio = way.size(error, x, y);
      const bool accepted = ratio <= 1;
      if (accepted) {
        x = y;
        u = to;
        k[0] = k[kStages];
      }
      rejected += !accepted;
      h *= ratio == 0 ? 10 : std::min(10.0, std::max(0.9 / fifth_root(ratio), ratio < 1 ? 1.0 : 0.2));
      ++tried;
      if (request.progress) request.progress(tried, request.steps);
    }
    if (request.tell) {
      request.tell("steps", static_cast<double>(tried - rejected));
      request.tell("steps rejected", static_cast<double>(rejected));
      request.tell("evaluations", static_cast<double>(way.evaluations));
    }
    return x;
  }

  Options options;
};

}  // namespace

DITTO_PLUGIN(Sampler, Dopri5, "dopri5", "1.0.0", "Apache-2.0",
             "Dormand and Prince's solver, with each sample's own steps")
