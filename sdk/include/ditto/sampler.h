// A sampler integrates from noise to data.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/scheduler.h>

namespace ditto {

// The guided model as a sampler sees it: x_t [B, C, …] and one time -> the schedule's prediction [B, out_channels, …].
using Denoiser = std::function<torch::Tensor(const torch::Tensor& x_t, double t)>;

struct SamplingRequest {
  const Scheduler& scheduler;
  Denoiser denoise;
  torch::Tensor start;  // x at the grid's first time, [B, C, …]; fp32
  int64_t steps = 50;
  // Fresh standard normal numbers like `start`, for stochastic samplers; drawn by seed and step, never by a generator.
  std::function<torch::Tensor(int64_t step)> noise;
  std::function<void(int64_t step, int64_t steps)> progress;  // may be empty
};

// --- what samplers are written with ---
struct Level {
  double alpha, sigma;
};
DITTO_API Level level(const Scheduler& scheduler, double t);

// One step of the grid, from time t = grid[index] to s = grid[index + 1].
struct Step {
  const std::vector<double>& grid;
  int64_t index;
  double t, s;
  Level from, to;
};
// Walks along the scheduler's grid: x <- advance(x, step), from request.start to the last time, and reports progress. x
// is double, so that sums over many small steps keep their digits; the result has start's dtype.
DITTO_API torch::Tensor integrate(
    const SamplingRequest& request,
    const std::function<torch::Tensor(const torch::Tensor& x, const Step& step)>& advance);

// The denoiser's answer to x (rounded to start's dtype) in double. Throws Error(shape) if it has not out_channels()
// channels.
DITTO_API torch::Tensor predict(const SamplingRequest& request, const torch::Tensor& x, double t);
// The same, as expected data and expected noise: x = alpha clean + sigma noise.
struct Estimate {
  torch::Tensor clean, noise;
};
DITTO_API Estimate estimate(const SamplingRequest& request, const torch::Tensor& x, double t);
// request.noise for this step, in double on x's device. Throws Error(config) if the request brings none.
DITTO_API torch::Tensor fresh_noise(const SamplingRequest& request, const torch::Tensor& x, int64_t step);

class DITTO_API Sampler {
 public:
  static constexpr const char* kKind = "sampler";
  static constexpr std::uint32_t kAbi = 6;
  static constexpr Effect kEffect = Effect::nothing;
  struct Needs {};
  virtual ~Sampler();
  virtual torch::Tensor sample(const SamplingRequest& request) const = 0;  // -> x_0, as start
  // Why this pair makes no sense, for the error when a recipe is read; empty: it does.
  virtual std::string refuses(const Scheduler&) const { return {}; }
};

}  // namespace ditto
