// A model with all that strategies cut, carry or compute again: grouped-query attention with rotary angles, cross
// attention to text, experts with an auxiliary loss, a long skip, an uncut layer inside of a block, by choice a second
// sequence that evolves and attends jointly, and dropout; and a run of it under strategies.
#pragma once

#include "tests/unit/strategy_run.h"

namespace ditto::testing {

struct FullOptions {
  int64_t depth = 2, experts = 4, hidden = 8, tokens = 7;
  bool is_packed = false, has_experts = true, is_token_local = true, takes_a_part = false;
  bool is_joint = false;
  double dropout = 0;
  bool is_adapted = false;  // every layer that has a place for it has a low-rank term, and all else is frozen
  std::optional<TokenRoute> route = {};
};

// Twice as many query heads as key and value heads.
constexpr int64_t kWidth = 16, kHeads = 4, kSharedHeads = 2, kHeadWidth = 4, kText = 6, kNotes = 5;

class FullBlock : public Layer {
 public:
  FullBlock(const FullOptions& o, int64_t index)
      : is_first_(index == 0),
        is_last_(index + 1 == o.depth),
        has_text_(!o.is_packed),
        takes_a_part_(o.takes_a_part),
        is_joint_(o.is_joint),
        dropout_(o.dropout),
        name_(std::to_string(index)) {
    modulation_ = linear("modulation", kWidth, 3 * kWidth, Split::columns({kWidth, 2 * kWidth}).gathered());
    qkv_ = linear("qkv", kWidth, (kHeads + 2 * kSharedHeads) * kHeadWidth,
                  Split::heads({kHeads, kSharedHeads, kSharedHeads}, kHeadWidth));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(kHeadWidth));
    out_ = linear("out", kWidth, kWidth, Split::rows());
    if (has_text_) {
      q_ = linear("q", kWidth, kWidth, Split::heads({kHeads}, kHeadWidth));
      kv_ = linear("kv", kText, 2 * kWidth, Split::heads({kHeads, kHeads}, kHeadWidth).of_condition());
      cross_ = linear("cross", kWidth, kWidth, Split::rows());
    }
    mix_ = linear("mix", kWidth, kWidth);
    up_ = linear("up", kWidth, 2 * kWidth, Split::columns({2 * kWidth}));
    down_ = linear("down", 2 * kWidth, kWidth, Split::rows());
    if (is_last_) skip_ = linear("skip", 2 * kWidth, kWidth);
    if (is_joint_) {
      notes_qkv_ = linear("notes_qkv", kWidth, (kHeads + 2 * kSharedHeads) * kHeadWidth,
                          Split::heads({kHeads, kSharedHeads, kSharedHeads}, kHeadWidth).of("notes"));
      notes_out_ = linear("notes_out", kWidth, kWidth, Split::rows().of("notes"));
      notes_up_ = linear("notes_up", kWidth, 2 * kWidth, Split::columns({2 * kWidth}).of("notes"));
      notes_down_ = linear("notes_down", 2 * kWidth, kWidth, Split::rows().of("notes"));
    }
    if (!o.has_experts) return;
    router_ = linear("router", kWidth, o.experts);
    experts_ = register_module("experts", std::make_shared<ExpertsModule>(o.experts, kWidth, o.hidden));
  }

  Stream forward(Stream s, Context& ctx) {
    if (is_first_) s.skips_BTD.push_back(s.x_BTD);
    if (is_last_) {
      s.x_BTD = skip_(torch::cat({s.x_BTD, s.skips_BTD.back()}, -1), ctx);
      s.skips_BTD.pop_back();
    }
    const auto m = modulation_(torch::silu(s.condition.cond_BD), ctx).chunk(3, -1);
    const auto in_x = ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
    s.x_BTD = ctx.ops.gated_residual(s.x_BTD, m[2], is_joint_ ? joint(in_x, m, s, ctx) : attention(in_x, s, ctx), s);
    if (has_text_) s.x_BTD = s.x_BTD + cross(s.x_BTD, s, ctx);
    s.x_BTD = s.x_BTD + torch::tanh(mix_(s.x_BTD, ctx));
    const auto in = takes_a_part_ ? s.x_BTD.narrow(1, 0, s.x_BTD.size(1) - 1) : s.x_BTD;
    const auto more = ctx.ops.mlp_gelu_tanh(in, up_, down_, ctx);
    s.x_BTD = s.x_BTD + (takes_a_part_ ? more.mean(1, true) : more);
    if (dropout_ > 0) s.x_BTD = ctx.dropout(s.x_BTD, dropout_, s, name_ + ".x");
    if (experts_)
      s.x_BTD = s.x_BTD + experts_->forward(
                              s.x_BTD, [&](const torch::Tensor& x) { return route(x, s, ctx); }, ctx);
    return s;
  }

 private:
  torch::Tensor attention(const torch::Tensor& x_BTD, const Stream& s, Context& ctx) {
    return ctx.attention_unit(qkv_, out_, x_BTD, [&](const torch::Tensor& x) {
      const auto all = qkv_(x, ctx).unflatten(-1, {-1, kHeadWidth});
      const int64_t shared = all.size(-2) / 4;  // of the heads here half are queries', a quarter keys'
      const auto parts = all.split_with_sizes({2 * shared, shared, shared}, -2);
      const auto turned = [&](const torch::Tensor& y) { return apply_rotary(norm_->forward(y, ctx), s.rotary_TK); };
      return out_(ctx.attention(turned(parts[0]), turned(parts[1]), parts[2], Pattern::full, s).flatten(-2), ctx);
    });
  }

  // The tokens' part; the notes are changed in place.
  torch::Tensor joint(const torch::Tensor& x_BTD, const Tensors& m, Stream& s, Context& ctx) {
    auto& notes = s.extra.at("notes");
    const auto in_notes = ctx.ops.norm_modulate(notes.tensor, m[0], m[1], *notes.own);
    const auto y =
        ctx.attention_unit({{qkv_, out_, x_BTD}, {notes_qkv_, notes_out_, in_notes}}, [&](const Tensors& x) -> Tensors {
          const auto part = [&](Linear& map, const torch::Tensor& of, const Sequence& tokens) {
            const auto all = map(of, ctx).unflatten(-1, {-1, kHeadWidth});
            const int64_t shared = all.size(-2) / 4;
            const auto parts = all.split_with_sizes({2 * shared, shared, shared}, -2);
            return AttentionPart{norm_->forward(parts[0], ctx), norm_->forward(parts[1], ctx), parts[2], tokens, {}};
          };
          AttentionCall call{.parts = {part(qkv_, x[0], s), part(notes_qkv_, x[1], *notes.own)}};
          if (const auto mask = s.extra.find("notes_mask"); mask != s.extra.end())
            call.parts[1].key_mask_BS = mask->second.tensor;
          const auto out = ctx.attention(call);
          return {out_(out[0].flatten(-2), ctx), notes_out_(out[1].flatten(-2), ctx)};
        });
    notes.tensor = ctx.ops.gated_residual(notes.tensor, m[2], y[1], *notes.own);
    notes.tensor = notes.tensor + ctx.ops.mlp_gelu_tanh(notes.tensor, notes_up_, notes_down_, ctx);
    if (dropout_ > 0) notes.tensor = ctx.dropout(notes.tensor, dropout_, s, name_ + ".notes", "notes");
    return y[0];
  }

  torch::Tensor cross(const torch::Tensor& x, const Stream& s, Context& ctx) {
    const auto q = q_(x, ctx).unflatten(-1, {-1, kHeadWidth});
    const auto kv = kv_(s.condition.text_BSE, ctx).unflatten(-1, {2, -1, kHeadWidth}).unbind(-3);
    return cross_(ctx.attention(q, kv[0], kv[1], Pattern::cross, s).flatten(-2), ctx);
  }

  // Each token's two likeliest experts; and a loss of each row of tokens.
  Routing route(const torch::Tensor& x_BTD, Stream& s, Context& ctx) {
    const auto p_BTE = torch::softmax(router_(x_BTD, ctx), -1);
    auto& loss = s.auxiliary_losses["balance"];
    const auto more = ctx.all_tokens(p_BTE, s).mean(1).square().sum(-1);
    loss = loss.defined() ? loss + more : more;
    const auto taken =
        torch::zeros_like(p_BTE, torch::kBool).scatter(-1, std::get<1>(p_BTE.detach().topk(2, -1)), true);
    const auto rows = taken.flatten(0, 1).nonzero().unbind(1);
    return {rows[0], rows[1], p_BTE.masked_select(taken)};
  }

  bool is_first_, is_last_, has_text_, takes_a_part_, is_joint_;
  double dropout_;
  std::string name_;
  Linear modulation_, qkv_, out_, q_, kv_, cross_, mix_, up_, down_, skip_, router_;
  Linear notes_qkv_, notes_out_, notes_up_, notes_down_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<ExpertsModule> experts_;
};

class FullModel : public Model {
 public:
  explicit FullModel(const FullOptions& o) : options_(o) {
    embed_ = linear(Unit::tokens, "embed", 3, kWidth);
    if (o.is_joint) notes_ = linear(Unit::tokens, "notes", 3, kWidth);
    label_ = add<LabelEmbed>(Unit::condition, "label", 3, kWidth);
    if (!o.is_packed) text_ = linear(Unit::condition, "text", 5, kText);
    for (int64_t i = 0; i < o.depth; ++i) blocks_.push_back(add_block<FullBlock>(i, o, i));
    head_ = linear(Unit::head, "head", kWidth, 3);
  }
  Conditioning condition(const Batch& batch, Context& ctx) override {
    Conditioning made{label_->forward(batch.at("label"), ctx), {}, {}};
    if (!options_.is_packed) made.text_BSE = text_(batch.at("text"), ctx);
    return made;
  }
  Stream tokens(const Batch& batch, Context& ctx) override {
    Stream stream;
    stream.x_BTD = embed_(batch.at("x"), ctx);
    stream.grid = {1, 1, options_.tokens};
    const int64_t first = options_.tokens / 3;
    if (options_.is_packed) stream.packing = packing_of({first, options_.tokens - first}, torch::kCPU);
    if (!options_.is_joint) return stream;
    stream.extra["notes"] = {notes_(batch.at("notes"), ctx), 1, Role::evolving, notes_tokens()};
    return stream;
  }
  void constants(const Batch& batch, Stream& stream, Context& ctx) override {
    stream.rotary_TK = rotary_table(stream.grid, kHeadWidth).to(ctx.options());
    if (options_.is_joint && !options_.is_packed)
      stream.extra["notes_mask"] = {batch.at("notes_mask"), 1, Role::constant, notes_tokens()};
  }
  int64_t depth() const override { return options_.depth; }
  Stream run_block(int64_t i, Stream stream, Context& ctx) override {
    return blocks_[static_cast<size_t>(i)]->forward(std::move(stream), ctx);
  }
  torch::Tensor head(const Stream& stream, Context& ctx) override {
    if (!options_.is_joint) return head_(stream.x_BTD, ctx);
    return head_(stream.x_BTD + stream.extra.at("notes").tensor.mean(1, true), ctx);
  }
  TensorSpecs takes() const override { return {}; }
  bool token_local() const override { return options_.is_token_local; }

 private:
  Sequence notes_tokens() const {
    return {{1, 1, kNotes}, options_.is_packed ? packing_of({2, kNotes - 2}, torch::kCPU) : nullptr};
  }

  FullOptions options_;
  Linear embed_, notes_, text_, head_;
  std::shared_ptr<LabelEmbed> label_;
  std::vector<std::shared_ptr<FullBlock>> blocks_;
};

// Rows of tokens: two, or one pack of two samples.
inline Batch full_batch(int64_t seed, const FullOptions& o, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  const int64_t rows = o.is_packed ? 1 : 2;
  Batch batch;
  batch["x"] = torch::randn({rows, o.tokens, 3}, generator, torch::kDouble).to(dtype);
  batch["target"] = torch::randn({rows, o.tokens, 3}, generator, torch::kDouble).to(dtype);
  batch["text"] = torch::randn({rows, 3, 5}, generator, torch::kDouble).to(dtype);
  batch["label"] = torch::tensor({seed % 4, (seed + 1) % 4}, torch::kLong);
  batch["notes"] = torch::randn({rows, kNotes, 3}, generator, torch::kDouble).to(dtype);
  batch["notes_mask"] = torch::arange(kNotes).lt(torch::arange(4, 4 + rows).unsqueeze(1));
  batch.ids = {2 * seed, 2 * seed + 1};
  batch.weights = {1, 1};
  return batch;
}

// The model as it is run: filled, in at least fp32 (gradients are left in that), and with what is frozen.
inline std::shared_ptr<FullModel> full_model(const FullOptions& options, at::ScalarType dtype) {
  auto model = std::make_shared<FullModel>(options);
  if (options.is_adapted)
    for (const auto& module : model->modules(/*include_self=*/false))
      if (auto* layer = dynamic_cast<CutLayer*>(module.get())) layer->adapt({2, 3});
  fill(*model, dtype == torch::kDouble ? torch::kDouble : torch::kFloat);
  if (options.is_adapted)
    for (auto& item : model->named_parameters())
      item.value().set_requires_grad(item.key().find(".lora_") != std::string::npos);
  return model;
}

class FullRun : public StrategyRun {
 public:
  FullRun(const Mesh& mesh, const FullOptions& options, at::ScalarType dtype, const std::vector<Named>& strategies)
      : StrategyRun(
            mesh, full_model(options, dtype), [=](int64_t seed) { return full_batch(seed, options, dtype); }, dtype,
            strategies) {
    if (options.route) this->route(*options.route);
  }
};

// The prediction, every gradient and the norm, in double precision.
inline void check_full(const Mesh& mesh, const FullOptions& options, const std::vector<Named>& strategies,
                       int64_t micro_batches) {
  const auto alone = mesh_of_one();
  FullRun whole(alone, options, torch::kDouble, {}), rank(mesh, options, torch::kDouble, strategies);
  CHECK((rank.predict(7) - whole.predict(7)).abs().max().item<double>() < 1e-12);
  whole.step(micro_batches, 1);
  rank.step(micro_batches, 1);
  const auto expected = whole.gradients();
  for (const auto& entry : rank.layout.entries) {
    CAPTURE(entry.name);
    const torch::Tensor& reference = expected.at(entry.name);
    CHECK(entry.tensor.sizes().vec() == local_shape(entry));
    if (!entry.trains) {
      CHECK(!entry.tensor.grad().defined());
      CHECK(!reference.defined());
      continue;
    }
    const double size = reference.abs().max().item<double>();
    if (options.tokens > 1) CHECK(size > 1e-6);  // one token has no choice what to attend to
    for (const auto& slice : entry.slices()) {
      const auto there = rectangle(reference, slice.global_start, slice.size);
      const auto here = rectangle(entry.tensor.grad(), slice.local_start, slice.size);
      CHECK((there - here).abs().max().item<double>() <= 1e-12 * std::max(size, 1e-3));
    }
  }
  CHECK(grad_norm(rank.layout, mesh) == doctest::Approx(grad_norm(whole.layout, alone)).epsilon(1e-13));
}

}  // namespace ditto::testing
