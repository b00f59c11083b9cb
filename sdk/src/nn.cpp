// Layers. Positions and time features follow W. Peebles and S. Xie, 2023 (arXiv:2212.09748).
#include <ditto/nn.h>

#include <cmath>

#include <torch/torch.h>

#include <ditto/context.h>
#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

Init Init::xavier(int64_t in, int64_t out) { return uniform(std::sqrt(6.0 / static_cast<double>(in + out))); }

Split Split::heads(std::vector<int64_t> counts, int64_t head_width) {
  for (int64_t& count : counts) count *= head_width;
  return {Kind::columns, std::move(counts), head_width, false};
}

Split Split::gathered() const {
  Split copy = *this;
  copy.gather = true;
  return copy;
}

Module::Module() = default;
Module::~Module() = default;

Tensor Module::parameter(const std::string& name, std::vector<int64_t> shape, Init init) {
  auto tensor = register_parameter(name, torch::empty(shape, torch::kFloat));
  made_.push_back({tensor, init});
  return tensor;
}

Layer::Layer() = default;
Layer::~Layer() = default;

namespace {

// The compute copy of a leaf: forward hands out the copy, backward hands the gradient to the leaf in the leaf's dtype.
struct UseCopy : torch::autograd::Function<UseCopy> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& leaf, const Tensor& copy) {
    ctx->saved_data["dtype"] = leaf.scalar_type();
    return copy.view_as(copy);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
    return {grad[0].to(ctx->saved_data["dtype"].toScalarType()), Tensor()};
  }
};

std::shared_ptr<LinearModule> make_linear(int64_t in, int64_t out, Split split, Init weight, Init bias) {
  return std::make_shared<LinearModule>(LinearModule::Shape{in, out, weight, bias}, std::move(split));
}

}  // namespace

LinearModule::LinearModule(Shape shape, Split split_) : split(std::move(split_)) {
  int64_t sum = 0;
  for (const int64_t part : split.parts) sum += part;
  if (split.kind == Split::Kind::columns && sum != shape.out)
    throw Error(ErrorKind::shape, "linear layer",
                "the parts of its Split add up to " + std::to_string(sum) + ", but it has " +
                    std::to_string(shape.out) + " outputs");
  weight = parameter("weight", {shape.out, shape.in}, shape.weight);
  bias = parameter("bias", {shape.out}, shape.bias);
}

LinearModule::~LinearModule() = default;

Tensor LinearModule::compute_copy(const Tensor& leaf, Copy& copy, Context& ctx) {
  if (leaf.scalar_type() == ctx.compute) return leaf;
  if (copy.of != leaf.data_ptr() || copy.version != leaf._version() || copy.tensor.scalar_type() != ctx.compute) {
    copy.tensor = leaf.detach().to(ctx.compute);
    copy.of = leaf.data_ptr();
    copy.version = static_cast<uint32_t>(leaf._version());
  }
  return torch::GradMode::is_enabled() && leaf.requires_grad() ? UseCopy::apply(leaf, copy.tensor) : copy.tensor;
}

Tensor LinearModule::forward(const Tensor& x, Context& ctx) {
  const Tensor in = (before ? before(x) : x).to(ctx.compute);
  if (after && split.kind == Split::Kind::rows)
    return after(torch::linear(in, compute_weight(ctx))) + compute_bias(ctx);
  auto y = torch::linear(in, compute_weight(ctx), compute_bias(ctx));
  return after ? after(y) : y;
}

Linear Layer::linear(const std::string& name, int64_t in, int64_t out, Split split, Init weight, Init bias) {
  return Linear(register_module(name, make_linear(in, out, std::move(split), weight, bias)));
}

Linear Layer::linear(const std::string& name, int64_t in, int64_t out, Split split) {
  return linear(name, in, out, std::move(split), Init::xavier(in, out));
}

Linear Layer::zero_linear(const std::string& name, int64_t in, int64_t out, Split split) {
  return linear(name, in, out, std::move(split), Init::zeros());
}

PatchEmbed::PatchEmbed(int64_t channels, int64_t patch, int64_t width)
    : patch_(patch), map_(linear("map", channels * patch * patch, width)) {}
PatchEmbed::~PatchEmbed() = default;

Grid PatchEmbed::grid(const Tensor& x_BCHW) const {
  const int64_t h = x_BCHW.size(-2), w = x_BCHW.size(-1);
  if (h % patch_ != 0 || w % patch_ != 0)
    throw Error(ErrorKind::shape, "patch embedding",
                "a picture of " + std::to_string(h) + " x " + std::to_string(w) + " is not made of patches of " +
                    std::to_string(patch_),
                "choose a patch that divides both sides");
  return {1, h / patch_, w / patch_};
}

Tensor PatchEmbed::forward(const Tensor& x_BCHW, Context& ctx) {
  const Grid g = grid(x_BCHW);
  const auto patches =
      x_BCHW.unflatten(-1, {g.columns, patch_}).unflatten(-3, {g.rows, patch_});  // B C rows P columns P
  return map_(patches.permute({0, 2, 4, 1, 3, 5}).flatten(3).flatten(1, 2), ctx);
}

Tensor PatchEmbed::unpatchify(const Tensor& y, const Grid& grid) const {
  const auto pixels =
      y.unflatten(-1, {patch_, patch_, -1}).unflatten(1, {grid.rows, grid.columns});  // B rows columns P P C
  return pixels.permute({0, 5, 1, 3, 2, 4}).flatten(4).flatten(2, 3);
}

TimeEmbed::TimeEmbed(int64_t width, double divisor)
    : divisor_(divisor),
      in_(linear("in", 256, width, {}, Init::normal(0.02))),
      out_(linear("out", width, width, {}, Init::normal(0.02))) {}
TimeEmbed::~TimeEmbed() = default;

Tensor TimeEmbed::forward(const Tensor& t_B, Context& ctx) {
  return out_(torch::silu(in_(timestep_features(t_B, 128, divisor_), ctx)), ctx);
}

LabelEmbed::LabelEmbed(int64_t classes, int64_t width)
    : table(parameter("table", {classes + 1, width}, Init::normal(0.02))), classes_(classes) {}
LabelEmbed::~LabelEmbed() = default;

Tensor LabelEmbed::forward(const Tensor& label_B, Context& ctx) {
  if (label_B.numel() && (label_B.min().item<int64_t>() < 0 || label_B.max().item<int64_t>() > classes_))
    throw Error(ErrorKind::data, "label",
                "labels from " + std::to_string(label_B.min().item<int64_t>()) + " to " +
                    std::to_string(label_B.max().item<int64_t>()) + " came, the model has classes 0 to " +
                    std::to_string(classes_ - 1),
                "set data.classes to the data's number of classes");
  return torch::embedding(table, label_B).to(ctx.compute);
}

Tensor timestep_features(const Tensor& t_B, int64_t half, double divisor) {
  const auto i = torch::arange(half, torch::TensorOptions(torch::kFloat).device(t_B.device()));
  // Single precision as in the published code, whose rounding of large angles is part of the function learned.
  const auto frequency = torch::exp(i * static_cast<float>(-std::log(10000.0)) / static_cast<float>(divisor));
  const auto angle = t_B.to(torch::kFloat).unsqueeze(1) * frequency;
  return torch::cat({angle.cos(), angle.sin()}, -1);
}

Tensor sincos_positions(const Grid& grid, int64_t width) {
  const auto one_axis = [&](int64_t n) {
    const auto frequency =
        torch::pow(10000.0, -torch::arange(width / 4, torch::kDouble) / (static_cast<double>(width) / 4));
    const auto angle = torch::arange(n, torch::kDouble).unsqueeze(1) * frequency;
    return torch::cat({angle.sin(), angle.cos()}, -1);  // n, width / 2
  };
  const auto column = one_axis(grid.columns).unsqueeze(0).expand({grid.rows, -1, -1});
  const auto row = one_axis(grid.rows).unsqueeze(1).expand({-1, grid.columns, -1});
  return torch::cat({column, row}, -1).flatten(0, 1);
}

}  // namespace ditto
