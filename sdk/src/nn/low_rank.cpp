// The low-rank term of a linear layer.
#include <cmath>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/nn/linear.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr const char *kA = "lora_A", *kB = "lora_B";

// One of its two maps, a part of the layer that it is a term of.
class Map final : public Module {
 public:
  Map(CutLayer& of, std::vector<int64_t> shape, Init init)
      : weight(parameter("weight", std::move(shape), init)), of_(of) {}
  CutLayer* cut_layer() override { return &of_; }
  const Parameter weight;

 private:
  CutLayer& of_;
};

}  // namespace

bool CutLayer::adapt(const LowRank&) { return false; }

// A is drawn as torch.nn.Linear's weight is. Of a layer whose outputs are cut B is cut as they are and every rank has
// all of A; of one whose inputs are cut it is the other way round, and the term is of the sum that `after` makes.
bool LinearModule::adapt(const LowRank& asked) {
  const int64_t in = weight.leaf().size(1), out = weight.leaf().size(0);
  const auto a = std::make_shared<Map>(*this, std::vector<int64_t>{asked.rank, in},
                                       Init::uniform(1 / std::sqrt(static_cast<double>(in))));
  const auto b = std::make_shared<Map>(*this, std::vector<int64_t>{out, asked.rank}, Init::zeros());
  register_module(kA, a);
  register_module(kB, b);
  term = std::make_shared<Term>(Term{a->weight, b->weight, asked.alpha / static_cast<double>(asked.rank), leaves,
                                     split.condition, split.sequence});
  if (const auto* declared = cut(Axis::tensor)) {
    auto with_term = *declared;
    const auto of_weight = with_term.parameters.front();
    with_term.parameters.push_back(
        {std::string(of_weight.dim == 0 ? kB : kA) + ".weight", of_weight.dim, of_weight.parts, of_weight.unit});
    declare(Axis::tensor, std::move(with_term), "linear layer");
  }
  return true;
}

void LinearModule::merge() {
  if (!term) return;
  torch::NoGradGuard no_grad;
  const auto wide = [](const Parameter& p) { return p.leaf().detach().to(torch::kDouble); };
  weight.leaf().detach().copy_(wide(weight) + term->scale * torch::mm(wide(term->b), wide(term->a)));
  term.reset();
  unregister_module(kA);
  unregister_module(kB);
}

Tensor LinearModule::whole_weight(Context& ctx) const {
  if (!term) return weight(ctx);
  return weight(ctx) + term->scale * torch::mm(term->b(ctx), term->a(ctx));
}

Tensor LinearModule::Term::operator()(const Tensor& in, Context& ctx) const {
  const auto rank = static_cast<double>(a.leaf().size(0));
  ctx.count("linear", 2 * rank * static_cast<double>(in.numel()));
  ctx.count("linear", 2 * rank * static_cast<double>(in.numel() / in.size(-1) * b.leaf().size(0)));
  const Ops ops = of_condition ? ctx.ops.of_condition() : ctx.ops.of(sequence);
  const auto reduced = ops.linear(in, a(ctx), {}, {leaves.in, {}});
  return ops.linear(reduced * scale, b(ctx), {}, {{}, leaves.out});
}

}  // namespace ditto
