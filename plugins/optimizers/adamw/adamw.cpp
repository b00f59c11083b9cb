// AdamW: I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2019 (arXiv:1711.05101), algorithm 2.
#include <ditto/ditto.h>

namespace {

using torch::Tensor;

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  bool decay_vectors = true;

  void read(ditto::OptionReader& option) {
    option("beta1", beta1, "decay of the first moment").between(0, 1);
    option("beta2", beta2, "decay of the second moment").between(0, 1);
    option("eps", eps, "added to the square root of the second moment").above(0);
    option("weight_decay", weight_decay, "decoupled: weights lose lr * weight_decay of themselves a step").at_least(0);
    option("decay_vectors", decay_vectors, "decay biases and other one-dimensional parameters too");
  }
};

// LibTorch's fused kernel: one pass over weights and moments.
struct AdamW final : ditto::Optimizer {
  using Options = AdamWOptions;

  AdamW(const Options& o, const Needs& needs) : options(o), parameters(needs.parameters) {
    for (const auto& p : parameters) {
      exp_avg.push_back(torch::zeros_like(p.tensor, torch::TensorOptions().requires_grad(false)));
      exp_avg_sq.push_back(torch::zeros_like(exp_avg.back()));
    }
  }

  void step(double lr) override {
    torch::NoGradGuard no_grad;
    ++steps;
    const auto count = torch::scalar_tensor(static_cast<double>(steps), torch::kFloat);
    for (const bool decayed : {true, false}) {
      std::vector<Tensor> weights, grads, first, second, counts;
      for (size_t i = 0; i < parameters.size(); ++i) {
        const auto& p = parameters[i];
        if (!p.tensor.grad().defined() || (options.decay_vectors || p.full_shape.size() > 1) != decayed) continue;
        weights.push_back(p.tensor), grads.push_back(p.tensor.grad());
        first.push_back(exp_avg[i]), second.push_back(exp_avg_sq[i]), counts.push_back(count);
      }
      if (!weights.empty())
        at::_fused_adamw_(weights, grads, first, second, {}, counts, lr, options.beta1, options.beta2,
                          decayed ? options.weight_decay : 0.0, options.eps, /*amsgrad=*/false, /*maximize=*/false);
    }
  }

  std::map<std::string, std::vector<Tensor>> state() override {
    return {{"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}};
  }
  std::map<std::string, int64_t> counters() const override { return {{"steps", steps}}; }
  void set_counters(const std::map<std::string, int64_t>& counters) override { steps = counters.at("steps"); }

  Options options;
  std::vector<ditto::OptimizedParameter> parameters;
  std::vector<Tensor> exp_avg, exp_avg_sq;
  int64_t steps = 0;
};

}  // namespace

DITTO_PLUGIN(Optimizer, AdamW, "adamw", "1.0.0", "Apache-2.0", "AdamW with decoupled weight decay, one fused pass")
