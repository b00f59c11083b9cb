// The promises of a sampler: on data whose denoiser is known exactly.
#include <cmath>

#include <ditto/testing/checks.h>

#include "numbers.h"
#include "schedules.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr double kMean = 0.7, kDeviation = 0.4;  // of the data, each number by itself

// The best prediction for Gaussian data: E[clean | x] by Bayes, as the schedule's target.
Denoiser gaussian_denoiser(const Scheduler& scheduler, double deviation) {
  return [&scheduler, deviation](const Tensor& x, double t) {
    const Level at = level(scheduler, t);
    const double variance = deviation * deviation;
    const double gain = at.alpha * variance / (at.alpha * at.alpha * variance + at.sigma * at.sigma);
    const Tensor clean = kMean + gain * (x - at.alpha * kMean);
    const Tensor noise = (x - at.alpha * clean) / at.sigma;
    return scheduler.target(clean, noise, torch::full({x.size(0)}, t, at::kDouble));
  };
}

class SamplerTest {
 public:
  SamplerTest(const std::string& path, const OptionValues& options) : path_(path), options_(options) {}

  void run(Report& report) {
    report.check("it can be made", [&] { return made_ = make<Sampler>(path_, options_), std::string(); });
    if (!made_) return;
    with(report, *straight_schedule(), "on a straight path");
    with(report, *circular_schedule(), "on a circular path");
  }

 private:
  void with(Report& report, const Scheduler& schedule, const std::string& where) {
    if (const auto reason = made_->refuses(schedule); !reason.empty()) return report.skip(where, reason);
    report.check(where + ": the result has the start's shape and dtype, and the start is kept",
                 [&] { return shape(schedule); });
    report.check(where + ": two runs give the same bits", [&] { return repeat(schedule); });
    if (made_->adaptive()) {
      report.skip(where + ": a picture alone is what it is in a batch", "adaptive() is true: it gets one at a time");
      report.skip(where + ": progress is told once a step", "adaptive() is true");
    } else {
      report.check(where + ": a picture alone is what it is in a batch", [&] { return slices(schedule); });
      report.check(where + ": progress is told once a step", [&] { return progress(schedule); });
    }
    report.check(where + ": data that is one point is met", [&] { return point(schedule); });
    report.check(where + ": Gaussian data keeps its mean and deviation", [&] { return gaussian(schedule); });
  }

  // An adaptive sampler gets the first of the samples, and as many steps as it may want.
  SamplingRequest request(const Scheduler& schedule, double deviation, int64_t steps,
                          std::vector<int64_t> shape) const {
    if (made_->adaptive()) shape[0] = 1, steps = 1000;
    const double scale = schedule.start_scale(schedule.time_grid(steps).front());
    SamplingRequest request{schedule, gaussian_denoiser(schedule, deviation), {}, steps, {}, {}};
    request.start = (normal("start", shape) * scale).to(at::kFloat);
    request.noise = [shape](int64_t step) { return normal("step " + std::to_string(step), shape, at::kFloat); };
    return request;
  }

  std::string shape(const Scheduler& schedule) const {
    const auto asked = request(schedule, kDeviation, 8, {2, 3, 4, 4});
    const Tensor before = asked.start.clone(), out = made_->sample(asked);
    if (out.sizes() != before.sizes()) return "it is " + shape_text(out.sizes());
    if (out.scalar_type() != before.scalar_type()) return std::string("it is ") + c10::toString(out.scalar_type());
    return asked.start.equal(before) ? not_finite(out) : "the start was written to";
  }

  std::string repeat(const Scheduler& schedule) const {
    const auto asked = request(schedule, kDeviation, 8, {2, 3, 4, 4});
    return difference(made_->sample(asked), made_->sample(asked), 0);
  }

  std::string slices(const Scheduler& schedule) const {
    const auto both = request(schedule, kDeviation, 8, {2, 3, 4, 4});
    auto one = both;
    one.start = both.start.slice(0, 1, 2);
    one.noise = [&](int64_t step) { return both.noise(step).slice(0, 1, 2); };
    return difference(made_->sample(one), made_->sample(both).slice(0, 1, 2), 1e-6);
  }

  std::string progress(const Scheduler& schedule) const {
    auto asked = request(schedule, kDeviation, 8, {1, 1, 2, 2});
    int64_t told = 0, last = 0;
    asked.progress = [&](int64_t step, int64_t) { ++told, last = step; };
    made_->sample(asked);
    return told == 8 && last == 8
               ? ""
               : "in 8 steps it was told " + std::to_string(told) + " times, at last step " + std::to_string(last);
  }

  std::string point(const Scheduler& schedule) const {
    const auto asked = request(schedule, 0, 12, {2, 1, 4, 4});
    return difference(made_->sample(asked), torch::full_like(asked.start, kMean), 1e-5);
  }

  std::string gaussian(const Scheduler& schedule) const {
    const Tensor out = made_->sample(request(schedule, kDeviation, 250, {2, 1, 96, 96})).to(at::kDouble);
    const double mean = out.mean().item<double>(), deviation = out.std().item<double>();
    if (std::abs(mean - kMean) < 0.03 && std::abs(deviation - kDeviation) < 0.03) return {};
    return "mean " + text(mean) + " and deviation " + text(deviation) + ", expected " + text(kMean) + " and " +
           text(kDeviation);
  }

  std::string path_;
  OptionValues options_;
  std::shared_ptr<Sampler> made_;
};

}  // namespace

Report check_sampler(const std::string& path, const OptionValues& options) {
  Report report("sampler " + path);
  report.guard([&] { SamplerTest(path, options).run(report); });
  return report;
}

}  // namespace ditto::testing
