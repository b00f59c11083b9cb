// Muon: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024
// (kellerjordan.github.io/posts/muon), as torch.optim.Muon computes it: the momentum of a matrix is made orthogonal by
// a quintic Newton-Schulz iteration. `match_rms_adamw`: J. Liu et al., 2025 (arXiv:2502.16982), section 2.2. What is no
// matrix is updated by AdamW (arXiv:1711.05101).
#include <cmath>

#include <ditto/ditto.h>

namespace {

using torch::Tensor;

struct MuonOptions {
  double momentum = 0.95, weight_decay = 0.0;
  bool nesterov = true;
  int64_t iterations = 5;
  std::string precision = "fp32", adjust_lr = "original";
  std::vector<std::string> adamw{"table"};
  double adamw_lr = 1.0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  bool decay_vectors = true;

  void read(ditto::OptionReader& option) {
    option("momentum", momentum, "decay of a matrix's moment").between(0, 1);
    option("nesterov", nesterov, "look ahead along the moment");
    option("iterations", iterations, "Newton-Schulz iterations").between(1, 99);
    option("precision", precision, "what the iteration multiplies in: bf16 as published; fp64 weights always in fp64")
        .one_of({"fp32", "bf16"});
    option("adjust_lr", adjust_lr,
           "a matrix [A, B] has lr times: original: sqrt(max(1, A / B)); match_rms_adamw: 0.2 sqrt(max(A, B))")
        .one_of({"original", "match_rms_adamw"});
    option("weight_decay", weight_decay, "decoupled: weights lose lr * weight_decay of themselves a step").at_least(0);
    option("adamw", adamw, "parts of names (\"table\", \"patches\") whose parameters are AdamW's, matrices or not");
    option("adamw_lr", adamw_lr, "AdamW's learning rate as a share of lr").above(0);
    option("beta1", beta1, "AdamW: decay of the first moment").between(0, 1);
    option("beta2", beta2, "AdamW: decay of the second moment").between(0, 1);
    option("eps", eps, "AdamW: added to the square root of the second moment").at_least(1e-37);
    option("decay_vectors", decay_vectors, "decay biases and other one-dimensional parameters too");
    option.only_if(weight_decay > 0, {"decay_vectors"}, "says what weight_decay is of, and that is 0");
    for (const auto& [name, beta] :
         {std::pair("beta1", beta1), std::pair("beta2", beta2), std::pair("momentum", momentum)})
      if (beta == 1) option.reject(name, "is 1, and its moment would stay 0", "set it below 1");
  }
};

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kLeastNorm = 1e-7;

// "blocks.0.qkv.weight" has the parts blocks, 0, qkv, weight.
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// By the name and the global shape alone, so that no layout changes it. Biases of experts are tables of vectors.
bool is_matrix(const ditto::OptimizedParameter& p, const std::vector<std::string>& excepted) {
  if (p.full_shape.size() < 2 || p.name.ends_with("bias")) return false;
  for (const auto& part : parts_of(p.name))
    for (const auto& name : excepted)
      if (part == name) return false;
  return true;
}

struct Muon final : ditto::Optimizer {
  using Options = MuonOptions;

  Muon(const Options& o, const Needs& needs)
      : options(o), parameters(needs.parameters), whole(needs.whole), exact_ops(needs.exact ? needs.ops : nullptr) {
    for (const auto& p : parameters) {
      const bool matrix = is_matrix(p, options.adamw);
      const auto zeros = [&](bool wanted) { return wanted ? torch::zeros_like(p.tensor.detach()) : Tensor(); };
      momentum.push_back(zeros(matrix));
      exp_avg.push_back(zeros(!matrix));
      exp_avg_sq.push_back(zeros(!matrix));
    }
  }

  Granularity granularity() const override { return Granularity::matrix; }
  bool exact() const override { return options.precision == "fp32"; }
  bool skips() const override { return true; }

  void step(const ditto::Update& update) override {
    ditto::in_parts(update, parameters, [&] { move(update); });
  }

  void move(const ditto::Update& update) {
    ++steps;
    step_matrices(update);
    for (size_t i = 0; i < parameters.size(); ++i)
      if (exp_avg[i].defined() && parameters[i].tensor.grad().defined())
        ditto::unless_skipped(update, {parameters[i].tensor, exp_avg[i], exp_avg_sq[i]},
                              [&] { step_adamw(i, update.lr * options.adamw_lr); });
  }

  // Moments are each rank's own; the iteration runs where the whole matrix is.
  void step_matrices(const ditto::Update& update) {
    std::vector<Tensor> local(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Tensor grad = parameters[i].tensor.grad();
      if (!momentum[i].defined() || !grad.defined()) continue;
      ditto::unless_skipped(update, {momentum[i]}, [&] {
        if (exact_ops)
          momentum[i].mul_(options.momentum).add_(grad * (1 - options.momentum));
        else
          momentum[i].lerp_(grad, 1 - options.momentum);
      });
      local[i] = options.nesterov ? ahead(grad, momentum[i]) : momentum[i];
    }
    if (local.empty()) return;
    auto directions = whole->gather(local);
    for (Tensor& direction : directions)
      if (direction.defined()) direction = orthogonal(direction);
    directions = whole->scatter(directions, local);
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!directions[i].defined()) continue;
      const Tensor weight = parameters[i].tensor.detach();
      const double lr = update.lr;
      ditto::unless_skipped(update, {weight}, [&] {
        weight.mul_(1 - lr * options.weight_decay).sub_(directions[i] * (lr * adjustment(parameters[i].full_shape)));
      });
    }
  }

  Tensor ahead(const Tensor& grad, const Tensor& moment) const {
    if (!exact_ops) return grad.lerp(moment, options.momentum);
    return grad * (1 - options.momentum) + moment * options.momentum;
  }

  // Of each matrix of the last two dims.
  Tensor orthogonal(const Tensor& x) const {
    if (x.numel() == 0) return x;
    if (x.dim() == 2) return orthogonal_matrix(x);
    const Tensor stack = x.reshape({-1, x.size(-2), x.size(-1)});
    std::vector<Tensor> matrices;
    for (int64_t i = 0; i < stack.size(0); ++i) matrices.push_back(orthogonal_matrix(stack[i]));
    return torch::stack(matrices).view(x.sizes());
  }

  // Singular values go to about 1 (0.7 … 1.2), singular vectors stay.
  Tensor orthogonal_matrix(const Tensor& matrix) const {
    const bool tall = matrix.size(0) > matrix.size(1);
    Tensor x = tall ? matrix.t() : matrix;
    if (options.precision == "bf16" && x.scalar_type() == at::kFloat) x = x.to(at::kBFloat16);
    x = x / norm(x).clamp_min(kLeastNorm);
    for (int64_t i = 0; i < options.iterations; ++i) x = iterated(x);
    return (tall ? x.t() : x).to(matrix.scalar_type()).contiguous();
  }

  Tensor norm(const Tensor& x) const {
    if (!exact_ops) return x.norm();
    const auto mean = [&](const Tensor& rows) { return exact_ops->run("sample_mean", {{rows}}).at(0); };
    const Tensor squares = mean(mean(x.square()).unsqueeze(0)) * static_cast<double>(x.numel());
    return squares.to(at::kDouble)
        .sqrt()
        .to(squares.scalar_type());  // MKL's root of fp32 has other bits on other processors
  }

  // a x + b (x x^T) x + c (x x^T)^2 x
  Tensor iterated(const Tensor& x) const {
    if (!exact_ops) {
      const Tensor gram = torch::mm(x, x.t());
      return torch::addmm(x, torch::addmm(gram, gram, gram, kB, kC), x, kA);
    }
    const auto with_transposed = [&](const Tensor& left, const Tensor& right) {
      return exact_ops->run("linear", {{left, right, Tensor()}}).at(0);
    };
    const Tensor gram = with_transposed(x, x);
    const Tensor sum = gram * kB + with_transposed(gram, gram) * kC;  // gram is its own transpose
    return x * kA + with_transposed(sum, x.t());
  }

  double adjustment(const std::vector<int64_t>& shape) const {
    const auto rows = static_cast<double>(shape[shape.size() - 2]), columns = static_cast<double>(shape.back());
    if (options.adjust_lr == "original") return std::sqrt(std::max(1.0, rows / columns));
    return 0.2 * std::sqrt(std::max(rows, columns));
  }

  // Every operation here rounds once, wherever a number stands in its tensor: a slice moves as the whole does.
  void step_adamw(size_t i, double lr) {
    const auto& p = parameters[i];
    const Tensor weight = p.tensor.detach(), grad = p.tensor.grad();
    exp_avg[i].mul_(options.beta1).add_(grad * (1 - options.beta1));
    exp_avg_sq[i].mul_(options.beta2).add_(grad * grad * (1 - options.beta2));
    const Tensor deviation = exp_avg_sq[i].sqrt() / std::sqrt(1 - power(options.beta2)) + options.eps;
    if (options.decay_vectors || p.full_shape.size() > 1) weight.mul_(1 - lr * options.weight_decay);
    weight.sub_(exp_avg[i] / deviation * (lr / (1 - power(options.beta1))));
  }

  // beta^steps; the C library's has other bits on other machines.
  double power(double beta) const {
    return exact_ops ? ditto::elementary::power(beta, steps) : std::pow(beta, static_cast<double>(steps));
  }

  std::map<std::string, ditto::OptimizerState> state() override {
    return {{"momentum", {momentum}}, {"exp_avg", {exp_avg}}, {"exp_avg_sq", {exp_avg_sq}}};
  }
  Counters counters() const override { return {{"steps", static_cast<double>(steps)}}; }
  void set_counters(const Counters& counters) override { steps = static_cast<int64_t>(counters.at("steps")); }

  Options options;
  std::vector<ditto::OptimizedParameter> parameters;
  const ditto::WholeTensors* whole;
  const ditto::OpTable* exact_ops;                    // null: not asked for
  std::vector<Tensor> momentum, exp_avg, exp_avg_sq;  // one of the first and the others for each parameter
  int64_t steps = 0;
};

}  // namespace

DITTO_PLUGIN(Optimizer, Muon, "muon", "1.0.0", "Apache-2.0", "orthogonal steps for matrices, AdamW for the rest")
