// Lion: X. Chen et al., "Symbolic discovery of optimization algorithms", 2023 (arXiv:2302.06675), algorithm 2.
#include <ditto/ditto.h>
#include <ditto/list_update.h>

namespace {

using torch::Tensor;

struct LionOptions {
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0.0;
  bool decay_vectors = true;

  void read(ditto::OptionReader& option) {
    option("beta1", beta1, "share of the moment in the direction of a step").between(0, 1);
    option("beta2", beta2, "decay of the moment").between(0, 1);
    option("weight_decay", weight_decay, "decoupled: weights lose lr * weight_decay of themselves a step").at_least(0);
    option("decay_vectors", decay_vectors, "decay biases and other one-dimensional parameters too");
    option.only_if(weight_decay > 0, {"decay_vectors"}, "says what weight_decay is of, and that is 0");
    if (beta2 == 1) option.reject("beta2", "is 1, and its moment would stay 0", "set it below 1");
  }
};

// Every operation here rounds once, wherever a number stands in its tensor: a slice moves as the whole does.
struct Lion final : ditto::Optimizer {
  using Options = LionOptions;

  Lion(const Options& o, const Needs& needs) : options(o), parameters(needs.parameters), ops(needs.ops) {
    for (const auto& p : parameters) exp_avg.push_back(torch::zeros_like(p.tensor.detach()));
  }

  void step(const ditto::Update& update) override {
    if (ditto::in_one_call(
            "lion_all", ops, as_list(update),
            {{"beta1", options.beta1}, {"beta2", options.beta2}, {"weight_decay", options.weight_decay}}))
      return;
    ditto::in_parts(update, parameters, [&] {
      for (size_t i = 0; i < parameters.size(); ++i)
        if (parameters[i].tensor.grad().defined())
          ditto::unless_skipped(update, {parameters[i].tensor, exp_avg[i]}, [&] { move(i, update.lr); });
    });
  }

  std::optional<ditto::ListUpdate> as_list(const ditto::Update& update) const {
    auto list = ditto::ListUpdate::of(update, parameters, {exp_avg});
    if (!list) return list;
    for (size_t i = 0; i < parameters.size(); ++i) list->parameters[i].decayed = is_decayed(parameters[i]);
    return list;
  }
  bool is_decayed(const ditto::OptimizedParameter& p) const { return options.decay_vectors || p.full_shape.size() > 1; }

  bool exact() const override { return true; }
  bool skips() const override { return true; }

  void move(size_t i, double lr) {
    const auto& p = parameters[i];
    const Tensor weight = p.tensor.detach(), grad = p.tensor.grad();
    const Tensor direction = exp_avg[i] * options.beta1 + grad * (1 - options.beta1);
    if (is_decayed(p)) weight.mul_(1 - lr * options.weight_decay);
    weight.sub_(direction.sign() * lr);
    exp_avg[i].mul_(options.beta2).add_(grad * (1 - options.beta2));
  }

  std::map<std::string, ditto::OptimizerState> state() override { return {{"exp_avg", {exp_avg}}}; }
  Counters counters() const override { return {}; }
  void set_counters(const Counters&) override {}

  Options options;
  std::vector<ditto::OptimizedParameter> parameters;
  const ditto::OpTable* ops;  // null: the host gives none
  std::vector<Tensor> exp_avg;
};

}  // namespace

DITTO_PLUGIN(Optimizer, Lion, "lion", "1.0.0", "Apache-2.0", "steps of the sign of a moment; half of AdamW's state")
