#include <ditto/sampler.h>

#include <torch/types.h>

namespace ditto {

Sampler::~Sampler() = default;

Level level(const Scheduler& scheduler, double t) {
  const auto time = torch::full({1}, t, at::kDouble);
  return {scheduler.alpha(time).item<double>(), scheduler.sigma(time).item<double>()};
}

torch::Tensor integrate(const SamplingRequest& request,
                        const std::function<torch::Tensor(const torch::Tensor& x, const Step& step)>& advance) {
  const auto grid = request.scheduler.time_grid(request.steps);
  const auto steps = static_cast<int64_t>(grid.size()) - 1;
  auto x = request.start.to(at::kDouble);
  for (int64_t i = 0; i < steps; ++i) {
    const double t = grid[i], s = grid[i + 1];
    x = advance(x, Step{grid, i, t, s, level(request.scheduler, t), level(request.scheduler, s)});
    if (request.progress) request.progress(i + 1, steps);
  }
  return x.to(request.start.scalar_type());
}

torch::Tensor predict(const SamplingRequest& request, const torch::Tensor& x, double t) {
  const auto prediction = request.denoise(x.to(request.start.scalar_type()), t);
  auto expected = x.sizes().vec();
  expected.at(1) = request.scheduler.out_channels(expected.at(1));
  if (prediction.sizes() != at::IntArrayRef(expected))
    throw Error(
        ErrorKind::shape, "prediction",
        "has shape " + c10::str(prediction.sizes()) + ", and the schedule needs " + c10::str(at::IntArrayRef(expected)),
        "sample with the schedule that the model was trained with");
  return prediction.to(at::kDouble);
}

Estimate estimate(const SamplingRequest& request, const torch::Tensor& x, double t) {
  const auto prediction = predict(request, x, t);
  const auto time = torch::full({x.size(0)}, t, at::kDouble);
  return {request.scheduler.to_clean(prediction, x, time), request.scheduler.to_noise(prediction, x, time)};
}

torch::Tensor fresh_noise(const SamplingRequest& request, const torch::Tensor& x, int64_t step) {
  if (!request.noise)
    throw Error(ErrorKind::config, "sampler", "draws noise in every step, and the request brings no source of noise",
                "give SamplingRequest::noise, or a sampler without noise");
  return request.noise(step).to(x.options());
}

}  // namespace ditto
