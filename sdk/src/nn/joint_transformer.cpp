#include <ditto/nn/joint_transformer.h>

#include <torch/types.h>

#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>

namespace ditto {

using torch::Tensor;

namespace {

Sequence words_of(const Tensor& text_BS) { return {{1, 1, text_BS.size(1)}, nullptr}; }

}  // namespace

JointHeads::JointHeads(const TransformerSize& size, const Split& tokens)
    : qkv(linear("qkv", size.width, 3 * size.width, tokens)), head_width_(size.head_width()) {
  if (!size.qk_norm) return;
  q_norm_ = make<RmsNorm>("q_norm", head_width_);
  k_norm_ = make<RmsNorm>("k_norm", head_width_);
}
JointHeads::~JointHeads() = default;

Split JointHeads::split(const TransformerSize& size) {
  return Split::heads({size.heads, size.heads, size.heads}, size.head_width());
}

Tensors JointHeads::forward(const Tensor& x, Context& ctx) {
  auto all = qkv(x, ctx).unflatten(-1, {3, -1, head_width_}).unbind(-3);
  if (q_norm_) all[0] = q_norm_->of_heads(all[0], *qkv, ctx, ctx.ops.inside());
  if (k_norm_) all[1] = k_norm_->of_heads(all[1], *qkv, ctx, ctx.ops.inside());
  return all;
}

Tensors attend_jointly(const Tensors& picture, const Tensors& text, const Stream& s, Context& ctx) {
  const auto turn = [&](const Tensor& x) { return s.rotary_TK.defined() ? apply_rotary(x, s.rotary_TK) : x; };
  const auto mask = s.extra.find("text_mask");
  const auto mask_BS = mask == s.extra.end() ? Tensor() : mask->second.tensor;
  return ctx.attention({.parts = {{turn(picture[0]), turn(picture[1]), picture[2], s, {}},
                                  {text[0], text[1], text[2], s.sequence("text"), mask_BS}}});
}

// One sequence's weights in a block. Of the `last` text there are keys and values alone.
struct JointBlock::Side : Layer {
  enum class Kind { plain, dual, last };
  Side(const TransformerSize& o, Kind kind, const std::string& of)
      : modulation(zero_linear("modulation", o.width, rows(kind) * o.width,
                               Split::columns({rows(kind) * o.width}).gathered())),
        heads(make<JointHeads>("attn", o, JointHeads::split(o).of(of))) {
    if (kind == Kind::last) return;
    proj = linear("proj", o.width, o.width, Split::rows().in_units(o.head_width()).of(of));
    up = linear("up", o.width, 4 * o.width, Split::columns({4 * o.width}).of(of));
    down = linear("down", 4 * o.width, o.width, Split::rows().of(of));
    if (kind == Kind::dual) second = make<SelfAttention>("second", o.attention());
  }
  static int64_t rows(Kind kind) { return kind == Kind::last ? 2 : kind == Kind::dual ? 9 : 6; }

  // Shift, scale and gate of attention, of the MLP, and of the second attention.
  Tensors modulate(const Stream& s, Context& ctx) {
    const auto all = modulation(ctx.ops.silu(s.condition.cond_BD), ctx);
    return all.chunk(all.size(-1) / s.condition.cond_BD.size(-1), -1);
  }
  Tensor mlp(const Tensor& x, const Tensors& m, const Sequence& tokens, Context& ctx) {
    const auto h = ctx.ops.norm_modulate(x, m[3], m[4], tokens);
    return ctx.ops.gated_residual(x, m[5], ctx.ops.mlp_gelu_tanh(h, up, down, ctx), tokens);
  }

  Linear modulation, proj, up, down;
  std::shared_ptr<JointHeads> heads;
  std::shared_ptr<SelfAttention> second;
};

JointBlock::JointBlock(const TransformerSize& size, const Form& form)
    : picture_(make<Side>("picture", size, form.second ? Side::Kind::dual : Side::Kind::plain, "")),
      words_(make<Side>("words", size, form.ends_text ? Side::Kind::last : Side::Kind::plain, "text")) {}
JointBlock::~JointBlock() = default;

Stream JointBlock::forward(Stream s, Context& ctx) {
  auto& text = s.extra.at("text");
  const auto m = picture_->modulate(s, ctx), n = words_->modulate(s, ctx);
  const auto x = ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
  const auto y = ctx.ops.norm_modulate(text.tensor, n[0], n[1], *text.own);
  const auto out = ctx.attention_unit(
      {{picture_->heads->qkv, picture_->proj, x}, {words_->heads->qkv, words_->proj, y}}, [&](const Tensors& in) {
        auto seen = attend_jointly(picture_->heads->forward(in[0], ctx), words_->heads->forward(in[1], ctx), s, ctx);
        Tensors mapped{picture_->proj(seen[0].flatten(-2), ctx)};
        if (words_->proj) mapped.push_back(words_->proj(seen[1].flatten(-2), ctx));
        return mapped;
      });
  auto x_BTD = ctx.ops.gated_residual(s.x_BTD, m[2], out[0], s);
  if (picture_->second) {
    const auto h = ctx.ops.norm_modulate(s.x_BTD, m[6], m[7], s);
    x_BTD = ctx.ops.gated_residual(x_BTD, m[8], picture_->second->forward(h, Pattern::full, {}, s, ctx), s);
  }
  s.x_BTD = picture_->mlp(x_BTD, m, s, ctx);
  if (words_->proj)
    text.tensor = words_->mlp(ctx.ops.gated_residual(text.tensor, n[2], out[1], *text.own), n, *text.own, ctx);
  return s;
}

Tensor JointBlock::modulated_input(const Stream& s, Context& ctx) {
  const auto m = picture_->modulate(s, ctx);
  return ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
}

JointTransformer::JointTransformer(const std::string& name, const JointOptions& o, const Needs& needs)
    : needs_(needs), options_(o), joins_(name, o.joins, needs) {
  o.text.check(needs, name);
  time_ = add<TimeEmbed>(Unit::condition, "time", o.width, 128.0);
  if (const int64_t pooled = needs.width("text_pooled"); pooled > 0) {
    pooled_in_ = linear(Unit::condition, "pooled_in", pooled, o.width);
    pooled_out_ = linear(Unit::condition, "pooled_out", o.width, o.width);
  }
  patches_ = add<Patches>(Unit::tokens, "patches", name, joins_.joined(), o.patch, 0, o.width);
  text_ = linear(Unit::tokens, "text", needs.width("text"), o.width);
  final_modulation_ =
      zero_linear(Unit::head, "final_modulation", o.width, 2 * o.width, Split::columns({2 * o.width}).gathered());
  out_ = zero_linear(Unit::head, "out", o.width, patches_->outputs(needs.out_channels));
}
JointTransformer::~JointTransformer() = default;

void JointTransformer::add_joint_block(const JointBlock::Form& form) {
  blocks_.push_back(add_block<JointBlock>(std::ssize(blocks_), options_, form));
}

Tensor JointTransformer::time(const Batch& in, Context& ctx) { return time_->forward(in.at("t"), ctx); }

Conditioning JointTransformer::condition(const Batch& in, Context& ctx) {
  auto cond_BD = time(in, ctx);
  if (pooled_in_) cond_BD = cond_BD + pooled_out_(ctx.ops.silu(pooled_in_(in.at("text_pooled"), ctx)), ctx);
  return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
}

Stream JointTransformer::tokens(const Batch& in, Context& ctx) {
  Stream s;
  s.grid = patches_->grid(in.at("x"));
  s.x_BTD = patches_->forward(joins_.forward(in, ctx), ctx);
  const auto text_BSE = options_.text.padded(in).at("text");
  s.extra["text"] = {text_(text_BSE, ctx), 1, Role::evolving, words_of(text_BSE)};
  return s;
}

void JointTransformer::constants(const Batch& in, Stream& s, Context&) {
  if (!options_.text.mask) return;
  const auto mask_BS = options_.text.padded(in).at("text_mask");
  s.extra["text_mask"] = {mask_BS, 1, Role::constant, words_of(mask_BS)};
}

int64_t JointTransformer::depth() const { return std::ssize(blocks_); }

Stream JointTransformer::run_block(int64_t index, Stream s, Context& ctx) {
  return blocks_[static_cast<size_t>(index)]->forward(std::move(s), ctx);
}

Tensor JointTransformer::modulated_input(const Stream& s, Context& ctx) {
  return blocks_.front()->modulated_input(s, ctx);
}

Tensor JointTransformer::head(const Stream& s, Context& ctx) {
  const auto m = final_modulation_(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(2, -1);
  return patches_->unpatchify(out_(ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s), ctx), s.grid);
}

TensorSpecs JointTransformer::takes() const {
  auto inputs = takes_offered(needs_, {"x", "t"});
  for (auto& input : options_.text.takes(needs_)) inputs.push_back(std::move(input));
  joins_.add_to(inputs);
  return inputs;
}

TensorSpecs JointTransformer::makes() const {
  const auto features = patches_->features();
  auto input = features;
  input.name = "modulated_input";
  return {features, input};
}

Batch JointTransformer::without_condition(Batch in, const Tensor& which_B) const {
  return options_.text.without_text(std::move(in), which_B);
}

std::string JointTransformer::not_theirs() const {
  return needs_.width("text_pooled") == 0 ? "takes a pooled text, and this model none" : joins_.not_theirs();
}

ForeignConfig diffusers_joint_config(const std::string& class_name, const TransformerSize& size,
                                     const ModelNeeds& needs) {
  return {{"_class_name", class_name},
          {"num_layers", size.depth},
          {"attention_head_dim", size.head_width()},
          {"num_attention_heads", size.heads},
          {"joint_attention_dim", needs.width("text")},
          {"pooled_projection_dim", needs.width("text_pooled")}};
}

ModelNeeds joint_needs_of(const ForeignShapes& file, const std::vector<int64_t>& x, int64_t out_channels,
                          const std::string& text, const std::string& pooled) {
  auto made = foreign_needs_of(x, out_channels);
  offer_text(made, file.size(text, 1, most::kWidth), /*and_empty=*/false);
  made.inputs.push_back({"text_pooled", torch::kFloat, {file.size(pooled, 1, most::kWidth)}, ""});
  return made;
}

}  // namespace ditto
