// Gradient descent with momentum. "changed weight": after a step one weight is another; "skipped step": a step moves
// none.
#include <torch/types.h>

#include <ditto/optimizer.h>

#include "tampered.h"

namespace {

struct Options {
  double momentum = 0.9;
  void read(ditto::OptionReader& option) { option("momentum", momentum, "share of the last direction that is kept"); }
};

class Tampered final : public ditto::Optimizer {
 public:
  using Options = ::Options;
  Tampered(const Options& options, const Needs& needs) : share_(options.momentum), parameters_(needs.parameters) {
    for (const auto& p : parameters_) momentum_.push_back(torch::zeros_like(p.tensor.detach()));
  }

  bool exact() const override { return true; }
  void step(const ditto::Update& update) override {
    ++steps_;
    ditto::in_parts(update, parameters_, [&] {
      if (!tampers("skipped step", steps_)) move(update.lr);
      if (tampers("changed weight", steps_)) parameters_.front().tensor.detach().view(-1)[0] += 1e-3;
    });
  }

  // Each operation rounds once, wherever a number stands.
  void move(double lr) {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const auto& grad = parameters_[i].tensor.grad();
      if (!grad.defined()) continue;
      momentum_[i].mul_(share_).add_(grad);
      parameters_[i].tensor.sub_(momentum_[i] * lr);
    }
  }
  std::map<std::string, ditto::OptimizerState> state() override { return {{"momentum", {momentum_}}}; }
  Counters counters() const override { return {{"steps", static_cast<double>(steps_)}}; }
  void set_counters(const Counters& counters) override { steps_ = static_cast<int64_t>(counters.at("steps")); }

 private:
  double share_;
  std::vector<ditto::OptimizedParameter> parameters_;
  std::vector<torch::Tensor> momentum_;
  int64_t steps_ = 0;
};

}  // namespace

DITTO_PLUGIN(Optimizer, Tampered, "tampered_optimizer", "1.0.0", "Apache-2.0", "gradient descent with momentum")
