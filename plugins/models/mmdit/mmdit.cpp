// Text and picture with weights of their own and one attention: P. Esser et al., "Scaling rectified flow transformers
// for high-resolution image synthesis", 2024 (arXiv:2403.03206), as Stable Diffusion 3 and 3.5 have it, and Black
// Forest Labs' Flux.1, whose later blocks have one set of weights for both.
//
// Legend: B samples, D width, K head width, P patch side, S tokens of text.
#include <ditto/conditions.h>
#include <ditto/ditto.h>
#include <ditto/patches.h>

#include "weights.h"

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Sequence;
using ditto::Split;
using ditto::Stream;
using ditto::Tensors;
using ditto::Unit;
using mmdit::MmDitOptions;
using torch::Tensor;

// Queries, keys and values of some tokens.
struct Heads : ditto::Layer {
  Heads(const MmDitOptions& o, const Split& split)
      : qkv(linear("qkv", o.width, 3 * o.width, split)), head_width(o.head_width()) {
    if (!o.qk_norm) return;
    q_norm = make<ditto::RmsNorm>("q_norm", head_width);
    k_norm = make<ditto::RmsNorm>("k_norm", head_width);
  }
  static Split split(const MmDitOptions& o) { return Split::heads({o.heads, o.heads, o.heads}, o.head_width()); }

  // [B, T, D] -> q, k and v [B, T, heads that are here, K]
  Tensors operator()(const Tensor& x, Context& ctx) {
    auto all = qkv(x, ctx).unflatten(-1, {3, -1, head_width}).unbind(-3);
    if (q_norm) all[0] = q_norm->of_heads(all[0], *qkv, ctx, ctx.ops.inside());
    if (k_norm) all[1] = k_norm->of_heads(all[1], *qkv, ctx, ctx.ops.inside());
    return all;
  }

  ditto::Linear qkv;
  std::shared_ptr<ditto::RmsNorm> q_norm, k_norm;
  int64_t head_width;
};

// What attends to one another: the picture, turned by its places, and the text, which has none.
Tensors attend(const Tensors& picture, const Tensors& text, const Stream& s, Context& ctx) {
  const auto turn = [&](const Tensor& x) { return s.rotary_TK.defined() ? ditto::apply_rotary(x, s.rotary_TK) : x; };
  const auto mask = s.extra.find("text_mask");
  const auto mask_BS = mask == s.extra.end() ? Tensor() : mask->second.tensor;
  return ctx.attention({.parts = {{turn(picture[0]), turn(picture[1]), picture[2], s, {}},
                                  {text[0], text[1], text[2], s.sequence("text"), mask_BS}}});
}

struct Block : ditto::Layer {
  virtual Stream forward(Stream s, Context& ctx) = 0;
};

// One sequence's weights in a block. Nobody reads the `last` text: it has keys and values alone.
struct Side : ditto::Layer {
  enum class Kind { plain, dual, last };
  Side(const MmDitOptions& o, Kind kind, const std::string& of)
      : modulation(zero_linear("modulation", o.width, rows(kind) * o.width,
                               Split::columns({rows(kind) * o.width}).gathered())),
        heads(make<Heads>("attn", o, Heads::split(o).of(of))) {
    if (kind == Kind::last) return;
    proj = linear("proj", o.width, o.width, Split::rows().in_units(o.head_width()).of(of));
    up = linear("up", o.width, 4 * o.width, Split::columns({4 * o.width}).of(of));
    down = linear("down", 4 * o.width, o.width, Split::rows().of(of));
    if (kind == Kind::dual) second = make<ditto::SelfAttention>("second", o.attention());
  }
  static int64_t rows(Kind kind) { return kind == Kind::last ? 2 : kind == Kind::dual ? 9 : 6; }

  // Shift, scale and gate of attention, of the MLP, and of the second attention.
  Tensors modulate(const Stream& s, Context& ctx) {
    const auto all = modulation(ctx.ops.silu(s.condition.cond_BD), ctx);
    return all.chunk(all.size(-1) / s.condition.cond_BD.size(-1), -1);
  }
  Tensor mlp(const Tensor& x, const Tensors& m, const Sequence& tokens, Context& ctx) {
    const auto h = ctx.ops.norm_modulate(x, m[3], m[4], tokens);
    return ctx.ops.gated_residual(x, m[5], down(ctx.ops.linear_gelu_tanh(h, up, ctx), ctx), tokens);
  }

  ditto::Linear modulation, proj, up, down;
  std::shared_ptr<Heads> heads;
  std::shared_ptr<ditto::SelfAttention> second;
};

struct JointBlock final : Block {
  JointBlock(const MmDitOptions& o, int64_t index)
      : picture(make<Side>("picture", o, index < o.dual_attention ? Side::Kind::dual : Side::Kind::plain, "")),
        words(make<Side>("words", o, index + 1 == o.blocks() ? Side::Kind::last : Side::Kind::plain, "text")) {}

  Stream forward(Stream s, Context& ctx) override {
    auto& text = s.extra.at("text");
    const auto m = picture->modulate(s, ctx), n = words->modulate(s, ctx);
    const auto x = ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
    const auto y = ctx.ops.norm_modulate(text.tensor, n[0], n[1], *text.own);
    const auto out = ctx.attention_unit(
        {{picture->heads->qkv, picture->proj, x}, {words->heads->qkv, words->proj, y}}, [&](const Tensors& in) {
          auto seen = attend((*picture->heads)(in[0], ctx), (*words->heads)(in[1], ctx), s, ctx);
          Tensors mapped{picture->proj(seen[0].flatten(-2), ctx)};
          if (words->proj) mapped.push_back(words->proj(seen[1].flatten(-2), ctx));
          return mapped;
        });
    auto x_BTD = ctx.ops.gated_residual(s.x_BTD, m[2], out[0], s);
    if (picture->second) {
      const auto h = ctx.ops.norm_modulate(s.x_BTD, m[6], m[7], s);
      x_BTD = ctx.ops.gated_residual(x_BTD, m[8], picture->second->forward(h, ditto::Pattern::full, {}, s, ctx), s);
    }
    s.x_BTD = picture->mlp(x_BTD, m, s, ctx);
    if (words->proj)
      text.tensor = words->mlp(ctx.ops.gated_residual(text.tensor, n[2], out[1], *text.own), n, *text.own, ctx);
    return s;
  }

  std::shared_ptr<Side> picture, words;
};

// Attention and MLP beside one another, of text and picture with the same weights.
struct SingleBlock final : Block {
  explicit SingleBlock(const MmDitOptions& o)
      : modulation(zero_linear("modulation", o.width, 3 * o.width, Split::columns({3 * o.width}).gathered())),
        heads(make<Heads>("attn", o, Heads::split(o).side_by_side())),
        up(linear("up", o.width, 4 * o.width, Split::columns({4 * o.width}).in_units(o.head_width()).side_by_side())),
        out(linear("out", 5 * o.width, o.width,
                   Split::rows().in_parts({o.width, 4 * o.width}).in_units(o.head_width()).side_by_side())) {}

  Stream forward(Stream s, Context& ctx) override {
    auto& text = s.extra.at("text");
    const auto m = modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(3, -1);
    const auto y = ctx.ops.norm_modulate(text.tensor, m[0], m[1], *text.own);
    const auto x = ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
    const auto two = [&](const Tensor& both) { return both.split_with_sizes({y.size(1), x.size(1)}, 1); };
    const auto both = ctx.attention_unit(heads->qkv, out, torch::cat({y, x}, 1), [&](const Tensor& in) {
      Tensors of_text, of_picture;
      for (const auto& tensor : (*heads)(in, ctx)) {
        const auto parts = two(tensor);
        of_text.push_back(parts[0]), of_picture.push_back(parts[1]);
      }
      const auto seen = attend(of_picture, of_text, s, ctx);
      const auto attended = torch::cat({seen[1], seen[0]}, 1).flatten(-2);
      return out(torch::cat({attended, ctx.ops.linear_gelu_tanh(in, up, ctx)}, -1), ctx);
    });
    const auto parts = two(both);
    text.tensor = ctx.ops.gated_residual(text.tensor, m[2], parts[0], *text.own);
    s.x_BTD = ctx.ops.gated_residual(s.x_BTD, m[2], parts[1], s);
    return s;
  }

  ditto::Linear modulation;
  std::shared_ptr<Heads> heads;
  ditto::Linear up, out;
};

struct MmDit final : ditto::Model {
  using Options = MmDitOptions;

  MmDit(const Options& o, const Needs& given) : options(o), needs(given) {
    o.text.check(needs, "mmdit");
    time = add<ditto::TimeEmbed>(Unit::condition, "time", o.width, 128.0);
    if (o.guidance_embed) guidance = add<ditto::TimeEmbed>(Unit::condition, "guidance", o.width, 128.0);
    if (const int64_t pooled = needs.width("text_pooled"); pooled > 0) {
      pooled_in = linear(Unit::condition, "pooled_in", pooled, o.width);
      pooled_out = linear(Unit::condition, "pooled_out", o.width, o.width);
    }
    patches = add<ditto::Patches>(Unit::tokens, "patches", "mmdit", needs, o.patch, 0, o.width);
    text = linear(Unit::tokens, "text", needs.width("text"), o.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<JointBlock>(i, o, i));
    for (int64_t i = o.depth; i < o.blocks(); ++i) blocks.push_back(add_block<SingleBlock>(i, o));
    final_modulation =
        zero_linear(Unit::head, "final_modulation", o.width, 2 * o.width, Split::columns({2 * o.width}).gathered());
    out = zero_linear(Unit::head, "out", o.width, patches->outputs(needs.out_channels));
  }

  // Time, guidance and the pooled text.
  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    auto cond_BD = time->forward(in.at("t"), ctx);
    if (guidance) cond_BD = cond_BD + guidance->forward(torch::full_like(in.at("t"), 1000 * options.guidance), ctx);
    if (pooled_in) cond_BD = cond_BD + pooled_out(ctx.ops.silu(pooled_in(in.at("text_pooled"), ctx)), ctx);
    return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx);
    if (options.rotary.empty()) s.x_BTD = s.x_BTD + options.positions(s.grid).to(ctx.options());
    const auto text_BSE = options.text.padded(in).at("text");
    s.extra["text"] = {text(text_BSE, ctx), 1, ditto::Role::evolving, words(text_BSE)};
    return s;
  }

  void constants(const Batch& in, Stream& s, Context& ctx) override {
    if (const auto& r = options.rotary; !r.empty())
      s.rotary_TK = ditto::rotary_table_in_double(s.grid, {r[0] / 2, r[1] / 2, r[2] / 2}).to(ctx.device);
    if (!options.text.mask) return;
    const auto mask_BS = options.text.padded(in).at("text_mask");
    s.extra["text_mask"] = {mask_BS, 1, ditto::Role::constant, words(mask_BS)};
  }

  int64_t depth() const override { return options.blocks(); }
  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    return blocks[static_cast<size_t>(i)]->forward(std::move(s), ctx);
  }

  // The first block is always one with weights of the picture's own.
  Tensor modulated_input(const Stream& s, Context& ctx) override {
    const auto m = static_cast<JointBlock&>(*blocks.front()).picture->modulate(s, ctx);
    return ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
  }

  Tensor head(const Stream& s, Context& ctx) override {
    const auto m = final_modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(2, -1);
    return patches->unpatchify(out(ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s), ctx), s.grid);
  }

  bool token_local() const override { return true; }
  ditto::TensorSpecs takes() const override {
    auto inputs = ditto::takes_offered(needs, {"x", "t"});
    for (auto& input : options.text.takes(needs)) inputs.push_back(std::move(input));
    return inputs;
  }
  ditto::TensorSpecs makes() const override {
    auto features = patches->features(), input = features;
    input.name = "modulated_input";
    return {features, input};
  }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return options.text.without_text(std::move(in), which_B);
  }

  std::vector<std::string> foreign_formats() const override { return mmdit::formats(options, needs); }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    return mmdit::names(*this, options, needs, format);
  }
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    return mmdit::needs_of(reader, file);
  }

 private:
  static Sequence words(const Tensor& text_BS) { return {{1, 1, text_BS.size(1)}, nullptr}; }

  Options options;
  Needs needs;
  std::shared_ptr<ditto::Patches> patches;
  std::shared_ptr<ditto::TimeEmbed> time, guidance;
  ditto::Linear pooled_in, pooled_out, text, final_modulation, out;
  std::vector<std::shared_ptr<Block>> blocks;
};

}  // namespace

DITTO_MODEL_PLUGIN(MmDit, "mmdit", "1.0.0", "Apache-2.0",
                   "text and picture in one attention (Stable Diffusion 3 and 3.5, Flux.1)")
