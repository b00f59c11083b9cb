// A noise schedule and its training target: x_t = alpha(t) x_0 + sigma(t) eps.
//
// Times are double tensors [B] in the schedule's own unit, or [B, F]: one for each frame of videos [B, C, F, H, W];
// alpha, sigma and weights are double, of each time by itself. Pictures are [B, C, …] in any floating dtype. Pure
// functions: no state, nothing random. (A learning-rate schedule is an LrSchedule; a
// cluster's is a queue.)
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/plugin.h>

namespace ditto {

class OpTable;

class DITTO_API Scheduler {
 public:
  static constexpr const char* kKind = "scheduler";
  static constexpr std::uint32_t kAbi = 12;
  struct Needs {};
  virtual ~Scheduler();

  // --- training ---
  // Uniform numbers in (0, 1), double -> the training distribution.
  virtual torch::Tensor times(const torch::Tensor& u_B) const = 0;
  virtual torch::Tensor alpha(const torch::Tensor& t_B) const = 0;
  virtual torch::Tensor sigma(const torch::Tensor& t_B) const = 0;
  // Of clean's shape and dtype. (A learned variance has no target: `losses` has its bound.)
  virtual torch::Tensor target(const torch::Tensor& clean, const torch::Tensor& noise,
                               const torch::Tensor& t_B) const = 0;
  virtual torch::Tensor weight(const torch::Tensor& t_B) const;  // of the squared error; default 1
  // All that training's functions spread over samples of these times: what the host makes of them, and sends to a
  // device in one copy (upload.h). One that is missing is sent by itself. Default: alpha, sigma, the weight and the
  // c_… below, but those that are 1 and are never sent.
  virtual std::vector<torch::Tensor> factors(const torch::Tensor& t_B) const;
  // x_t = alpha(t) clean + sigma(t) noise, in clean's dtype.
  torch::Tensor corrupt(const torch::Tensor& clean, const torch::Tensor& noise, const torch::Tensor& t_B) const;
  // Per-sample losses [B] by name, of a prediction that is preconditioned already; their sum is minimised. Default:
  // {"mse": weight * mean squared error of the target}. `ops` (kernels.h): of the run, for what is more than single
  // operations of IEEE arithmetic, such as means (`sample_mean`); where it is exact, a loss that has no exact form
  // throws Error(config). Null: the ops' references.
  virtual std::map<std::string, torch::Tensor> losses(const torch::Tensor& prediction, const torch::Tensor& clean,
                                                      const torch::Tensor& noise, const torch::Tensor& t_B,
                                                      const OpTable* ops = nullptr) const;

  // --- preconditioning: the model sees c_in x at c_noise, and predicts c_skip x + c_out F (EDM, arXiv:2206.00364, eq.
  // 7) ---
  virtual torch::Tensor c_noise(const torch::Tensor& t_B) const = 0;  // what the model gets as `t`
  virtual torch::Tensor c_in(const torch::Tensor& t_B) const;         // default 1
  virtual torch::Tensor c_out(const torch::Tensor& t_B) const;        // default 1
  virtual torch::Tensor c_skip(const torch::Tensor& t_B) const;       // default 0
  // What the host does with these around a model, in training and in sampling alike; in x_t's dtype. A learned variance
  // has no part in c_skip x.
  torch::Tensor model_input(const torch::Tensor& x_t, const torch::Tensor& t_B) const;  // c_in x_t
  torch::Tensor precondition(const torch::Tensor& raw, const torch::Tensor& x_t,
                             const torch::Tensor& t_B) const;  // c_skip x_t + c_out F
  // Channels a model must predict for pictures of `channels` (twice as many with a learned variance). Default: the
  // same.
  virtual int64_t out_channels(int64_t channels) const { return channels; }

  // --- sampling. `prediction` is what `target` is for, with out_channels() channels; results are in x_t's dtype ---
  virtual torch::Tensor to_clean(const torch::Tensor& prediction, const torch::Tensor& x_t,
                                 const torch::Tensor& t_B) const = 0;
  virtual torch::Tensor to_noise(const torch::Tensor& prediction, const torch::Tensor& x_t,
                                 const torch::Tensor& t_B) const = 0;
  // `steps` + 1 times from noise to data; the last has sigma = 0 (or the schedule's own end). Throws Error(config) if
  // it cannot.
  virtual std::vector<double> time_grid(int64_t steps) const = 0;
  // What standard normal noise is multiplied with to be x at the grid's first time. Default: sigma there.
  virtual double start_scale(double first_time) const;
  // Is `time_grid` a chain with Gaussian steps between its times? Then `step_back` is defined: mean and log-variance of
  // x_s given x_t, for t = grid[step] and s = grid[step + 1]. What ancestral sampling needs; refused by name elsewhere.
  virtual bool has_posterior() const { return false; }
  struct Gaussian {
    torch::Tensor mean, log_variance;
  };
  virtual Gaussian step_back(const torch::Tensor& prediction, const torch::Tensor& x_t, const std::vector<double>& grid,
                             int64_t step) const;

  // --- between the grid's times: a chain has nothing there, and samplers that need it refuse the pair by name ---
  // d alpha / dt and d sigma / dt, for solvers of dx/dt = alpha' E[x_0 | x] + sigma' E[eps | x]. Default, and at an end
  // where the model's prediction does not tell both expectations: none.
  struct Slope {
    double alpha, sigma;
  };
  virtual std::optional<Slope> slope(double t) const;
  // The time at which sigma / alpha is `noise_level`. Default: where there are slopes, found between the grid's ends;
  // else, and beyond these: none.
  virtual std::optional<double> time_at(double noise_level) const;

  // --- samples of several sizes ---
  // This schedule for samples of such sizes, [C, H, W] or [C, F, H, W]: `times` and `time_grid` may be others, all else
  // is the same. Whoever draws times or samples asks for it. Default: null, a schedule that looks at no size.
  virtual std::shared_ptr<const Scheduler> for_size(at::IntArrayRef sizes) const;

  // --- exchange ---
  // What the program that reads weights of this format makes the same schedule from (scheduler_config.json). Empty, and
  // so the default: it has none that is the same.
  virtual ForeignConfig foreign_config(const std::string& format) const;
};

// [B, …] -> [B]: each sample's mean, by the op of this name.
DITTO_API torch::Tensor sample_mean(const torch::Tensor& x, const OpTable* ops);
// [B] -> [B, 1, 1, …], and [B, F] -> [B, 1, F, 1, …], of x's dims, in x's dtype and device: to multiply with x.
DITTO_API torch::Tensor spread(const torch::Tensor& per_sample_B, const torch::Tensor& x);

}  // namespace ditto
