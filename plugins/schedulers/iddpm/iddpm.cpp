// DDPM with improvements (Ho et al., arXiv:2006.11239; Nichol and Dhariwal, arXiv:2102.09672). Its defaults are what
// DiT trains with: linear betas, epsilon target, a variance learned between its two bounds, sampling on fewer times
// than were trained.
//
// Times are 0 ... timesteps - 1 and -1, which is the data themselves. Below, abar(t) = alpha(t)^2; "s" is the time
// before t in a chain. A shorter chain is a chain of its own: its betas, posterior and variance bounds follow from abar
// at its times alone.
#include <cmath>

#include <torch/types.h>

#include <ditto/diffusion/predictions.h>
#include <ditto/kernels.h>
#include <ditto/math/elementary.h>
#include <ditto/math/sizes.h>
#include <ditto/scheduler.h>

namespace {

using ditto::spread;
using torch::Tensor;

constexpr double kLn2 = 0.69314718055994530942;
constexpr const char *kStrided = "ddim", *kLeading = "leading";

// As IEEE has it; LibTorch's differs in the last place on some processors.
Tensor root(const Tensor& x) {
  return ditto::elementary::map(x, [](double number) { return std::sqrt(number); });
}

// One step t -> s of a chain, for n pairs of times: double [n] each.
struct Chain {
  Tensor mean_clean, mean_x;    // the posterior's mean is mean_clean x_0 + mean_x x_t (DDPM, eq. 7)
  Tensor log_small, log_large;  // log of the posterior's variance (-inf at s = -1) and of beta

  Chain(const Tensor& abar_t, const Tensor& abar_s) {
    const auto beta = 1 - abar_t / abar_s;
    mean_clean = beta * root(abar_s) / (1 - abar_t);
    mean_x = (1 - abar_s) * root(1 - beta) / (1 - abar_t);
    log_small = ditto::elementary::map(beta * (1 - abar_s) / (1 - abar_t), ditto::elementary::log);
    log_large = ditto::elementary::map(beta, ditto::elementary::log);
  }
};

// Functions of each number, by the run's ops where they are given.
struct Functions {
  const ditto::OpTable* ops;
  Tensor exp(const Tensor& x) const { return ops ? ops->run("exp", {{x}}).at(0) : x.exp(); }
  Tensor log(const Tensor& x) const { return ops ? ops->run("log", {{x}}).at(0) : x.log(); }
  Tensor tanh(const Tensor& x) const { return ops ? ops->run("tanh", {{x}}).at(0) : x.tanh(); }
  Tensor cube(const Tensor& x) const { return ops && ops->exact() ? x * x * x : x.pow(3); }
};

// The normal's distribution function by the tanh approximation that DiT's training code uses: losses compare to its
// digits.
Tensor normal_cdf(const Tensor& x, const Functions& f) {
  return 0.5 * (1 + f.tanh(0.79788456080286535588 * (x + 0.044715 * f.cube(x))));
}

// -log of a Gaussian's mass in the bin of width 2/255 around x, in nats; the outermost bins are open (DDPM, eq. 13).
Tensor discretised_nll(const Tensor& x, const Tensor& mean, const Tensor& log_variance, const Functions& f) {
  const auto precision = f.exp(-0.5 * log_variance);
  const auto upper = normal_cdf(precision * (x - mean + 1.0 / 255), f);
  const auto lower = normal_cdf(precision * (x - mean - 1.0 / 255), f);
  const auto mass = torch::where(x < -0.999, upper, torch::where(x > 0.999, 1 - lower, upper - lower));
  return -f.log(mass.clamp_min(1e-12));
}

Tensor kl_divergence(const Tensor& mean_1, const Tensor& log_variance_1, const Tensor& mean_2,
                     const Tensor& log_variance_2, const Functions& f) {
  return 0.5 * (log_variance_2 - log_variance_1 - 1 + f.exp(log_variance_1 - log_variance_2) +
                (mean_1 - mean_2).square() * f.exp(-log_variance_2));
}

struct IddpmOptions : ditto::Prediction::Options {
  int64_t timesteps = 1000;
  double beta_start = 1e-4, beta_end = 0.02;
  std::string betas = "linear", variance = "learned_range", spacing = "even";
  bool zero_terminal_snr = false, set_alpha_to_one = false;
  int64_t steps_offset = 1;

  void read(ditto::OptionReader& option) {
    option("timesteps", timesteps, "length of the training chain").between(2, ditto::most::kTimes);
    option(
        "betas", betas,
        "linear; scaled_linear: linear in their roots (Stable Diffusion); sigmoid; cosine, which has no first and last")
        .one_of({"linear", "scaled_linear", "sigmoid", "cosine"});
    option("beta_start", beta_start, "first beta of a chain of 1000; scaled by 1000 / timesteps").above(0.0);
    option("beta_end", beta_end, "last beta of a chain of 1000; scaled by 1000 / timesteps").above(0.0);
    option("zero_terminal_snr", zero_terminal_snr,
           "alpha is stretched to 0 at the chain's last time (arXiv:2305.08891)");
    ditto::Prediction::Options::read(option);
    option("variance", variance, "learned_range: the model predicts it (twice the channels); or one of the two bounds")
        .one_of({"learned_range", "fixed_small", "fixed_large"});
    option("spacing", spacing,
           "sampling times: even, as DiT's '250'; ddim: an integer stride, as DiT's 'ddim50'; leading: with the stride "
           "timesteps / steps, rounded down, as Stable Diffusion's")
        .one_of({"even", kStrided, kLeading});
    option("steps_offset", steps_offset, "of leading: the last of the times that the model sees")
        .between(0, ditto::most::kTimes);
    option("set_alpha_to_one", set_alpha_to_one,
           "of leading: sampling ends at the data themselves; false: at the chain's first time, which still has noise");
    option.only_if(spacing == kLeading, {"steps_offset", "set_alpha_to_one"}, "is of spacing = \"leading\"");
    if (spacing == kLeading && steps_offset == 0 && !set_alpha_to_one)
      option.reject("steps_offset", "= 0 makes the last step one from the chain's first time to itself",
                    "use steps_offset = 1, or set_alpha_to_one = true");
    option.only_if(betas != "cosine", {"beta_start", "beta_end"}, "is of other betas than \"cosine\"");
    const double largest = std::max(beta_start, beta_end) * scale();
    if (betas != "cosine" && largest >= 1)
      option.reject("timesteps", "makes a beta of " + std::to_string(largest) + ", and betas are below 1",
                    "use more timesteps or smaller betas");
    if (zero_terminal_snr && prediction == "epsilon")
      option.reject("zero_terminal_snr", "leaves no data at the last time, where the noise alone tells nothing of them",
                    "use prediction = \"v\"");
  }
  double scale() const { return 1000.0 / static_cast<double>(timesteps); }
};

// alpha^2 of the chain, [timesteps + 1] from t = -1.
std::vector<double> cumulative_alphas(const IddpmOptions& o) {
  const double first = o.beta_start * o.scale(), last = o.beta_end * o.scale();
  const auto count = static_cast<double>(o.timesteps);
  std::vector<double> betas;
  if (o.betas == "linear") betas = ditto::elementary::even_steps(first, last, o.timesteps);
  if (o.betas == "scaled_linear")
    for (const double at : ditto::elementary::even_steps(std::sqrt(first), std::sqrt(last), o.timesteps))
      betas.push_back(at * at);
  if (o.betas == "sigmoid")
    for (const double at : ditto::elementary::even_steps(-6, 6, o.timesteps))
      betas.push_back(first + (last - first) / (1 + ditto::elementary::exp(-at)));
  if (o.betas == "cosine") {  // Nichol and Dhariwal, eq. 17
    const auto square = [&](double t) {
      const double cos = ditto::elementary::cos_sin((t / count + 0.008) / 1.008 * 1.57079632679489661923).cos;
      return cos * cos;
    };
    for (double t = 0; t < count; ++t) betas.push_back(std::min(1 - square(t + 1) / square(t), 0.999));
  }
  std::vector<double> table{1};
  for (const double beta : betas) table.push_back(table.back() * (1 - beta));
  if (!o.zero_terminal_snr) return table;
  const double top = std::sqrt(table[1]), bottom = std::sqrt(table.back());
  for (size_t i = 1; i < table.size(); ++i) {
    const double alpha = (std::sqrt(table[i]) - bottom) * (top / (top - bottom));
    table[i] = alpha * alpha;
  }
  return table;
}

class Iddpm : public ditto::Scheduler {
 public:
  using Options = IddpmOptions;

  Iddpm(const Options& options, const Needs&)
      : options_(options),
        prediction_(options),
        abar_(torch::tensor(cumulative_alphas(options), at::kDouble)),
        alpha_(root(abar_)),
        sigma_(root(1 - abar_)),
        chain_(abar_.slice(0, 1), abar_.slice(0, 0, -1)) {
    chain_.log_small[0] = chain_.log_small[1];  // its variance is 0; DiT's bound there is the next one's
  }

  // --- training ---
  Tensor times(const Tensor& u_B) const override {
    const auto count = static_cast<double>(options_.timesteps);
    return (u_B.to(at::kDouble) * count).floor().clamp_max(count - 1);
  }
  Tensor alpha(const Tensor& t_B) const override { return at_times(alpha_, t_B, 1); }
  Tensor sigma(const Tensor& t_B) const override { return at_times(sigma_, t_B, 1); }
  Tensor target(const Tensor& clean, const Tensor& noise, const Tensor& t_B) const override {
    return prediction_.target(clean, noise, alpha(t_B), sigma(t_B));
  }
  Tensor weight(const Tensor& t_B) const override { return prediction_.weight(alpha(t_B), sigma(t_B)); }
  std::vector<Tensor> factors(const Tensor& t_B) const override {
    auto all = Scheduler::factors(t_B);
    if (!learned()) return all;
    const auto chain = chain_at(t_B);
    for (const auto& one : {chain.mean_clean, chain.mean_x, chain.log_small, chain.log_large, t_B}) all.push_back(one);
    return all;
  }
  Tensor c_noise(const Tensor& t_B) const override { return t_B; }
  int64_t out_channels(int64_t channels) const override { return learned() ? 2 * channels : channels; }

  // The hybrid loss (Nichol and Dhariwal, eq. 16, without its factor of 0.001, as DiT): {"mse", "vb"}, vb in bits a
  // dim.
  std::map<std::string, Tensor> losses(const Tensor& prediction, const Tensor& clean, const Tensor& noise,
                                       const Tensor& t_B, const ditto::OpTable* ops) const override {
    if (!learned()) return Scheduler::losses(prediction, clean, noise, t_B, ops);
    const auto wide = at::promote_types(prediction.scalar_type(), at::kFloat);
    const auto [mean, fraction] = parts(prediction.to(wide), clean);
    auto result = Scheduler::losses(mean, clean, noise, t_B, ops);
    result["vb"] = variational_bound(mean.detach(), fraction, clean.to(wide), noise.to(wide), t_B, ops);
    return result;
  }

  // --- sampling ---
  Tensor to_clean(const Tensor& prediction, const Tensor& x_t, const Tensor& t_B) const override {
    return prediction_.to_clean(parts(prediction, x_t).first, x_t, alpha(t_B), sigma(t_B));
  }
  Tensor to_noise(const Tensor& prediction, const Tensor& x_t, const Tensor& t_B) const override {
    return prediction_.to_noise(parts(prediction, x_t).first, x_t, alpha(t_B), sigma(t_B));
  }
  double start_scale(double) const override { return 1; }  // DDPM starts from plain noise: sigma there is 1 - 2e-5
  bool has_posterior() const override { return true; }

  Gaussian step_back(const Tensor& prediction, const Tensor& x_t, const std::vector<double>& grid,
                     int64_t step) const override {
    Chain now = between(grid.at(step), grid.at(step + 1));
    if (grid[step + 1] < 0) {  // as in training: a variance of 0 gives way to the one before it in this chain
      now.log_small = step > 0 ? between(grid[step - 1], grid[step]).log_small : now.log_large;
      if (!learned()) now.log_large = now.log_small;
    }
    const auto clean = to_clean(prediction, x_t, torch::full({x_t.size(0)}, grid[step], at::kDouble));
    const auto mean = spread(now.mean_clean, x_t) * clean + spread(now.mean_x, x_t) * x_t;
    return {mean, log_variance(now, parts(prediction, x_t).second, x_t)};
  }

  std::vector<double> time_grid(int64_t steps) const override {
    if (options_.spacing == kLeading) return leading_grid(steps);
    auto kept = options_.spacing == "even" ? even_times(steps) : strided_times(steps);
    std::vector<double> grid(kept.rbegin(), kept.rend());
    grid.push_back(-1);
    return grid;
  }

  // Their DDIM reads it, and so does their DDPM, which alone looks at the variance.
  ditto::ForeignConfig foreign_config(const std::string& format) const override {
    if (format != "diffusers") return {};
    const bool is_leading = options_.spacing == kLeading;
    const std::map<std::string, std::string> predicted{{"epsilon", "epsilon"}, {"x0", "sample"}, {"v", "v_prediction"}};
    ditto::ForeignConfig config{{"_class_name", "DDIMScheduler"},
                                {"num_train_timesteps", options_.timesteps},
                                {"beta_schedule", options_.betas == "cosine" ? "squaredcos_cap_v2" : options_.betas},
                                {"beta_start", options_.beta_start * options_.scale()},
                                {"beta_end", options_.beta_end * options_.scale()},
                                {"prediction_type", predicted.at(options_.prediction)},
                                {"variance_type", options_.variance},
                                {"timestep_spacing", options_.spacing == "even" ? "linspace" : "leading"},
                                {"clip_sample", false},
                                {"set_alpha_to_one", !is_leading || options_.set_alpha_to_one},
                                {"steps_offset", is_leading ? options_.steps_offset : 0}};
    if (options_.zero_terminal_snr) config["rescale_betas_zero_snr"] = true;
    return config;
  }

 private:
  static Tensor at_times(const Tensor& table, const Tensor& t_B, int64_t offset) {
    return table.to(t_B.device()).index_select(0, t_B.flatten().round().to(at::kLong) + offset).view(t_B.sizes());
  }
  Chain between(double t, double s) const {
    return Chain(at_times(abar_, torch::full({1}, t, at::kDouble), 1),
                 at_times(abar_, torch::full({1}, s, at::kDouble), 1));
  }
  Chain chain_at(const Tensor& t_B) const {
    Chain at = chain_;
    for (Tensor* table : {&at.mean_clean, &at.mean_x, &at.log_small, &at.log_large}) *table = at_times(*table, t_B, 0);
    return at;
  }
  bool learned() const { return options_.variance == "learned_range"; }

  // What the mean follows from, and the place of the log-variance between its bounds, 0 ... 1 (undefined where it is
  // not learned).
  std::pair<Tensor, Tensor> parts(const Tensor& prediction, const Tensor& x) const {
    if (prediction.size(1) != out_channels(x.size(1)))
      throw ditto::Error(ditto::ErrorKind::shape, "prediction",
                         "has " + std::to_string(prediction.size(1)) +
                             " channels, and scheduler 'iddpm' with variance = \"" + options_.variance + "\" needs " +
                             std::to_string(out_channels(x.size(1))),
                         "give the model as many output channels, or change the variance");
    if (!learned()) return {prediction, {}};
    const auto halves = prediction.chunk(2, 1);
    return {halves[0], (halves[1] + 1) / 2};
  }

  Tensor log_variance(const Chain& chain, const Tensor& fraction, const Tensor& x) const {
    const auto small = spread(chain.log_small, x), large = spread(chain.log_large, x);
    if (learned()) return fraction.to(x.scalar_type()) * large + (1 - fraction.to(x.scalar_type())) * small;
    return (options_.variance == "fixed_small" ? small : large).expand_as(x);
  }

  // KL(q(x_s | x_t, x_0) || p(x_s | x_t)) [B], and at t = 0 the discretised likelihood of x_0. Bits, a mean over dims.
  Tensor variational_bound(const Tensor& prediction, const Tensor& fraction, const Tensor& clean, const Tensor& noise,
                           const Tensor& t_B, const ditto::OpTable* ops) const {
    const Chain at = chain_at(t_B);
    const auto x_t = corrupt(clean, noise, t_B);
    const auto guess = prediction_.to_clean(prediction, x_t, alpha(t_B), sigma(t_B));
    const auto posterior = [&](const Tensor& x_0) {
      return spread(at.mean_clean, x_t) * x_0 + spread(at.mean_x, x_t) * x_t;
    };
    const auto log_var = log_variance(at, fraction, x_t);
    const Functions f{ops};
    const auto kl = kl_divergence(posterior(clean), spread(at.log_small, x_t), posterior(guess), log_var, f);
    const auto nll = discretised_nll(clean, posterior(guess), log_var, f);
    const auto is_first = spread(t_B, x_t) == 0;
    return ditto::sample_mean(torch::where(is_first, nll, kl), ops) / kLn2;
  }

  // `steps` times from 0 to timesteps - 1 as evenly as integers allow; halves go to the even neighbour, as in Python.
  std::vector<double> even_times(int64_t steps) const {
    if (steps < 2 || steps > options_.timesteps)
      throw ditto::Error(
          ditto::ErrorKind::config, "scheduler 'iddpm'",
          "cannot choose " + std::to_string(steps) + " of " + std::to_string(options_.timesteps) + " times",
          "use 2 to " + std::to_string(options_.timesteps) + " sampling steps");
    const double stride = static_cast<double>(options_.timesteps - 1) / static_cast<double>(steps - 1);
    std::vector<double> kept;
    double time = 0;
    for (int64_t i = 0; i < steps; ++i, time += stride) kept.push_back(std::nearbyint(time));
    return kept;
  }

  // As diffusers' DDIMScheduler counts "leading": what lies beyond the first time is the data, or that time itself.
  std::vector<double> leading_grid(int64_t steps) const {
    const int64_t offset = options_.steps_offset, stride = options_.timesteps / std::max<int64_t>(steps, 1);
    if (steps < 1 || stride < 1 || (steps - 1) * stride + offset >= options_.timesteps)
      throw ditto::Error(ditto::ErrorKind::config, "scheduler 'iddpm'",
                         "cannot choose " + std::to_string(steps) + " of " + std::to_string(options_.timesteps) +
                             " times from " + std::to_string(offset) + " on",
                         "use fewer sampling steps, or a smaller steps_offset");
    std::vector<double> grid;
    for (int64_t i = steps; i-- > 0;) grid.push_back(static_cast<double>(i * stride + offset));
    const int64_t beyond = offset - stride;
    grid.push_back(beyond >= 0 ? static_cast<double>(beyond) : options_.set_alpha_to_one ? -1 : 0);
    return grid;
  }

  std::vector<double> strided_times(int64_t steps) const {
    const int64_t total = options_.timesteps;
    int64_t nearest = 2;
    for (int64_t stride = 1; stride < total; ++stride) {
      const int64_t count = (total + stride - 1) / stride;
      if (std::abs(count - steps) < std::abs(nearest - steps)) nearest = count;
      if (count != steps) continue;
      std::vector<double> kept;
      for (int64_t t = 0; t < total; t += stride) kept.push_back(static_cast<double>(t));
      return kept;
    }
    throw ditto::Error(ditto::ErrorKind::config, "scheduler 'iddpm'",
                       "no integer stride takes " + std::to_string(steps) + " of " + std::to_string(total) + " times",
                       "use " + std::to_string(nearest) + " sampling steps, or spacing = \"even\"");
  }

  Options options_;
  ditto::Prediction prediction_;
  Tensor abar_, alpha_, sigma_;  // double [timesteps + 1], from t = -1
  Chain chain_;                  // the training chain's steps, double [timesteps] each
};

}  // namespace

DITTO_PLUGIN(Scheduler, Iddpm, "iddpm", "1.0.0", "Apache-2.0",
             "DDPM with a learned variance: epsilon, linear betas, respacing")
