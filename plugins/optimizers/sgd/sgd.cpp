// Stochastic gradient descent with momentum: B. Polyak, 1964; Y. Nesterov's form as I. Sutskever et al., "On the
// importance of initialization and momentum in deep learning", 2013, write it. Weight decay is part of the gradient.
#include <ditto/ditto.h>
#include <ditto/list_update.h>

namespace {

using torch::Tensor;

struct SgdOptions {
  double momentum = 0.9, weight_decay = 0.0;
  bool nesterov = false, decay_vectors = true;

  void read(ditto::OptionReader& option) {
    option("momentum", momentum, "share of the last steps' direction that is kept; 0: none, and no state")
        .between(0, 1);
    option("nesterov", nesterov, "look ahead along the direction");
    option("weight_decay", weight_decay, "weights times this are added to the gradient").at_least(0);
    option("decay_vectors", decay_vectors, "decay biases and other one-dimensional parameters too");
    option.only_if(weight_decay > 0, {"decay_vectors"}, "says what weight_decay is of, and that is 0");
    if (nesterov && momentum == 0)
      option.reject("nesterov", "looks ahead along the momentum, and momentum = 0", "set momentum, or leave it out");
  }
};

// Every operation here rounds once, wherever a number stands in its tensor: a slice moves as the whole does.
struct Sgd final : ditto::Optimizer {
  using Options = SgdOptions;

  Sgd(const Options& o, const Needs& needs) : options(o), parameters(needs.parameters), ops(needs.ops) {
    if (options.momentum == 0) return;
    for (const auto& p : parameters) momentum.push_back(torch::zeros_like(p.tensor.detach()));
  }

  void step(const ditto::Update& update) override {
    if (ditto::in_one_call(
            "sgd_all", ops, as_list(update),
            {{"momentum", options.momentum}, {"nesterov", options.nesterov}, {"weight_decay", options.weight_decay}}))
      return;
    ditto::in_parts(update, parameters, [&] {
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (!parameters[i].tensor.grad().defined()) continue;
        std::vector<Tensor> moved{parameters[i].tensor};
        if (options.momentum > 0) moved.push_back(momentum[i]);
        ditto::unless_skipped(update, moved, [&] { move(i, update.lr); });
      }
    });
  }

  std::optional<ditto::ListUpdate> as_list(const ditto::Update& update) const {
    auto list = ditto::ListUpdate::of(update, parameters, {momentum});
    if (!list) return list;
    for (size_t i = 0; i < parameters.size(); ++i) list->parameters[i].decayed = is_decayed(parameters[i]);
    return list;
  }
  bool is_decayed(const ditto::OptimizedParameter& p) const { return options.decay_vectors || p.full_shape.size() > 1; }

  bool exact() const override { return true; }
  bool skips() const override { return true; }

  void move(size_t i, double lr) {
    const auto& p = parameters[i];
    Tensor direction = p.tensor.grad().detach();
    const bool decayed = options.weight_decay > 0 && is_decayed(p);
    if (decayed) direction = p.tensor.detach() * options.weight_decay + direction;
    if (options.momentum > 0) {
      momentum[i].mul_(options.momentum).add_(direction);
      direction = options.nesterov ? momentum[i] * options.momentum + direction : momentum[i];
    }
    p.tensor.detach().sub_(direction * lr);
  }

  std::map<std::string, ditto::OptimizerState> state() override {
    if (options.momentum == 0) return {};
    return {{"momentum", {momentum}}};
  }
  Counters counters() const override { return {}; }
  void set_counters(const Counters&) override {}

  Options options;
  std::vector<ditto::OptimizedParameter> parameters;
  const ditto::OpTable* ops;  // null: the host gives none
  std::vector<Tensor> momentum;
};

}  // namespace

DITTO_PLUGIN(Optimizer, Sgd, "sgd", "1.0.0", "Apache-2.0", "gradient descent with momentum, plain or Nesterov's")
