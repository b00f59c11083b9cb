// A sampler integrates from noise to data.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/scheduler.h>

namespace ditto {

// The guided model as a sampler sees it: x_t [B, C, …] and one time -> the schedule's prediction [B, out_channels, …].
// x_t is of start's dtype (integrate() and predict() see to that), the prediction of any floating one. Autograd is off,
// and `sample` is called by one thread at a time.
using Denoiser = std::function<torch::Tensor(const torch::Tensor& x_t, double t)>;

struct SamplingRequest {
  const Scheduler& scheduler;
  Denoiser denoise;
  torch::Tensor start;  // x at the grid's first time, [B, C, …]; fp32, or double where the run computes in it
  int64_t steps = 50;
  // Fresh standard normal numbers like `start`, for stochastic samplers; drawn by seed and step, never by a generator.
  std::function<torch::Tensor(int64_t step)> noise;
  std::function<void(int64_t step, int64_t steps)> progress;  // may be empty
  // What every prediction's x_0 is brought into before a sampler sees it, [B, C, …] double -> the same, each sample by
  // itself (clipping, dynamic thresholds). Empty: nothing.
  std::function<torch::Tensor(const torch::Tensor& clean)> limit = {};
  // Is told what a sampler decided by itself ("steps", "steps rejected"), to be added up over all samples. May be
  // empty.
  std::function<void(const std::string& what, double count)> tell = {};
};

// --- what samplers are written with ---
struct Level {
  double alpha, sigma;
};
DITTO_API Level level(const Scheduler& scheduler, double t);
// log(alpha / sigma), half of the log-SNR: -inf where there is no data, inf where there is no noise.
DITTO_API double log_ratio(const Level& level);

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

// The same along times of the sampler's own.
DITTO_API torch::Tensor integrate(
    const SamplingRequest& request, const std::vector<double>& grid,
    const std::function<torch::Tensor(const torch::Tensor& x, const Step& step)>& advance);

// The denoiser's answer to x (rounded to start's dtype) in double, with its x_0 limited where the request says so.
// Throws Error(shape) if it has not out_channels() channels.
DITTO_API torch::Tensor predict(const SamplingRequest& request, const torch::Tensor& x, double t);
// The same, as expected data and expected noise: x = alpha clean + sigma noise.
struct Estimate {
  torch::Tensor clean, noise;
};
DITTO_API Estimate estimate(const SamplingRequest& request, const torch::Tensor& x, double t);
// From x at `from` straight to `to`, by the estimate there; and from time t to s by the mean of the estimates at both
// ends (the trapezoidal rule), the second one at the new point; where sigma is 0 at s, by the first alone.
DITTO_API torch::Tensor go_straight(const torch::Tensor& x, const Estimate& by, const Level& from, const Level& to);
DITTO_API torch::Tensor go_by_both(const SamplingRequest& request, const torch::Tensor& x, double t, double s);
// dx/dt of the probability flow. Throws Error(config) where the schedule has no slope.
DITTO_API torch::Tensor flow(const SamplingRequest& request, const torch::Tensor& x, double t);
// Whether a schedule has slopes between its ends, and so goes with samplers that choose times of their own.
DITTO_API bool has_flow(const Scheduler& scheduler);
// request.noise for this step, in double on x's device. Throws Error(config) if the request brings none.
DITTO_API torch::Tensor fresh_noise(const SamplingRequest& request, const torch::Tensor& x, int64_t step);

class DITTO_API Sampler {
 public:
  static constexpr const char* kKind = "sampler";
  static constexpr std::uint32_t kAbi = 10;
  static constexpr Effect kEffect = Effect::nothing;
  struct Needs {};
  virtual ~Sampler();
  virtual torch::Tensor sample(const SamplingRequest& request) const = 0;  // -> x_0, as start
  // Why this pair makes no sense, for the error when a recipe is read; empty: it does.
  virtual std::string refuses(const Scheduler&) const { return {}; }
  // Does it choose its steps by each sample's own errors? Then `sample` is given one sample at a time, and
  // request.steps is the most that it may try.
  virtual bool adaptive() const { return false; }
};

}  // namespace ditto
