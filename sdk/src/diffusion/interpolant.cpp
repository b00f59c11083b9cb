#include <ditto/diffusion/interpolant.h>

#include <torch/types.h>

#include <ditto/math/elementary.h>

namespace ditto {

using torch::Tensor;

Interpolant::~Interpolant() = default;

void Interpolant::Options::read(OptionReader& option) {
  option("prediction", prediction,
         "what the model predicts: velocity alpha' data + sigma' noise, score -noise / sigma, or noise")
      .one_of({"velocity", "score", "noise"});
  option("weight", weight, "SiT's weight of the error of score and noise").one_of({"none", "velocity", "likelihood"});
  option("train_eps", train_eps, "training times keep so far from the ends where the formulas end").between(0.0, 0.1);
  option("sample_eps", sample_eps, "the same of sampling times").between(0.0, 0.1);
  option("model_time_scale", model_time_scale, "the model sees t times this: 1 for SiT's weights").above(0.0);
  if (prediction == "velocity" && weight != "none")
    option.reject("weight", "is of score and noise, and the model predicts the velocity", "leave it at \"none\"");
}

Tensor Interpolant::each(const Tensor& t_B, double Point::*what) const {
  return elementary::map(t_B, [&](double t) { return at(t).*what; });
}

Tensor Interpolant::times(const Tensor& u_B) const {
  const double first = from(options_.train_eps), last = to(options_.train_eps);
  return first + (last - first) * u_B.to(torch::kDouble);
}

Tensor Interpolant::alpha(const Tensor& t_B) const { return each(t_B, &Point::alpha); }
Tensor Interpolant::sigma(const Tensor& t_B) const { return each(t_B, &Point::sigma); }

Tensor Interpolant::target(const Tensor& clean, const Tensor& noise, const Tensor& t_B) const {
  const auto eps = noise.to(clean.scalar_type());
  if (options_.prediction == "noise") return eps;
  if (options_.prediction == "score") return -eps / spread(sigma(t_B), clean);
  return spread(each(t_B, &Point::d_alpha), clean) * clean + spread(each(t_B, &Point::d_sigma), clean) * eps;
}

Tensor Interpolant::weight(const Tensor& t_B) const {
  if (options_.prediction == "velocity") return torch::ones_like(t_B);
  return elementary::map(t_B, [&](double t) {
    const auto p = at(t);
    const double drift = p.d_alpha / p.alpha * p.sigma * p.sigma - p.sigma * p.d_sigma;
    const double of_eps = options_.weight == "none"       ? 1
                          : options_.weight == "velocity" ? drift / p.sigma * (drift / p.sigma)
                                                          : drift / (p.sigma * p.sigma);
    return options_.prediction == "noise" ? of_eps : of_eps * p.sigma * p.sigma;  // score's error is eps's / sigma
  });
}

std::vector<Tensor> Interpolant::factors(const Tensor& t_B) const {
  auto all = Scheduler::factors(t_B);
  if (options_.prediction == "velocity")
    for (const auto what : {&Point::d_alpha, &Point::d_sigma}) all.push_back(each(t_B, what));
  return all;
}

Tensor Interpolant::to_noise(const Tensor& prediction, const Tensor& x_t, const Tensor& t_B) const {
  const auto given = prediction.to(x_t.scalar_type());
  if (options_.prediction == "noise") return given;
  if (options_.prediction == "score") return -spread(sigma(t_B), x_t) * given;
  // x = alpha x_0 + sigma eps and v = alpha' x_0 + sigma' eps, solved.
  const auto a = each(t_B, &Point::alpha), s = sigma(t_B), da = each(t_B, &Point::d_alpha),
             ds = each(t_B, &Point::d_sigma), det = a * ds - s * da;
  return spread(a / det, x_t) * given - spread(da / det, x_t) * x_t;
}

Tensor Interpolant::to_clean(const Tensor& prediction, const Tensor& x_t, const Tensor& t_B) const {
  const auto a = each(t_B, &Point::alpha), s = sigma(t_B);
  if (options_.prediction != "velocity")
    return (x_t - spread(s, x_t) * to_noise(prediction, x_t, t_B)) / spread(a, x_t);
  const auto da = each(t_B, &Point::d_alpha), ds = each(t_B, &Point::d_sigma), det = a * ds - s * da;
  return spread(ds / det, x_t) * x_t - spread(s / det, x_t) * prediction.to(x_t.scalar_type());
}

std::vector<double> Interpolant::time_grid(int64_t steps) const {
  if (steps < 1)
    throw Error(ErrorKind::config, "scheduler '" + name_ + "'",
                "cannot make a grid of " + std::to_string(steps) + " steps", "use 1 or more");
  return elementary::even_steps(from(options_.sample_eps), to(options_.sample_eps), steps + 1);
}

std::optional<Scheduler::Slope> Interpolant::slope(double t) const {
  if (options_.prediction != "velocity" && at(t).alpha == 0) return std::nullopt;
  return Slope{at(t).d_alpha, at(t).d_sigma};
}

}  // namespace ditto
