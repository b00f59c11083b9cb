// Schedule-free AdamW: A. Defazio et al., "The road less scheduled", 2024 (arXiv:2405.15682), algorithm 1. The gradient
// is taken at y = (1 - beta1) z + beta1 x of the point z that steps and of its average x, which is what is evaluated.
#include <cmath>

#include <torch/types.h>

#include <ditto/optimizer.h>

namespace {

using torch::Tensor;

struct ScheduleFreeOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0, power = 0.0, lr_power = 2.0;
  bool decay_vectors = true;

  void read(ditto::OptionReader& option) {
    option("beta1", beta1, "how near to the average gradients are taken").between(0, 1);
    option("beta2", beta2, "decay of the second moment").between(0, 1);
    option("eps", eps, "added to the square root of the second moment").at_least(1e-37);
    option("weight_decay", weight_decay, "decoupled, of the point where the gradient is taken").at_least(0);
    option("power", power, "a point after t steps counts t^power in the average").between(0, 10);
    option("lr_power", lr_power, "and the largest learning rate so far, to this power").between(0, 10);
    option("decay_vectors", decay_vectors, "decay biases and other one-dimensional parameters too");
    option.only_if(weight_decay > 0, {"decay_vectors"}, "says what weight_decay is of, and that is 0");
    if (beta2 == 1) option.reject("beta2", "is 1, and its moment would stay 0", "set it below 1");
  }
};

// Every operation here rounds once, wherever a number stands in its tensor: a slice moves as the whole does.
struct ScheduleFree final : ditto::Optimizer {
  using Options = ScheduleFreeOptions;

  ScheduleFree(const Options& o, const Needs& needs) : options(o), parameters(needs.parameters) {
    for (const auto& p : parameters) {
      z.push_back(torch::zeros_like(p.tensor.detach()));
      exp_avg_sq.push_back(torch::zeros_like(z.back()));
    }
  }

  bool averages() const override { return true; }

  void step(const ditto::Update& update) override {
    ditto::Update moved{.lr = update.lr, .clip = update.clip, .copies = update.copies};
    moved.late_clip = update.late_clip;
    moved.skip = update.skip;
    ditto::in_parts(moved, parameters, [&] { move(update, update.lr, update.average); });
  }

  bool skips() const override { return true; }

  void move(const ditto::Update& update, double lr, const std::vector<Tensor>& x) {
    if (steps == 0)
      for (size_t i = 0; i < z.size(); ++i)
        ditto::unless_skipped(update, {z[i]}, [&] { z[i].copy_(parameters[i].tensor.detach()); });
    const auto t = static_cast<double>(++steps);
    lr_max = std::max(lr_max, lr);
    const double weight = std::pow(t, options.power) * std::pow(lr_max, options.lr_power);
    weight_sum += weight;
    const double share = weight_sum > 0 ? weight / weight_sum : 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& p = parameters[i];
      const Tensor y = p.tensor.detach(), grad = p.tensor.grad();
      if (!grad.defined()) continue;
      ditto::unless_skipped(update, {y, z[i], exp_avg_sq[i], x.at(i)}, [&] {
        exp_avg_sq[i].mul_(options.beta2).add_(grad * grad * (1 - options.beta2));
        const Tensor deviation = exp_avg_sq[i].sqrt() / std::sqrt(1 - std::pow(options.beta2, t)) + options.eps;
        Tensor direction = grad / deviation;
        if (options.decay_vectors || p.full_shape.size() > 1) direction = direction + y * options.weight_decay;
        z[i].sub_(direction * lr);
        x.at(i).mul_(1 - share).add_(z[i] * share);
        y.copy_(z[i] * (1 - options.beta1) + x.at(i) * options.beta1);
      });
    }
  }

  std::map<std::string, ditto::OptimizerState> state() override { return {{"z", {z}}, {"exp_avg_sq", {exp_avg_sq}}}; }
  Counters counters() const override {
    return {{"steps", static_cast<double>(steps)}, {"weight_sum", weight_sum}, {"lr_max", lr_max}};
  }
  void set_counters(const Counters& counters) override {
    steps = static_cast<int64_t>(counters.at("steps"));
    weight_sum = counters.at("weight_sum");
    lr_max = counters.at("lr_max");
  }

  Options options;
  std::vector<ditto::OptimizedParameter> parameters;
  std::vector<Tensor> z, exp_avg_sq;
  int64_t steps = 0;
  double weight_sum = 0, lr_max = 0;
};

}  // namespace

DITTO_PLUGIN(Optimizer, ScheduleFree, "schedule_free", "1.0.0", "Apache-2.0",
             "schedule-free AdamW: an average of its own instead of a falling learning rate")
