// Experts: perceptrons of which each token sees those it is routed to.
#include <numeric>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/nn/experts.h>
#include <ditto/parallel/replicated.h>
#include <ditto/parallel/token_cut.h>

namespace ditto {

using torch::Tensor;

ExpertsModule::ExpertsModule(int64_t experts_, int64_t width, int64_t hidden)
    : experts(experts_), hidden_leaves_(SumLeaves::of(Split::rows(), hidden, width).in) {
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

// Rows of one rank's samples come after those of the rank before it: so many samples apart, a power of two, that ranks'
// samples are whole nodes of the tree over samples. A sample's tokens are so many numbers, since those of ranks differ.
constexpr int64_t kMostSamples = int64_t{1} << 24, kMostTokens = int64_t{1} << 24;

// So many copies that their gradients are added as a tree over them.
void add_copies(const Tensor& x, size_t count, Tensors& list) {
  if (count <= 1) return list.push_back(x);
  for (int half = 0; half < 2; ++half) add_copies(x.view_as(x), count / 2, list);
}
Tensors tree_of_copies(const Tensor& x, size_t count) {
  Tensors list;
  add_copies(x, count, list);
  return list;
}

}  // namespace

// Of a sample whose tokens ranks share each node of leaves that is here computes by itself; and where experts are dealt
// out, the samples of each rank that has sent rows.
Tensor ExpertsModule::forward(const Tensor& x_BTD, const std::function<Routing(const Tensor&)>& route, Context& ctx) {
  Tensor x = enter(x_BTD);
  // What reads tokens inside of the layer meets in one place, on any layout: before what is beside it.
  if (ctx.token_leaf > 0 && x.is_same(x_BTD)) x = x.view_as(x);
  const auto routing = [&] {
    const RestoredLeaves scope(ctx.ops.leaves());
    ctx.ops.leaves().between = ctx.ops.leaves().inside;
    return route(x);
  }();
  const Weights weights{up(ctx), up_bias(ctx), down(ctx), down_bias(ctx)};
  const auto here = ctx.ops.leaves().inside;
  if (!here || !torch::GradMode::is_enabled() || x.is_meta()) return leave(of_tokens(x, routing, {weights}, ctx));
  const replicated::Share share(here, &here->share);
  const auto lengths = here->node_lengths();
  const auto ranks = static_cast<size_t>(experts / weights.up.size(0));
  std::vector<std::vector<Weights>> of_nodes(lengths.size(), std::vector<Weights>(ranks));
  for (Tensor Weights::*which : {&Weights::up, &Weights::up_bias, &Weights::down, &Weights::down_bias}) {
    const auto of_ranks = tree_of_copies(weights.*which, ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto copies = replicated::copies(of_ranks[rank], share);
      for (size_t node = 0; node < copies.size(); ++node) of_nodes[node][rank].*which = copies[node];
    }
  }
  const auto parts = x.split_with_sizes(lengths, 1);
  Tensors results;
  int64_t begin = 0;
  for (size_t node = 0; node < lengths.size(); begin += lengths[node++])
    results.push_back(of_tokens(parts[node], routing_of(routing, begin, begin + lengths[node]), of_nodes[node], ctx));
  return leave(torch::cat(results, 1));
}

Tensor ExpertsModule::of_tokens(const Tensor& x, const Routing& routing, const std::vector<Weights>& weights,
                                Context& ctx) {
  const auto tokens_ND = x.flatten(0, 1).to(ctx.compute);
  const int64_t tokens = x.size(1);
  // By expert, and the tokens of one in their order.
  const auto order = torch::argsort(routing.expert_R * tokens_ND.size(0) + routing.token_R, /*stable=*/true);
  const auto token_R = routing.token_R.index_select(0, order);
  const auto counts = rows_of_experts(routing.expert_R, experts);
  const auto rows_RD = ctx.ops.run("token_rows", {{tokens_ND, token_R}}).at(0);
  Tensor places_R = token_R;
  int64_t stride = tokens;  // of places, from sample to sample
  if (dispatch && ctx.token_leaf == 0) places_R.reset();
  if (dispatch && ctx.token_leaf > 0 && !x.is_meta()) {
    stride = kMostTokens;
    const auto sample_R = token_R.div(tokens, "floor");
    places_R = dispatch_numbers(sample_R * stride + (token_R - sample_R * tokens), counts, kMostSamples * stride);
  }
  const Rows run = [&](const Tensor& rows, const std::vector<int64_t>& of) {
    return by_rank({rows, of, places_R, stride}, weights, ctx);
  };
  const auto done_RD = dispatch ? dispatch(rows_RD, counts, run) : run(rows_RD, counts);
  const auto sums_ND =
      ctx.ops.run("combine_rows", {{done_RD, routing.weight_R, order, token_R}, {{"tokens", tokens_ND.size(0)}}}).at(0);
  return sums_ND.view_as(x);
}

// An expert's rows are in the order of ranks.
Tensor ExpertsModule::by_rank(const SortedRows& rows, const std::vector<Weights>& weights, Context& ctx) const {
  if (weights.size() == 1) return run_rows(rows, weights[0], ctx);
  const auto ranks = weights.size(), here = rows.count.size();
  std::vector<int64_t> lengths(here * ranks, 0);  // of an expert's rows from each rank
  const auto* place = rows.token_R.const_data_ptr<int64_t>();
  for (size_t expert = 0; expert < here; ++expert)
    for (int64_t i = 0; i < rows.count[expert]; ++i)
      ++lengths[expert * ranks + static_cast<size_t>(*place++ / (kMostSamples * rows.tokens))];
  const auto x = rows.x_RD.split_with_sizes(lengths), token = rows.token_R.split_with_sizes(lengths);
  Tensors done(lengths.size());
  for (size_t rank = 0; rank < ranks; ++rank) {
    SortedRows own{{}, {}, {}, rows.tokens};
    Tensors of_x, of_token;
    for (size_t i = rank; i < lengths.size(); i += ranks) {
      of_x.push_back(x[i]), of_token.push_back(token[i]);
      own.count.push_back(lengths[i]);
    }
    own.x_RD = torch::cat(of_x), own.token_R = torch::cat(of_token);
    const auto results = run_rows(own, weights[rank], ctx).split_with_sizes(own.count);
    for (size_t expert = 0; expert < here; ++expert) done[expert * ranks + rank] = results[expert];
  }
  return torch::cat(done);
}

// Without the second bias of experts that are cut along their hidden width.
Tensor ExpertsModule::run_rows(const SortedRows& rows, const Weights& weights, Context& ctx) const {
  const int64_t hidden = weights.up.size(1);
  ctx.count("experts", 4 * static_cast<double>(rows.x_RD.numel()) * static_cast<double>(hidden));
  if (!nodes) {
    const Tensor bias = adds_bias ? weights.down_bias : Tensor();
    return run_op(rows, {weights.up, weights.up_bias, weights.down, bias}, hidden_leaves_, ctx);
  }
  // By nodes of the hidden width: what is added once comes after the sum, in the order in which the op adds it.
  const int64_t run = hidden / std::accumulate(nodes->leaves.begin(), nodes->leaves.end(), int64_t{0});
  std::vector<int64_t> lengths;
  for (const int64_t leaves : nodes->leaves) lengths.push_back(leaves * run);
  const auto ups = weights.up.split_with_sizes(lengths, 1), up_biases = weights.up_bias.split_with_sizes(lengths, 1),
             downs = weights.down.split_with_sizes(lengths, 2);
  const auto copies = nodes->copies_of_rows(rows.x_RD);
  Tensors terms;
  for (size_t i = 0; i < copies.size(); ++i)
    terms.push_back(run_op({copies[i], rows.count, rows.token_R, rows.tokens}, {ups[i], up_biases[i], downs[i], {}},
                           {nodes->leaves[i], lengths[i]}, ctx));
  const auto sum_RD = nodes->sum_of_rows(terms);
  return ctx.ops
      .run("add_expert_rows", {{sum_RD, weights.down_bias, torch::tensor(rows.count, torch::kLong), rows.token_R},
                               {{"tokens", rows.tokens}, {"token_leaf", ctx.token_leaf}}})
      .at(0);
}

Tensor ExpertsModule::run_op(const SortedRows& rows, const Weights& weights, const std::vector<int64_t>& hidden_leaves,
                             Context& ctx) const {
  OpInputs in{{rows.x_RD, weights.up, weights.up_bias, weights.down, weights.down_bias,
               torch::tensor(rows.count, torch::kLong), rows.token_R},
              {{"tokens", rows.tokens}}};
  if (ctx.token_leaf > 0) {
    in.attributes["token_leaf"] = ctx.token_leaf;
    if (!hidden_leaves.empty()) in.attributes["hidden_leaves"] = hidden_leaves;
    if (ctx.ops.leaves().bf16) in.attributes["bf16"] = true;
  }
  return ctx.ops.run("experts", in).at(0);
}

}  // namespace ditto
