// A small transformer whose blocks compute attention and MLP side by side, from one normalised input: M. Dehghani et
// al., "Scaling vision transformers to 22 billion parameters", 2023 (arXiv:2302.05442), section 2.
//
// Legend: B samples, T tokens here, D width, N heads, K = D / N head width.
#include <ditto/ditto.h>
#include <ditto/nn/transformer.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

struct TinyOptions {
  int64_t depth = 4, width = 64, heads = 4, patch = 2;

  void read(ditto::OptionReader& option) {
    option("depth", depth, "number of transformer blocks").at_least(1);
    option("width", width, "token width D").at_least(4);
    option("heads", heads, "attention heads N; must divide the width").at_least(1);
    option("patch", patch, "patch side, in pixels").at_least(1);
    if (width % heads != 0) option.reject("heads", "does not divide model.width", "choose one of its divisors");
    if (width % 4 != 0) option.reject("width", "is not a multiple of 4", "the position table needs it");
  }
};

// h = norm(x) * (1 + scale) + shift;  x <- x + attention(h) + MLP(h)
struct Block : ditto::Layer {
  explicit Block(const TinyOptions& o)
      : modulation(linear("modulation", o.width, 2 * o.width, Split::columns({2 * o.width}).gathered())),
        qkv(linear("qkv", o.width, 3 * o.width, Split::heads({o.heads, o.heads, o.heads}, o.width / o.heads))),
        proj(zero_linear("proj", o.width, o.width, Split::rows())),
        up(linear("up", o.width, 4 * o.width, Split::columns({4 * o.width}))),
        down(zero_linear("down", 4 * o.width, o.width, Split::rows())),
        head_width(o.width / o.heads) {}

  Tensor forward(const Stream& s, Context& ctx) {
    const auto m = modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(2, -1);
    const auto h_BTD = ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
    return s.x_BTD + attention(h_BTD, s, ctx) + ctx.ops.mlp_gelu_tanh(h_BTD, up, down, ctx);
  }

  Tensor attention(const Tensor& h_BTD, const Stream& s, Context& ctx) {
    return ctx.attention_unit(qkv, proj, h_BTD, [&](const Tensor& h) {
      const auto qkv_BTNK = qkv(h, ctx).unflatten(-1, {3, -1, head_width}).unbind(-3);  // N is what is here of it
      return proj(ctx.attention(qkv_BTNK[0], qkv_BTNK[1], qkv_BTNK[2], ditto::Pattern::full, s).flatten(-2), ctx);
    });
  }

  ditto::Linear modulation, qkv, proj, up, down;
  int64_t head_width;
};

struct Tiny final : ditto::Model {
  using Options = TinyOptions;

  Tiny(const Options& o, const Needs& needs) : options(o), x_(needs.shape("x")) {
    if (x_.size() != 3)
      throw ditto::Error(ditto::ErrorKind::config, "model 'tiny'", "takes pictures [C, H, W]", "choose such data");
    ditto::check_patches("model.patch", o.patch, "pictures of", {x_[1], x_[2]});
    patches = add<ditto::PatchEmbed>(Unit::tokens, "patches", x_[0], o.patch, o.width);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", o.width, 128.0);
    if (const int64_t classes = needs.values("label"); classes > 0)
      label = add<ditto::LabelEmbed>(Unit::condition, "label", classes, o.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    final_modulation =
        linear(Unit::head, "final_modulation", o.width, 2 * o.width, Split::columns({2 * o.width}).gathered());
    out = zero_linear(Unit::head, "out", o.width, o.patch * o.patch * needs.out_channels);
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    auto cond_BD = time->forward(in.at("t"), ctx);
    if (label) cond_BD = cond_BD + label->forward(in.at("label"), ctx);
    return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx) + ditto::sincos_positions(s.grid, options.width).to(ctx.options());
    return s;
  }

  int64_t depth() const override { return options.depth; }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override {
    const auto m = final_modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(2, -1);
    return patches->unpatchify(out(ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s), ctx), s.grid);
  }

  bool token_local() const override { return true; }

  ditto::TensorSpecs takes() const override {
    ditto::TensorSpecs inputs{{"x", torch::kFloat, x_, "noisy picture"},
                              {"t", torch::kFloat, {}, "time, in the scheduler's units"}};
    if (label)
      inputs.push_back({"label", torch::kLong, {}, "a class, or the null class after the last", label->null_label()});
    return inputs;
  }

  Batch without_condition(Batch in, const Tensor& which_B) const override {
    if (label)
      in["label"] = torch::where(which_B, torch::full_like(in.at("label"), label->null_label()), in.at("label"));
    return in;
  }

  Options options;
  std::vector<int64_t> x_;  // [C, H, W]
  std::shared_ptr<ditto::PatchEmbed> patches;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::vector<std::shared_ptr<Block>> blocks;
  ditto::Linear final_modulation, out;
};

}  // namespace

DITTO_MODEL_PLUGIN(Tiny, "tiny", "1.0.0", "Apache-2.0", "A small transformer with attention and MLP side by side")
