// Experts: perceptrons of which each token sees those it is routed to.
#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/nn.h>

namespace ditto {

using torch::Tensor;

ExpertsModule::ExpertsModule(int64_t experts_, int64_t width, int64_t hidden) : experts(experts_) {
  up = parameter("up", {experts, hidden, width}, Init::xavier(width, hidden));
  up_bias = parameter("up_bias", {experts, hidden}, Init::zeros());
  down = parameter("down", {experts, width, hidden}, Init::xavier(hidden, width));
  down_bias = parameter("down_bias", {experts, width}, Init::zeros());
  using Values = LayerCut::Values;
  declare(Axis::tensor, {{{"up", 1}, {"up_bias", 1}, {"down", 2}}, "hidden numbers", Values::whole, Values::partial},
          "experts");
  declare(Axis::expert,
          {{{"up", 0}, {"up_bias", 0}, {"down", 0}, {"down_bias", 0}}, "experts", Values::dealt, Values::dealt},
          "experts");
}
ExpertsModule::~ExpertsModule() = default;

namespace {

// Where no number is there to be counted, every expert has an equal share.
std::vector<int64_t> rows_of_experts(const Tensor& expert_R, int64_t experts) {
  if (expert_R.is_meta()) {
    std::vector<int64_t> shares;
    for (int64_t e = 0, rows = expert_R.size(0); e < experts; ++e)
      shares.push_back(rows * (e + 1) / experts - rows * e / experts);
    return shares;
  }
  const auto counts_E = torch::bincount(expert_R, {}, experts).to(torch::kCPU, torch::kLong);
  return {counts_E.data_ptr<int64_t>(), counts_E.data_ptr<int64_t>() + experts};
}

}  // namespace

Tensor ExpertsModule::forward(const Tensor& x_BTD, const std::function<Routing(const Tensor&)>& route, Context& ctx) {
  const Tensor x = enter(x_BTD);
  const auto routing = route(x);
  const auto tokens_ND = x.flatten(0, 1).to(ctx.compute);
  // By expert, and the tokens of one in their order.
  const auto order = torch::argsort(routing.expert_R * tokens_ND.size(0) + routing.token_R, /*stable=*/true);
  const auto token_R = routing.token_R.index_select(0, order);
  const auto counts = rows_of_experts(routing.expert_R, experts);
  const auto rows_RD = ctx.ops.run("token_rows", {{tokens_ND, token_R}}).at(0);
  const Rows run = [&](const Tensor& rows, const std::vector<int64_t>& of) {
    return run_rows(rows, of, ctx, dispatch ? Tensor() : token_R, x.size(1));
  };
  const auto done_RD = dispatch ? dispatch(rows_RD, counts, run) : run(rows_RD, counts);
  const auto sums_ND =
      ctx.ops.run("combine_rows", {{done_RD, routing.weight_R, order, token_R}, {{"tokens", tokens_ND.size(0)}}}).at(0);
  return leave(sums_ND.view_as(x));
}

Tensor ExpertsModule::run_rows(const Tensor& x_RD, const std::vector<int64_t>& counts, Context& ctx,
                               const Tensor& token_R, int64_t tokens) {
  ctx.count("experts", 4 * static_cast<double>(x_RD.numel()) * static_cast<double>(up.leaf().size(1)));
  const auto u = up(ctx), ub = up_bias(ctx), d = down(ctx), db = down_bias(ctx);
  OpInputs in{{x_RD, u, ub, d, adds_bias ? db : Tensor(), torch::tensor(counts, torch::kLong), token_R},
              {{"tokens", tokens}}};
  if (ctx.token_leaf > 0) {
    in.attributes["token_leaf"] = ctx.token_leaf;
    const int64_t hidden = up.leaf().size(1);
    if (const auto runs = SumLeaves::of(Split::rows(), hidden, x_RD.size(1)).in; !runs.empty())
      in.attributes["hidden_leaves"] = runs;
  }
  return ctx.ops.run("experts", in).at(0);
}

}  // namespace ditto
