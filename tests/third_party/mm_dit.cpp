// Joint attention: picture and text have weights of their own, both go through all blocks, and attend as one sequence.
// P. Esser et al., "Scaling rectified flow transformers for high-resolution image synthesis" (MM-DiT), 2024
// (arXiv:2403.03206).
//
// Legend: B samples, T tokens of the picture here, S tokens of text here, D width, N heads, K = D / N, E width of a
// text's embedding.
#include <ditto/ditto.h>
#include <ditto/nn/transformer.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Role;
using ditto::Sequence;
using ditto::Split;
using ditto::Stream;
using ditto::Tensors;
using ditto::Unit;
using torch::Tensor;

struct MmDitOptions {
  int64_t depth = 4, width = 64, heads = 4, patch = 2, text_tokens = 0;

  void read(ditto::OptionReader& option) {
    option("depth", depth, "number of transformer blocks").at_least(1);
    option("width", width, "token width D").at_least(4);
    option("heads", heads, "attention heads N; must divide the width").at_least(1);
    option("patch", patch, "patch side, in pixels").at_least(1);
    option("text_tokens", text_tokens, "tokens that texts are padded to; 0: a batch's longest text's").at_least(0);
    if (width % heads != 0) option.reject("heads", "does not divide model.width", "choose one of its divisors");
    if (width % 4 != 0) option.reject("width", "is not a multiple of 4", "the position table needs it");
  }
};

// One sequence's weights in a block. `of`: "" for the picture, or the name of the stream's extra.
struct Side : ditto::Layer {
  Side(const MmDitOptions& o, const std::string& of)
      : modulation(zero_linear("modulation", o.width, 6 * o.width, Split::columns({6 * o.width}).gathered())),
        qkv(linear("qkv", o.width, 3 * o.width, Split::heads({o.heads, o.heads, o.heads}, o.width / o.heads).of(of))),
        proj(linear("proj", o.width, o.width, Split::rows().of(of))),
        up(linear("up", o.width, 4 * o.width, Split::columns({4 * o.width}).of(of))),
        down(linear("down", 4 * o.width, o.width, Split::rows().of(of))),
        q_norm(make<ditto::RmsNorm>("q_norm", o.width / o.heads)),
        k_norm(make<ditto::RmsNorm>("k_norm", o.width / o.heads)),
        head_width(o.width / o.heads) {}

  // Shift, scale and gate of attention, and of the MLP.
  Tensors modulate(const Tensor& cond_BD, Context& ctx) { return modulation(torch::silu(cond_BD), ctx).chunk(6, -1); }

  ditto::AttentionPart part(const Tensor& x, const Sequence& tokens, const Tensor& mask, Context& ctx) {
    const auto qkv_BTNK = qkv(x, ctx).unflatten(-1, {3, -1, head_width}).unbind(-3);
    return {q_norm->forward(qkv_BTNK[0], ctx), k_norm->forward(qkv_BTNK[1], ctx), qkv_BTNK[2], tokens, mask};
  }

  // What follows attention.
  Tensor finish(Tensor x, const Tensor& attended, const Tensors& m, const Sequence& tokens, Context& ctx) {
    x = ctx.ops.gated_residual(x, m[2], attended, tokens);
    const auto h = ctx.ops.norm_modulate(x, m[3], m[4], tokens);
    return ctx.ops.gated_residual(x, m[5], ctx.ops.mlp_gelu_tanh(h, up, down, ctx), tokens);
  }

  ditto::Linear modulation, qkv, proj, up, down;
  std::shared_ptr<ditto::RmsNorm> q_norm, k_norm;
  int64_t head_width;
};

struct Block : ditto::Layer {
  explicit Block(const MmDitOptions& o)
      : picture(make<Side>("picture", o, "")), words(make<Side>("words", o, "text")) {}

  Stream forward(Stream s, Context& ctx) {
    auto& text = s.extra.at("text");
    const auto m = picture->modulate(s.condition.cond_BD, ctx), n = words->modulate(s.condition.cond_BD, ctx);
    const auto x = ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
    const auto y = ctx.ops.norm_modulate(text.tensor, n[0], n[1], *text.own);
    const auto out = ctx.attention_unit({{picture->qkv, picture->proj, x}, {words->qkv, words->proj, y}},
                                        [&](const Tensors& in) { return attend(in, s, ctx); });
    s.x_BTD = picture->finish(s.x_BTD, out[0], m, s, ctx);
    text.tensor = words->finish(text.tensor, out[1], n, *text.own, ctx);
    return s;
  }

  Tensors attend(const Tensors& in, const Stream& s, Context& ctx) {
    const Tensor mask = s.extra.at("text_mask").tensor;
    const auto out = ctx.attention(
        {.parts = {picture->part(in[0], s, {}, ctx), words->part(in[1], *s.extra.at("text").own, mask, ctx)}});
    return {picture->proj(out[0].flatten(-2), ctx), words->proj(out[1].flatten(-2), ctx)};
  }

  std::shared_ptr<Side> picture, words;
};

struct MmDit final : ditto::Model {
  using Options = MmDitOptions;

  MmDit(const Options& o, const Needs& needs) : options(o), x_(needs.shape("x")), text_width(needs.width("text")) {
    if (x_.size() != 3 || text_width == 0)
      throw ditto::Error(ditto::ErrorKind::config, "model 'mm_dit'", "takes pictures and text", "choose such data");
    ditto::check_patches("model.patch", o.patch, "pictures of", {x_[1], x_[2]});
    time = add<ditto::TimeEmbed>(Unit::condition, "time", o.width, 128.0);
    pooled = linear(Unit::condition, "pooled", text_width, o.width);
    patches = add<ditto::PatchEmbed>(Unit::tokens, "patches", x_[0], o.patch, o.width);
    text = linear(Unit::tokens, "text", text_width, o.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    last = zero_linear(Unit::head, "last", o.width, 2 * o.width);
    out = zero_linear(Unit::head, "out", o.width, o.patch * o.patch * needs.out_channels);
  }

  // Time, and the mean of the text's embeddings.
  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    const auto mask_BS1 = in.at("text_mask").to(ctx.compute).unsqueeze(-1);
    const auto mean_BE = (in.at("text").to(ctx.compute) * mask_BS1).sum(1) / mask_BS1.sum(1).clamp_min(1);
    return {.cond_BD = time->forward(in.at("t"), ctx) + pooled(mean_BE, ctx), .text_BSE = {}, .text_mask_BS = {}};
  }

  // Nothing is known of a text where its mask is false: what was dropped, and what is padding.
  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx) + ditto::sincos_positions(s.grid, options.width).to(ctx.options());
    const auto text_BSE = in.at("text") * in.at("text_mask").unsqueeze(-1);
    s.extra["text"] = {text(padded(text_BSE, 1), ctx), 1, Role::evolving, sequence(in)};
    return s;
  }

  void constants(const Batch& in, Stream& s, Context&) override {
    s.extra["text_mask"] = {padded(in.at("text_mask"), 0), 1, Role::constant, sequence(in)};
  }

  int64_t depth() const override { return options.depth; }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    return blocks[static_cast<size_t>(i)]->forward(std::move(s), ctx);
  }

  // The text's first token has a say in the last modulation.
  Tensor head(const Stream& s, Context& ctx) override {
    const auto cond_BD = s.condition.cond_BD + s.extra.at("text").tensor.select(1, 0);
    const auto m = last(torch::silu(cond_BD), ctx).chunk(2, -1);
    return patches->unpatchify(out(ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s), ctx), s.grid);
  }

  bool token_local() const override { return true; }

  ditto::TensorSpecs takes() const override {
    return {{"x", torch::kFloat, x_, "noisy picture"},
            {"t", torch::kFloat, {}, "time, in the scheduler's units"},
            {"text", torch::kFloat, {-1, text_width}, "embeddings of a text's tokens"},
            {"text_mask", torch::kBool, {-1}, "true where there is text; nowhere: the null condition"}};
  }

  Batch without_condition(Batch in, const Tensor& which_B) const override {
    in["text_mask"] = in.at("text_mask").logical_and(which_B.logical_not().unsqueeze(1));
    return in;
  }

  int64_t text_length(const Batch& in) const { return std::max(in.at("text").size(1), options.text_tokens); }
  Sequence sequence(const Batch& in) const { return {{1, 1, text_length(in)}, nullptr}; }
  // Along dim 1; `behind` it are so many.
  Tensor padded(const Tensor& x, int64_t behind) const {
    std::vector<int64_t> pad(static_cast<size_t>(2 * behind + 2), 0);
    pad.back() = std::max<int64_t>(options.text_tokens - x.size(1), 0);
    return torch::constant_pad_nd(x, pad);
  }

  Options options;
  std::vector<int64_t> x_;  // [C, H, W]
  int64_t text_width;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::PatchEmbed> patches;
  ditto::Linear pooled, text, last, out;
  std::vector<std::shared_ptr<Block>> blocks;
};

}  // namespace

DITTO_MODEL_PLUGIN(MmDit, "mm_dit", "1.0.0", "Apache-2.0",
                   "text and pictures with weights of their own and one attention")
