// The promises of an optimizer.
#include <ditto/testing/checks.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

struct Given {
  std::string name;
  std::vector<int64_t> shape;
};
const std::vector<Given> kParameters{{"a.weight", {6, 4}}, {"a.bias", {6}}, {"table", {5, 2, 3}}};

// Some parameters and the optimizer that moves them.
class Training {
 public:
  Training(const std::string& path, const OptionValues& options) {
    for (const auto& [name, shape] : kParameters)
      parameters_.push_back({name, normal(name, shape, at::kFloat).requires_grad_(), shape});
    optimizer = make<Optimizer>(path, options, {parameters_});
  }
  // The same numbers, every parameter cut into two flat slices.
  static Training cut(const std::string& path, const OptionValues& options) {
    Training training;
    for (const auto& [name, shape] : kParameters) {
      const Tensor whole = normal(name, shape, at::kFloat).flatten();
      for (const Tensor& piece : whole.split({whole.numel() / 2 - 1, whole.numel() - whole.numel() / 2 + 1}))
        training.parameters_.push_back({name, piece.clone().requires_grad_(), shape});
    }
    training.optimizer = make<Optimizer>(path, options, {training.parameters_});
    return training;
  }

  // Of the sum of squares to a target: the gradient depends on the parameter itself.
  void step(int64_t number) {
    for (auto& p : parameters_) p.tensor.mutable_grad() = p.tensor.detach() * 0.5 + noise(p, number);
    optimizer->step(0.01);
  }
  void steps(int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) step(i);
  }
  void copy_from(const Training& other) {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.copy_(other.parameters_[i].tensor);
    auto theirs = other.optimizer->state();
    for (auto& [kind, own] : optimizer->state())
      for (size_t i = 0; i < own.tensors.size(); ++i)
        if (own.tensors[i].defined()) own.tensors[i].copy_(theirs.at(kind).tensors.at(i));
    optimizer->set_counters(other.optimizer->counters());
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> all;
    for (const auto& p : parameters_) all.push_back(p.tensor.detach().clone());
    return all;
  }
  std::vector<OptimizedParameter>& parameters() { return parameters_; }

  std::shared_ptr<Optimizer> optimizer;

 private:
  Training() = default;
  // A slice of the whole parameter's numbers; slices follow one another in the list.
  Tensor noise(const OptimizedParameter& p, int64_t number) const {
    const Tensor whole = normal("gradient " + p.name + std::to_string(number), p.full_shape, at::kFloat);
    if (p.tensor.sizes() == at::IntArrayRef(p.full_shape)) return whole;
    const bool second = p.tensor.numel() > whole.numel() / 2;
    const Tensor flat = whole.flatten();
    return second ? flat.slice(0, flat.numel() - p.tensor.numel()) : flat.slice(0, 0, p.tensor.numel());
  }
  std::vector<OptimizedParameter> parameters_;
};

std::string same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (const auto problem = difference(a[i], b[i], 0); !problem.empty()) return kParameters[i].name + " " + problem;
  return {};
}

std::string moves(const std::string& path, const OptionValues& options) {
  Training training(path, options);
  const auto before = training.values();
  training.step(0);
  for (size_t i = 0; i < before.size(); ++i) {
    if (const auto problem = not_finite(training.values()[i]); !problem.empty())
      return kParameters[i].name + " " + problem;
    if (training.values()[i].equal(before[i])) return kParameters[i].name + " did not move";
  }
  return {};
}

std::string descends(const std::string& path, const OptionValues& options) {
  const Tensor target = normal("target", {6, 4}, at::kFloat);
  std::vector<OptimizedParameter> parameters{
      {"a.weight", normal("a.weight", {6, 4}, at::kFloat).requires_grad_(), {6, 4}}};
  Tensor& x = parameters[0].tensor;
  const auto optimizer = make<Optimizer>(path, options, {parameters});
  const auto loss = [&] { return (x.detach() - target).square().sum().item<double>(); };
  const double before = loss();
  for (int i = 0; i < 50; ++i) {
    x.mutable_grad() = 2 * (x.detach() - target);
    optimizer->step(0.01);
  }
  return loss() < before ? "" : "after 50 steps the loss went from " + text(before) + " to " + text(loss());
}

std::string repeats(const std::string& path, const OptionValues& options) {
  Training a(path, options), b(path, options);
  a.steps(0, 4), b.steps(0, 4);
  return same(a.values(), b.values());
}

std::vector<int64_t> in_blocks(std::vector<int64_t> shape, int64_t block) {
  shape.back() = (shape.back() + block - 1) / block;
  return shape;
}

std::string state_shapes(const std::string& path, const OptionValues& options) {
  Training training(path, options);
  const auto check = [&](const std::string& when) -> std::string {
    for (const auto& [kind, state] : training.optimizer->state()) {
      const auto& tensors = state.tensors;
      if (tensors.size() != kParameters.size()) return when + " \"" + kind + "\" has another number of tensors";
      for (size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i].defined() && tensors[i].sizes() != at::IntArrayRef(in_blocks(kParameters[i].shape, state.block)))
          return when + " \"" + kind + "\" of " + kParameters[i].name + " has shape " + shape_text(tensors[i].sizes());
    }
    return {};
  };
  const auto problem = check("before a step");
  if (!problem.empty()) return problem;
  training.step(0);
  return check("after a step");
}

std::string round_trip(const std::string& path, const OptionValues& options) {
  Training whole(path, options), restored(path, options);
  whole.steps(0, 3);
  restored.copy_from(whole);
  whole.steps(3, 6), restored.steps(3, 6);
  return same(restored.values(), whole.values());
}

std::string slices(const std::string& path, const OptionValues& options) {
  Training whole(path, options), cut = Training::cut(path, options);
  whole.steps(0, 4), cut.steps(0, 4);
  const auto pieces = cut.values();
  std::vector<Tensor> joined;
  for (size_t i = 0; i < kParameters.size(); ++i)
    joined.push_back(torch::cat({pieces[2 * i], pieces[2 * i + 1]}).view(kParameters[i].shape));
  return same(joined, whole.values());
}

std::string undefined_gradient(const std::string& path, const OptionValues& options) {
  Training training(path, options);
  training.step(0);
  const Tensor before = training.values()[1];
  for (auto& p : training.parameters()) p.tensor.mutable_grad() = torch::ones_like(p.tensor.detach());
  training.parameters()[1].tensor.mutable_grad().reset();
  training.optimizer->step(0.01);
  return training.values()[1].equal(before) ? "" : "the parameter moved";
}

}  // namespace

Report check_optimizer(const std::string& path, const OptionValues& options) {
  Report report("optimizer " + path);
  report.check("a step moves every parameter that has a gradient", [&] { return moves(path, options); });
  report.check("a parameter without a gradient stays", [&] { return undefined_gradient(path, options); });
  report.check("50 steps lower a sum of squares", [&] { return descends(path, options); });
  report.check("two runs give the same bits", [&] { return repeats(path, options); });
  report.check("state tensors lie along the parameters, before and after a step",
               [&] { return state_shapes(path, options); });
  report.check("a run goes on bit for bit from saved state and counters", [&] { return round_trip(path, options); });
  const std::string promise = "slices of a parameter move as the whole does, bit for bit";
  std::shared_ptr<Optimizer> one;
  report.check("it can be made without parameters",
               [&] { return one = make<Optimizer>(path, options), std::string(); });
  if (one && one->granularity() == Optimizer::Granularity::elementwise)
    report.check(promise, [&] { return slices(path, options); });
  else
    report.skip(promise, "granularity() is not elementwise");
  return report;
}

}  // namespace ditto::testing
