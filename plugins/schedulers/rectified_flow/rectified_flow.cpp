// Rectified flow: straight lines between data and noise (Liu et al., arXiv:2209.03003; Lipman et al.,
// arXiv:2210.02747).
//
// With the noise level s in [0, 1]: x = (1 - s) data + s noise. Two conventions are in use, and a model's weights
// follow one:
//   noise_at_one (Stable Diffusion 3, diffusers): t = s,     the target is noise - data
//   data_at_one  (SiT, flow matching's papers):   t = 1 - s, the target is data - noise
// Everything below is written in s, so that the two are the same training up to names.
#include <cmath>

#include <torch/types.h>

#include <ditto/math/elementary.h>
#include <ditto/math/sizes.h>
#include <ditto/scheduler.h>

namespace {

using ditto::spread;

constexpr double kDiffusersTrainTimes = 1000;

class RectifiedFlow : public ditto::Scheduler {
 public:
  struct Options {
    std::string convention = "noise_at_one", times = "uniform", grid = "uniform";
    double mean = 0.0, std = 1.0, shift = 1.0, model_time_scale = 1000.0;
    std::string shift_by = "nothing";
    int64_t shift_base = 4096, shift_patch = 2, base_tokens = 256, max_tokens = 4096;
    double base_shift = 0.5, max_shift = 1.15;

    void read(ditto::OptionReader& option) {
      option("convention", convention,
             "noise_at_one: t = 1 is noise, target noise - data; data_at_one: the reverse (SiT)")
          .one_of({"noise_at_one", "data_at_one"});
      option("times", times, "distribution of the training noise level: uniform, or normal in its logit")
          .one_of({"uniform", "logit_normal"});
      option("mean", mean, "logit_normal: mean of the noise level's logit; above 0 trains more on noisy pictures");
      option("std", std, "logit_normal: its standard deviation").above(0.0);
      option.only_if(times == "logit_normal", {"mean", "std"}, "is of times = \"logit_normal\"");
      option("shift", shift, "moves training and sampling towards noise: s -> shift s / (1 + (shift - 1) s)")
          .above(0.0);
      option(
          "shift_by", shift_by,
          "a further factor of the shift by a sample's size: area: sqrt(places / shift_base) (SD3, Open-Sora); or mu, "
          "even in its tokens: exponential: exp(mu); linear: mu (Flux)")
          .one_of({"nothing", "area", "exponential", "linear"});
      option("shift_base", shift_base, "area: frames times height times width of the size that is not shifted")
          .at_least(1);
      option("shift_patch", shift_patch, "mu: side of the squares that are its tokens").between(1, ditto::most::kPatch);
      option("base_tokens", base_tokens, "mu: tokens that have base_shift").at_least(1);
      option("max_tokens", max_tokens, "mu: tokens that have max_shift").at_least(1);
      option("base_shift", base_shift, "mu at base_tokens");
      option("max_shift", max_shift, "mu at max_tokens");
      option.only_if(shift_by == "area", {"shift_base"}, "is of shift_by = \"area\"");
      option.only_if(shift_by == "exponential" || shift_by == "linear",
                     {"shift_patch", "base_tokens", "max_tokens", "base_shift", "max_shift"},
                     "is of shift_by = \"exponential\" or \"linear\"");
      if (max_tokens <= base_tokens)
        option.reject("max_tokens", "is not above scheduler.base_tokens", "mu needs two different counts");
      option("grid", grid, "sampling levels before the shift: uniform 1 ... 0; diffusers: 1 ... 1/1000 evenly, then 0")
          .one_of({"uniform", "diffusers"});
      option("model_time_scale", model_time_scale,
             "the model sees t times this: 1000 for diffusers' weights, 1 for SiT's")
          .above(0.0);
    }
  };
  RectifiedFlow(const Options& options, const Needs&) : options_(options) {}

  torch::Tensor times(const torch::Tensor& u_B) const override {
    const auto uniform = u_B.to(at::kDouble);
    if (options_.times == "uniform") return swap(shifted(uniform));
    return swap(shifted(ditto::elementary::map(uniform, [this](double u) {
      const double logit = options_.mean + options_.std * ditto::elementary::normal_quantile(u);
      return 1 / (1 + ditto::elementary::exp(-logit));
    })));
  }
  torch::Tensor alpha(const torch::Tensor& t_B) const override { return data_at_one() ? t_B : 1 - t_B; }
  torch::Tensor sigma(const torch::Tensor& t_B) const override { return data_at_one() ? 1 - t_B : t_B; }
  torch::Tensor c_noise(const torch::Tensor& t_B) const override { return options_.model_time_scale * t_B; }

  torch::Tensor target(const torch::Tensor& clean, const torch::Tensor& noise, const torch::Tensor&) const override {
    return data_at_one() ? clean - noise : noise - clean;
  }
  torch::Tensor to_clean(const torch::Tensor& prediction, const torch::Tensor& x_t,
                         const torch::Tensor& t_B) const override {
    return x_t - spread(sigma(t_B), x_t) * noise_minus_data(prediction, x_t);
  }
  torch::Tensor to_noise(const torch::Tensor& prediction, const torch::Tensor& x_t,
                         const torch::Tensor& t_B) const override {
    return x_t + spread(alpha(t_B), x_t) * noise_minus_data(prediction, x_t);
  }

  std::vector<double> time_grid(int64_t steps) const override {
    if (steps < 1)
      throw ditto::Error(ditto::ErrorKind::config, "scheduler 'rectified_flow'",
                         "cannot make a grid of " + std::to_string(steps) + " steps", "use 1 or more");
    const auto n = static_cast<double>(steps);
    std::vector<double> grid;
    for (double i = 0; i < n; ++i) {
      // diffusers' FlowMatchEulerDiscreteScheduler ends its even spacing at the last *shifted* training level.
      const double even = 1 - (1 - shifted(1 / kDiffusersTrainTimes)) * i / std::max(1.0, n - 1);
      grid.push_back(swap(shifted(options_.grid == "uniform" ? 1 - i / n : even)));
    }
    grid.push_back(swap(0.0));
    return grid;
  }

  std::optional<Slope> slope(double) const override { return data_at_one() ? Slope{1, -1} : Slope{-1, 1}; }

  std::shared_ptr<const Scheduler> for_size(at::IntArrayRef sizes) const override {
    if (options_.shift_by == "nothing") return nullptr;
    auto sized = options_;
    sized.shift *= factor(sizes);
    sized.shift_by = "nothing";
    return std::make_shared<RectifiedFlow>(sized, Needs{});
  }

  // Theirs counts times in its training times, for the model and for the levels of its grid alike.
  ditto::ForeignConfig foreign_config(const std::string& format) const override {
    if (format != "diffusers" || options_.model_time_scale != kDiffusersTrainTimes) return {};
    ditto::ForeignConfig config{{"_class_name", "FlowMatchEulerDiscreteScheduler"},
                                {"num_train_timesteps", static_cast<int64_t>(kDiffusersTrainTimes)},
                                {"shift", options_.shift},
                                {"invert_sigmas", data_at_one()}};
    if (options_.shift_by == "nothing") return config;
    if (options_.shift_by == "area" || options_.shift != 1) return {};  // theirs shifts by mu instead of `shift`
    config.insert({{"use_dynamic_shifting", true},
                   {"time_shift_type", options_.shift_by},
                   {"base_shift", options_.base_shift},
                   {"max_shift", options_.max_shift},
                   {"base_image_seq_len", options_.base_tokens},
                   {"max_image_seq_len", options_.max_tokens}});
    return config;
  }

 private:
  bool data_at_one() const { return options_.convention == "data_at_one"; }
  template <class T>
  T shifted(const T& s) const {
    return options_.shift * s / (1 + (options_.shift - 1) * s);
  }
  template <class T>
  T swap(const T& s) const {
    return data_at_one() ? T(1 - s) : s;
  }
  // Esser et al., arXiv:2403.03206, eq. 23; mu as in Flux's program and diffusers' time_shift.
  double factor(at::IntArrayRef sizes) const {
    double places = 1;
    for (const int64_t side : sizes.slice(1)) places *= static_cast<double>(side);
    if (options_.shift_by == "area") return std::sqrt(places / static_cast<double>(options_.shift_base));
    const auto patch = static_cast<double>(options_.shift_patch), base = static_cast<double>(options_.base_tokens);
    const double slope = (options_.max_shift - options_.base_shift) / (static_cast<double>(options_.max_tokens) - base);
    const double mu = options_.base_shift + (places / (patch * patch) - base) * slope;
    if (options_.shift_by == "exponential") return ditto::elementary::exp(mu);
    if (mu > 0) return mu;
    throw ditto::Error(ditto::ErrorKind::config, "scheduler.shift_by",
                       "= \"linear\" makes a shift of " + std::to_string(mu) + " of a sample of this size",
                       "raise scheduler.base_shift, or use \"exponential\"");
  }
  torch::Tensor noise_minus_data(const torch::Tensor& prediction, const torch::Tensor& x_t) const {
    const auto velocity = prediction.to(x_t.scalar_type());
    return data_at_one() ? -velocity : velocity;
  }

  Options options_;
};

}  // namespace

DITTO_PLUGIN(Scheduler, RectifiedFlow, "rectified_flow", "1.0.0", "Apache-2.0",
             "Straight paths between data and noise; velocity target")
