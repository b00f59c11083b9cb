// Adafactor: N. Shazeer and M. Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018
// (arXiv:1804.04235), as torch.optim.Adafactor computes it: of a matrix's second moment a mean a row and a mean a
// column are kept.
//
// Legend: … any dims before, A rows, B columns of the whole parameter.
#include <cmath>
#include <limits>

#include <torch/types.h>

#include <ditto/optimizer.h>

namespace {

using torch::Tensor;

struct AdafactorOptions {
  double decay = 0.8, eps = 0, least_scale = 1e-3, clip = 1.0, weight_decay = 0.0;
  bool decay_vectors = true;

  void read(ditto::OptionReader& option) {
    option("decay", decay, "after t steps the second moment keeps 1 - t^-decay of itself").above(0);
    option("eps", eps, "least root of the second moment; 0: the dtype's own epsilon").at_least(0);
    option("least_scale", least_scale, "a step is lr, at most 1 / sqrt(t), times the weights' root mean square or this")
        .above(0);
    option("clip", clip, "largest root mean square of a parameter's update, before lr").above(0);
    option("weight_decay", weight_decay, "decoupled: weights lose lr * weight_decay of themselves a step").at_least(0);
    option("decay_vectors", decay_vectors, "decay biases and other one-dimensional parameters too");
    option.only_if(weight_decay > 0, {"decay_vectors"}, "says what weight_decay is of, and that is 0");
    if (eps > 0 && eps < 1e-18)
      option.reject("eps", "is so small that its square is 0", "set it to 1e-18 or more, or to 0");
  }
};

// [] fp64: the host reads none of it, which would wait for a device.
Tensor mean_root(const Tensor& x) { return x.norm().to(at::kDouble) / std::sqrt(static_cast<double>(x.numel())); }

// Means over a whole parameter make its update: it is computed where WholeTensors brings it, and its moments stay
// there.
struct Adafactor final : ditto::Optimizer {
  using Options = AdafactorOptions;

  Adafactor(const Options& o, const Needs& needs) : options(o), parameters(needs.parameters), whole(needs.whole) {
    std::vector<Tensor> weights;
    for (const auto& p : parameters) weights.push_back(p.tensor.detach());
    const auto here = parameters.empty() ? std::vector<bool>() : whole->here(weights);
    for (size_t i = 0; i < parameters.size(); ++i) {
      auto shape = parameters[i].full_shape;
      const bool factored = shape.size() > 1;
      const auto zeros = [&](bool wanted, const std::vector<int64_t>& of) {
        return wanted && here[i] ? torch::zeros(of, weights[i].options()) : Tensor();
      };
      second.push_back(zeros(!factored, shape));
      auto row = shape, column = shape;
      if (factored) row[row.size() - 1] = 1, column[column.size() - 2] = 1;
      rows.push_back(zeros(factored, row));
      columns.push_back(zeros(factored, column));
    }
  }

  Granularity granularity() const override { return Granularity::matrix; }

  void step(const ditto::Update& update) override {
    ditto::in_parts(update, parameters, [&] { move(update); });
  }

  bool skips() const override { return true; }

  // A parameter without a gradient is brought along, so that each stays where its moments are.
  void move(const ditto::Update& update) {
    const double lr = update.lr;
    ++steps;
    if (parameters.empty()) return;
    std::vector<Tensor> weights, grads;
    for (const auto& p : parameters) {
      weights.push_back(p.tensor.detach());
      grads.push_back(p.tensor.grad().defined() ? p.tensor.grad() : torch::zeros_like(weights.back()));
    }
    auto updates = whole->gather(grads);
    const auto whole_weights = whole->gather(weights);
    for (size_t i = 0; i < parameters.size(); ++i)
      if (updates[i].defined() && parameters[i].tensor.grad().defined() && updates[i].numel() > 0)
        ditto::unless_skipped(update, moments(i), [&] { updates[i] = update_of(i, whole_weights[i], updates[i], lr); });
    updates = whole->scatter(updates, weights);
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].tensor.grad().defined()) continue;
      ditto::unless_skipped(update, {weights[i]}, [&] {
        if (options.decay_vectors || parameters[i].full_shape.size() > 1)
          weights[i].mul_(1 - lr * options.weight_decay);
        weights[i].sub_(updates[i]);
      });
    }
  }

  std::vector<Tensor> moments(size_t i) const {
    return second[i].defined() ? std::vector<Tensor>{second[i]} : std::vector<Tensor>{rows[i], columns[i]};
  }

  // Of a whole parameter; takes the moments along.
  Tensor update_of(size_t i, const Tensor& weight, const Tensor& grad, double lr) {
    const auto t = static_cast<double>(steps);
    const double share = std::pow(t, -options.decay);
    const Tensor alpha = mean_root(weight).clamp_min(options.least_scale) * std::min(lr, 1 / std::sqrt(t));
    const double eps = options.eps > 0                       ? options.eps
                       : weight.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                             : std::numeric_limits<float>::epsilon();
    Tensor update = second_moment(i, grad, share, eps).clamp_min(eps * eps).rsqrt().mul(grad);
    const Tensor scale = alpha / (mean_root(update) / options.clip).clamp_min(1.0);
    return update.mul(scale.to(update.scalar_type()));  // a weight that is one number would make fp64 of it
  }

  Tensor second_moment(size_t i, const Tensor& grad, double share, double eps) {
    if (second[i].defined()) return second[i].lerp_(grad * grad, share);
    rows[i].lerp_((grad * grad).mean(-1, true), share);
    columns[i].lerp_((grad * grad).mean(-2, true), share);
    return torch::matmul(rows[i], columns[i]) / rows[i].mean(-2, true).clamp_min(eps);
  }

  std::map<std::string, ditto::OptimizerState> state() override {
    return {{"second", {.tensors = second, .whole = true}},
            {"second_rows", {.tensors = rows, .whole = true}},
            {"second_columns", {.tensors = columns, .whole = true}}};
  }
  Counters counters() const override { return {{"steps", static_cast<double>(steps)}}; }
  void set_counters(const Counters& counters) override { steps = static_cast<int64_t>(counters.at("steps")); }

  Options options;
  std::vector<ditto::OptimizedParameter> parameters;
  const ditto::WholeTensors* whole;
  std::vector<Tensor> second;         // of vectors
  std::vector<Tensor> rows, columns;  // [… A 1] and [… 1 B] of matrices
  int64_t steps = 0;
};

}  // namespace

DITTO_PLUGIN(Optimizer, Adafactor, "adafactor", "1.0.0", "Apache-2.0", "second moments as a mean a row and a column")
