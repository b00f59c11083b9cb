#include <ditto/sampler.h>

#include <torch/types.h>

#include <ditto/math/elementary.h>

namespace ditto {

Sampler::~Sampler() = default;

Level level(const Scheduler& scheduler, double t) {
  const auto time = torch::full({1}, t, at::kDouble);
  return {scheduler.alpha(time).item<double>(), scheduler.sigma(time).item<double>()};
}

double log_ratio(const Level& level) { return elementary::log(level.alpha / level.sigma); }

torch::Tensor integrate(const SamplingRequest& request,
                        const std::function<torch::Tensor(const torch::Tensor& x, const Step& step)>& advance) {
  return integrate(request, request.scheduler.time_grid(request.steps), advance);
}

torch::Tensor integrate(const SamplingRequest& request, const std::vector<double>& grid,
                        const std::function<torch::Tensor(const torch::Tensor& x, const Step& step)>& advance) {
  const auto steps = static_cast<int64_t>(grid.size()) - 1;
  auto x = request.start.to(at::kDouble);
  for (int64_t i = 0; i < steps; ++i) {
    const double t = grid[i], s = grid[i + 1];
    x = advance(x, Step{grid, i, t, s, level(request.scheduler, t), level(request.scheduler, s)});
    if (request.progress) request.progress(i + 1, steps);
  }
  return x.to(request.start.scalar_type());
}

namespace {

// The prediction whose x_0 is the limited one and whose noise is what then is left of x; a learned variance stays.
torch::Tensor limited(const SamplingRequest& request, const torch::Tensor& prediction, const torch::Tensor& x,
                      double t) {
  const auto& scheduler = request.scheduler;
  const auto time = torch::full({x.size(0)}, t, at::kDouble);
  const auto [alpha, sigma] = level(scheduler, t);
  const auto clean = request.limit(scheduler.to_clean(prediction, x, time));
  const auto target = scheduler.target(clean, (x - alpha * clean) / sigma, time);
  if (prediction.size(1) == target.size(1)) return target;
  return torch::cat({target, prediction.slice(1, target.size(1))}, 1);
}

}  // namespace

torch::Tensor predict(const SamplingRequest& request, const torch::Tensor& x, double t) {
  const auto prediction = request.denoise(x.to(request.start.scalar_type()), t);
  auto expected = x.sizes().vec();
  expected.at(1) = request.scheduler.out_channels(expected.at(1));
  if (prediction.sizes() != at::IntArrayRef(expected))
    throw Error(
        ErrorKind::shape, "prediction",
        "has shape " + c10::str(prediction.sizes()) + ", and the schedule needs " + c10::str(at::IntArrayRef(expected)),
        "sample with the schedule that the model was trained with");
  if (!request.limit || level(request.scheduler, t).sigma == 0) return prediction.to(at::kDouble);
  return limited(request, prediction.to(at::kDouble), x, t);
}

Estimate estimate(const SamplingRequest& request, const torch::Tensor& x, double t) {
  const auto prediction = predict(request, x, t);
  const auto time = torch::full({x.size(0)}, t, at::kDouble);
  return {request.scheduler.to_clean(prediction, x, time), request.scheduler.to_noise(prediction, x, time)};
}

torch::Tensor go_straight(const torch::Tensor& x, const Estimate& by, const Level& from, const Level& to) {
  return x + (to.alpha - from.alpha) * by.clean + (to.sigma - from.sigma) * by.noise;
}

torch::Tensor go_by_both(const SamplingRequest& request, const torch::Tensor& x, double t, double s) {
  const auto from = level(request.scheduler, t), to = level(request.scheduler, s);
  const auto here = estimate(request, x, t);
  const auto euler = go_straight(x, here, from, to);
  if (to.sigma == 0) return euler;
  const auto there = estimate(request, euler, s);
  const double d_alpha = to.alpha - from.alpha, d_sigma = to.sigma - from.sigma;
  return x + (d_alpha / 2) * (here.clean + there.clean) + (d_sigma / 2) * (here.noise + there.noise);
}

torch::Tensor flow(const SamplingRequest& request, const torch::Tensor& x, double t) {
  const auto slope = request.scheduler.slope(t);
  if (!slope)
    throw Error(ErrorKind::config, "scheduler", "has no slope of alpha and sigma at time " + std::to_string(t),
                "sample with euler, heun or dpmpp_2m");
  const auto [clean, noise] = estimate(request, x, t);
  return slope->alpha * clean + slope->sigma * noise;
}

bool has_flow(const Scheduler& scheduler) {
  const auto middle = scheduler.times(torch::full({1}, 0.5, at::kDouble)).item<double>();
  return scheduler.slope(middle).has_value();
}

torch::Tensor fresh_noise(const SamplingRequest& request, const torch::Tensor& x, int64_t step) {
  if (!request.noise)
    throw Error(ErrorKind::config, "sampler", "draws noise in every step, and the request brings no source of noise",
                "give SamplingRequest::noise, or a sampler without noise");
  return request.noise(step).to(x.options());
}

}  // namespace ditto
