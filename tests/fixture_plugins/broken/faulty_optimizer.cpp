// Gradient descent with momentum that breaks one promise of the interface, as its option says.
#include <torch/types.h>

#include <ditto/optimizer.h>

namespace {

struct Options {
  std::string fault = "none";
  void read(ditto::OptionReader& option) { option("fault", fault, "the promise to break"); }
};

class Faulty final : public ditto::Optimizer {
 public:
  using Options = ::Options;
  Faulty(const Options& options, const Needs& needs)
      : fault_(options.fault), parameters_(needs.parameters), exact_(needs.exact) {
    for (const auto& p : parameters_) momentum_.push_back(torch::zeros_like(p.tensor.detach()));
  }

  bool exact() const override { return fault_ == "exact norm of slices"; }
  bool skips() const override { return fault_ == "none" || fault_ == "moves when skipped"; }
  void step(const ditto::Update& update) override {
    if (fault_ == "leaves average")
      move(update);
    else
      ditto::in_parts(update, parameters_, [&] { move(update); });
  }

  void move(const ditto::Update& update) {
    torch::NoGradGuard no_grad;
    if (!parameters_.empty() || fault_ != "counts nothing without parameters") ++steps_;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      auto& x = parameters_[i].tensor;
      auto grad = x.grad();
      if (!grad.defined() && fault_ == "moves without gradient") grad = torch::ones_like(x);
      if (!grad.defined()) continue;
      if (fault_ == "random") grad = grad + torch::randn_like(grad);
      if (fault_ == "whole norm") grad = grad / grad.norm();
      if (exact_) grad = grad * (1 + 1e-6 * grad.norm());  // little: a difference that rounding could make
      const auto change = [&] {
        momentum_[i].mul_(0.9).add_(grad);
        const double rate = fault_ == "climbs" ? -update.lr : update.lr / static_cast<double>(steps_);
        if (fault_ != "stands still") x.sub_(momentum_[i] * rate);
      };
      if (fault_ == "moves when skipped")
        change();
      else
        ditto::unless_skipped(update, {x, momentum_[i]}, change);
    }
  }
  std::map<std::string, ditto::OptimizerState> state() override {
    if (fault_ == "hides state") return {};
    if (fault_ == "flat state") {
      auto tensors = momentum_;
      tensors[0] = tensors[0].flatten();
      return {{"momentum", {tensors}}};
    }
    if (fault_ == "whole state") return {{"momentum", {.tensors = momentum_, .whole = true}}};
    if (fault_ == "short state") return {{"momentum", {{momentum_.begin(), momentum_.end() - 1}}}};
    return {{"momentum", {momentum_}}};
  }
  Counters counters() const override { return {{"steps", static_cast<double>(steps_)}}; }
  void set_counters(const Counters& counters) override {
    if (fault_ != "forgets counters") steps_ = static_cast<int64_t>(counters.at("steps"));
  }

 private:
  std::string fault_;
  std::vector<ditto::OptimizedParameter> parameters_;
  bool exact_;
  std::vector<torch::Tensor> momentum_;
  int64_t steps_ = 0;
};

}  // namespace

DITTO_PLUGIN(Optimizer, Faulty, "faulty_optimizer", "1.0.0", "Apache-2.0", "breaks one promise")
