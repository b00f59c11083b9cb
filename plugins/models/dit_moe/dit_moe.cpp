// DiT with experts in its MLPs. Token choice: W. Fedus et al., 2021 (Switch Transformer, arXiv:2101.03961) and Z. Fei
// et al., 2024 (DiT-MoE, arXiv:2407.11633); expert choice: Y. Zhou et al., 2022 (arXiv:2202.09368), NeMo's EC-DiT. All
// of it is defined per sample, so that no layout changes it; no token is dropped for want of room.
//
// Legend: B samples, T tokens here, D width, E experts, k experts of a token, P patch side.
#include <ditto/ditto.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/patches.h>
#include <ditto/nn/transformer_size.h>

namespace {

using ditto::AdaLn;
using ditto::Batch;
using ditto::Context;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

struct DitMoeOptions : ditto::TransformerSize {
  std::string router = "token_choice";
  int64_t experts = 8, top_k = 2, moe_every = 1, shared_ratio = 0, expert_hidden = 0;
  bool normalise = false;
  double balance = 0.01;

  void read(ditto::OptionReader& option) {
    TransformerSize::read(option,
                          {{"S/2", 12, 384, 6}, {"B/2", 12, 768, 12}, {"L/2", 24, 1024, 16}, {"XL/2", 28, 1152, 16}},
                          "size of DiT's paper, as in \"XL/2\"; the options below override its parts");
    read_keys(option);
    read_experts(option);
  }

  bool has_experts(int64_t block) const { return (block + 1) % moe_every == 0; }
  bool is_token_choice() const { return router == "token_choice"; }

 private:
  void read_experts(ditto::OptionReader& option) {
    option("experts", experts, "experts E").between(1, ditto::most::kExperts);
    option("expert_hidden", expert_hidden, "hidden width of each expert; 0: mlp_ratio D")
        .between(0, ditto::most::kWidth);
    if (expert_hidden == 0) expert_hidden = mlp_ratio * width;
    option("moe_every", moe_every, "every nth block has experts, beginning with block n - 1; the others an MLP")
        .at_least(1);
    option(
        "router", router,
        "\"token_choice\": each token takes its k likeliest experts; \"expert_choice\": each expert takes the k T / E "
        "likeliest of each sample's T tokens")
        .one_of({"token_choice", "expert_choice"});
    option("top_k", top_k, "k: experts of every token; with expert_choice of a token in the mean (its capacity factor)")
        .between(1, experts);
    option("normalise", normalise, "token_choice: the weights of a token's experts add up to 1");
    option("shared_ratio", shared_ratio,
           "hidden width over D of an MLP that all tokens see beside the experts; 0: none")
        .between(0, ditto::most::kMlpRatio);
    if (!is_token_choice()) balance = 0;
    option("balance", balance, "token_choice: weight of each block's balance loss").at_least(0);
    if (!is_token_choice() && (balance > 0 || normalise))
      option.reject(normalise ? "normalise" : "balance", "is for router = \"token_choice\"",
                    "leave it out: expert choice is balanced as it is");
    if (moe_every > depth)
      option.reject("moe_every",
                    "= " + std::to_string(moe_every) + " leaves " + std::to_string(depth) + " blocks without experts",
                    "use at most the depth");
    if (normalise && top_k == 1)
      option.reject("normalise", "leaves no weight to learn where top_k = 1", "use top_k = 2, or leave it out");
  }
};

// One expert layer, beside an MLP for all tokens where there is one.
struct Moe : ditto::Layer {
  Moe(const DitMoeOptions& o, int64_t block)
      : options(o),
        number(std::to_string(block)),
        router(linear("router", o.width, o.experts, {}, ditto::Init::normal(0.02))),
        experts(
            register_module("experts", std::make_shared<ditto::ExpertsModule>(o.experts, o.width, o.expert_hidden))) {
    if (o.shared_ratio > 0)
      shared = register_module("shared", std::make_shared<ditto::Mlp>(o.width, o.shared_ratio * o.width));
  }

  // Adds to the stream's balance loss.
  Tensor forward(const Tensor& x_BTD, Stream& s, Context& ctx) {
    const auto y = experts->forward(
        x_BTD, [&](const Tensor& x) { return route(x, s, ctx); }, ctx);
    return shared ? y + shared->forward(x_BTD, ctx) : y;
  }

  ditto::Routing route(const Tensor& x_BTD, Stream& s, Context& ctx) {
    const auto wide = ctx.compute == torch::kDouble ? torch::kDouble : torch::kFloat;
    const auto p_BTE = ctx.ops.softmax(router(x_BTD, ctx).to(wide));
    const auto taken_BTE = taken(p_BTE, s, ctx);
    if (options.balance > 0) {
      auto& loss_B = s.auxiliary_losses.at("balance");
      loss_B = loss_B + options.balance * imbalance(p_BTE, taken_BTE, s, ctx);
    }
    auto weight_BTE = p_BTE;
    if (options.normalise) weight_BTE = p_BTE / ctx.ops.row_total(p_BTE * taken_BTE);
    if (taken_BTE.is_meta()) return as_many_rows(weight_BTE);
    const auto rows = taken_BTE.flatten(0, 1).nonzero().unbind(1);
    return {rows[0], rows[1], weight_BTE.masked_select(taken_BTE)};
  }

  // Where there are no numbers to choose by: k rows a token, as both routers have it.
  ditto::Routing as_many_rows(const Tensor& weight_BTE) const {
    const int64_t rows = weight_BTE.size(0) * weight_BTE.size(1) * options.top_k;
    const auto none = torch::empty({rows}, weight_BTE.options().dtype(torch::kLong).requires_grad(false));
    return {none, none, weight_BTE.flatten().narrow(0, 0, rows).clone()};
  }

  // Which expert takes which token, bool: by the router, or as the batch says.
  Tensor taken(const Tensor& p_BTE, const Stream& s, Context& ctx) const {
    torch::NoGradGuard no_grad;
    const auto given = s.extra.find("picks." + number);
    const auto none = torch::zeros_like(p_BTE, torch::kBool);
    // Of the tokens here: a strategy may have left constants whole.
    const Tensor given_BTk = given == s.extra.end() ? Tensor() : ctx.own_tokens(given->second.tensor, p_BTE, s);
    Tensor picks, result;
    if (options.is_token_choice()) {
      picks = given_BTk.defined() ? given_BTk : likeliest(p_BTE, options.top_k, -1, ctx);
      result = none.scatter(-1, picks, true);
    } else {
      picks = given_BTk.defined() ? given_BTk : chosen_by_experts(p_BTE, s, ctx).to(torch::kLong);
      result = picks.to(torch::kBool);
    }
    if (ctx.observe) ctx.observe("experts." + number, picks);
    return result;
  }

  // Places of the k largest along a dim; under "one" of equal ones the first.
  static Tensor likeliest(const Tensor& p, int64_t k, int64_t dim, const Context& ctx) {
    if (ctx.token_leaf == 0) return std::get<1>(p.topk(k, dim));
    return std::get<1>(p.sort(/*stable=*/true, dim, /*descending=*/true)).narrow(dim, 0, k);
  }

  Tensor chosen_by_experts(const Tensor& p_BTE, const Stream& s, Context& ctx) const {
    std::vector<Tensor> chosen;
    for (const auto& p : samples(ctx.all_tokens(p_BTE, s), s)) {
      const int64_t room = std::max<int64_t>(1, options.top_k * p.size(1) / options.experts);
      chosen.push_back(torch::zeros_like(p, torch::kBool).scatter(1, likeliest(p, room, 1, ctx), true));
    }
    return ctx.own_tokens(torch::cat(chosen, 1), p_BTE, s);
  }

  // Switch Transformer, eq. 4 to 6, of each sample's own tokens: E sum over experts of the share of (token, expert)
  // rows that an expert takes times its mean probability. 1 where both are even. [B]
  Tensor imbalance(const Tensor& p_BTE, const Tensor& taken_BTE, const Stream& s, Context& ctx) const {
    const auto share = taken_BTE.to(p_BTE.scalar_type()) / static_cast<double>(options.top_k);
    std::vector<Tensor> losses;
    for (const auto& both : samples(ctx.all_tokens(torch::cat({p_BTE, share}, -1), s), s))
      losses.push_back(static_cast<double>(options.experts) * ctx.ops.expert_balance(both));
    return torch::cat(losses);
  }

  // Whole samples: all of a batch at once, or a pack's one by one.
  static std::vector<Tensor> samples(const Tensor& whole, const Stream& s) {
    if (s.packing) return whole.split_with_sizes(s.packing->lengths, 1);
    return {whole};
  }

  DitMoeOptions options;
  std::string number;  // of its block
  ditto::Linear router;
  std::shared_ptr<ditto::ExpertsModule> experts;
  std::shared_ptr<ditto::Mlp> shared;
};

struct Block : ditto::Layer {
  Block(const DitMoeOptions& o, int64_t index)
      : modulation(register_module("modulation", std::make_shared<ditto::Modulation>(AdaLn::zero, o.width, 2))),
        attn(register_module("attn", std::make_shared<ditto::SelfAttention>(o.attention()))) {
    const int64_t D = o.width;
    if (o.has_experts(index))
      moe = register_module("moe", std::make_shared<Moe>(o, index));
    else
      mlp = register_module("mlp", std::make_shared<ditto::Mlp>(D, o.mlp_ratio * D));
  }

  Stream forward(Stream s, Context& ctx) {
    const auto m = modulation->forward(s, ctx);
    s.x_BTD = ditto::modulated(s.x_BTD, m[0], s, ctx, [&](const Tensor& h) {
      return attn->forward(h, ditto::Pattern::full, s.rotary_TK, s, ctx);
    });
    s.x_BTD = ditto::modulated(s.x_BTD, m[1], s, ctx,
                               [&](const Tensor& h) { return moe ? moe->forward(h, s, ctx) : mlp->forward(h, ctx); });
    return s;
  }

  std::shared_ptr<ditto::Modulation> modulation;
  std::shared_ptr<ditto::SelfAttention> attn;
  std::shared_ptr<ditto::Mlp> mlp;
  std::shared_ptr<Moe> moe;
};

struct DitMoe final : ditto::Model {
  using Options = DitMoeOptions;

  DitMoe(const Options& o, const Needs& given) : options(o), needs(given) {
    const int64_t D = o.width;
    patches = add<ditto::Patches>(Unit::tokens, "patches", "dit_moe", needs, o.patch, 0, D);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", D, 128.0);
    if (const auto n = needs.values("label")) label = add<ditto::LabelEmbed>(Unit::condition, "label", n, D);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o, i));
    final_layer = add<ditto::FinalLayer>(Unit::head, "final", AdaLn::zero, D, patches->outputs(needs.out_channels));
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    auto cond_BD = time->forward(in.at("t"), ctx);
    if (label) cond_BD = cond_BD + label->forward(in.at("label"), ctx);
    return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx) +
              positions.of(s.grid, ctx.options(), [&] { return patches->positions(s.grid); });
    if (options.balance > 0)
      s.auxiliary_losses["balance"] = torch::zeros(
          {in.at("x").size(0)}, ctx.options().dtype(ctx.compute == torch::kDouble ? torch::kDouble : torch::kFloat));
    return s;
  }

  // For tests that must compare runs in which rounding could tip a choice: "picks.I" of the batch, what block I told
  // ctx.observe as "experts.I": int64 [B, T, k], a token's experts; with expert choice [B, T, E], 1 where taken.
  void constants(const Batch& in, Stream& s, Context&) override {
    for (int64_t i = 0; i < options.depth; ++i)
      if (const auto name = "picks." + std::to_string(i); in.has(name))
        s.extra[name] = {in.at(name), 1, ditto::Role::constant};
  }

  int64_t depth() const override { return options.depth; }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    return blocks[static_cast<size_t>(i)]->forward(std::move(s), ctx);
  }

  Tensor head(const Stream& s, Context& ctx) override {
    return patches->unpatchify(final_layer->forward(s, ctx), s.grid);
  }

  bool token_local() const override { return true; }

  ditto::TensorSpecs takes() const override { return ditto::takes_offered(needs, {"x", "t", "label"}); }
  ditto::TensorSpecs makes() const override { return {patches->features()}; }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return ditto::without_class_and_text(std::move(in), which_B, needs);
  }

 private:
  Options options;
  Needs needs;
  std::shared_ptr<ditto::Patches> patches;
  ditto::GridTable positions;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::FinalLayer> final_layer;
};

}  // namespace

DITTO_MODEL_PLUGIN(DitMoe, "dit_moe", "1.0.0", "Apache-2.0", "DiT with experts: token choice or expert choice")
