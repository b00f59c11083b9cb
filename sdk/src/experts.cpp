// Experts: perceptrons of which each token sees those it is routed to.
#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/nn.h>
#include <ditto/parallel/replicated.h>

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

// What is routed to tokens [begin, end) of one sample.
Routing routing_of(const Routing& all, int64_t begin, int64_t end) {
  const auto here = all.token_R.ge(begin).logical_and(all.token_R.lt(end));
  return {all.token_R.masked_select(here) - begin, all.expert_R.masked_select(here), all.weight_R.masked_select(here)};
}

}  // namespace

// Of a sample whose tokens ranks share each node of leaves that is here computes by itself.
Tensor ExpertsModule::forward(const Tensor& x_BTD, const std::function<Routing(const Tensor&)>& route, Context& ctx) {
  const Tensor x = enter(x_BTD);
  const auto routing = route(x);
  const Weights weights{up(ctx), up_bias(ctx), down(ctx), down_bias(ctx)};
  const auto here = ctx.ops.leaves().inside;
  if (!here || !torch::GradMode::is_enabled() || x.is_meta()) return leave(of_tokens(x, routing, weights, ctx));
  const replicated::Share share(here, &here->share);
  const auto ups = replicated::copies(weights.up, share), up_biases = replicated::copies(weights.up_bias, share),
             downs = replicated::copies(weights.down, share),
             down_biases = replicated::copies(weights.down_bias, share);
  Tensors results;
  int64_t begin = 0;
  const auto lengths = here->node_lengths();
  for (size_t i = 0; i < lengths.size(); begin += lengths[i++])
    results.push_back(of_tokens(x.narrow(1, begin, lengths[i]), routing_of(routing, begin, begin + lengths[i]),
                                {ups[i], up_biases[i], downs[i], down_biases[i]}, ctx));
  return leave(torch::cat(results, 1));
}

Tensor ExpertsModule::of_tokens(const Tensor& x, const Routing& routing, const Weights& weights, Context& ctx) {
  const auto tokens_ND = x.flatten(0, 1).to(ctx.compute);
  // By expert, and the tokens of one in their order.
  const auto order = torch::argsort(routing.expert_R * tokens_ND.size(0) + routing.token_R, /*stable=*/true);
  const auto token_R = routing.token_R.index_select(0, order);
  const auto counts = rows_of_experts(routing.expert_R, experts);
  const auto rows_RD = ctx.ops.run("token_rows", {{tokens_ND, token_R}}).at(0);
  const Rows run = [&](const Tensor& rows, const std::vector<int64_t>& of) {
    return run_rows(rows, of, dispatch ? Tensor() : token_R, x.size(1), weights, ctx);
  };
  const auto done_RD = dispatch ? dispatch(rows_RD, counts, run) : run(rows_RD, counts);
  const auto sums_ND =
      ctx.ops.run("combine_rows", {{done_RD, routing.weight_R, order, token_R}, {{"tokens", tokens_ND.size(0)}}}).at(0);
  return sums_ND.view_as(x);
}

// Without the second bias of experts that are cut along their hidden width.
Tensor ExpertsModule::run_rows(const Tensor& x_RD, const std::vector<int64_t>& counts, const Tensor& token_R,
                               int64_t tokens, const Weights& weights, Context& ctx) const {
  const int64_t hidden = weights.up.size(1);
  ctx.count("experts", 4 * static_cast<double>(x_RD.numel()) * static_cast<double>(hidden));
  OpInputs in{{x_RD, weights.up, weights.up_bias, weights.down, adds_bias ? weights.down_bias : Tensor(),
               torch::tensor(counts, torch::kLong), token_R},
              {{"tokens", tokens}}};
  if (ctx.token_leaf > 0) {
    in.attributes["token_leaf"] = ctx.token_leaf;
    if (const auto runs = SumLeaves::of(Split::rows(), hidden, x_RD.size(1)).in; !runs.empty())
      in.attributes["hidden_leaves"] = runs;
  }
  return ctx.ops.run("experts", in).at(0);
}

}  // namespace ditto
