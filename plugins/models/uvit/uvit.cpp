// U-ViT: F. Bao et al., "All are worth words: a ViT backbone for diffusion models", 2022 (arXiv:2209.12152). Class and
// time are tokens beside the picture's, and each block of the second half is given what one of the first half made.
// diffusers' UTransformer2DModel is UniDiffuser's other function: norms on the sum, none before the first block.
//
// Legend: B samples, C channels, T tokens: class, time, patches; D width, K head width, P patch side.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/maps.h>
#include <ditto/nn/patches.h>

#include <algorithm>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Init;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

std::vector<ditto::TransformerSize> published() {
  return {{"S/2", 12, 512, 8},
          {"M/4", 16, 768, 12, 4},
          {"L/2", 20, 1024, 16},
          {"L/4", 20, 1024, 16, 4},
          {"H/2", 28, 1152, 16}};
}
constexpr Init kInit{Init::Kind::normal, 0.02};  // of blocks

struct UVitOptions : ditto::TransformerSize {
  bool time_mlp = false, convolution = true;

  void read(ditto::OptionReader& option) {
    TransformerSize::read(option, published(),
                          "a published size, but for H/2's convolution = false; the options below override its parts. "
                          "depth: blocks of both halves, one more stands between them");
    option("time_mlp", time_mlp, "the time's features go through an MLP to become a token");
    option("convolution", convolution, "3 x 3, of the predicted picture");
    if (depth % 2 != 0)
      option.reject("depth", "= " + std::to_string(depth) + " leaves a block without the one that it is given to",
                    "use an even number");
  }
};

// x <- x + attention(norm(x)), x <- x + mlp(norm(x)); in the second half first x <- map(x and the first half's).
struct Block : ditto::Layer {
  Block(const UVitOptions& o, bool is_given_skip)
      : norm1(make<ditto::LayerNorm>("norm1", o.width)),
        norm2(make<ditto::LayerNorm>("norm2", o.width)),
        qkv(linear("qkv", o.width, 3 * o.width, Split::heads({o.heads, o.heads, o.heads}, o.width / o.heads), kInit,
                   ditto::kNoBias)),
        proj(linear("proj", o.width, o.width, Split::rows().in_units(o.width / o.heads), kInit)),
        up(linear("up", o.width, o.mlp_ratio * o.width, Split::columns({o.mlp_ratio * o.width}), kInit)),
        down(linear("down", o.mlp_ratio * o.width, o.width, Split::rows(), kInit)),
        head_width(o.width / o.heads) {
    if (is_given_skip) skip = linear("skip", 2 * o.width, o.width, Split::none(), kInit);
  }

  Tensor forward(const Tensor& skip_BTD, const Stream& s, Context& ctx) {
    auto x_BTD = skip_BTD.defined() ? skip(torch::cat({s.x_BTD, skip_BTD}, -1), ctx) : s.x_BTD;
    x_BTD = x_BTD + ctx.attention_unit(qkv, proj, norm1->forward(x_BTD, ctx), [&](const Tensor& x) {
      const auto qkv_BTNK = qkv(x, ctx).unflatten(-1, {3, -1, head_width}).unbind(-3);  // N is what is here of it
      return proj(ctx.attention(qkv_BTNK[0], qkv_BTNK[1], qkv_BTNK[2], ditto::Pattern::full, s).flatten(-2), ctx);
    });
    return x_BTD + down(ctx.ops.gelu(up(norm2->forward(x_BTD, ctx), ctx), /*tanh=*/false), ctx);
  }

  std::shared_ptr<ditto::LayerNorm> norm1, norm2;
  ditto::Linear qkv, proj, up, down, skip;
  int64_t head_width;
};

// A learned row for each token. Parameter table [T, D].
struct Positions : ditto::Layer {
  Positions(int64_t tokens, int64_t width) : table(parameter("table", {tokens, width}, kInit)) {}
  ditto::Parameter table;
};

struct UVit final : ditto::Model {
  using Options = UVitOptions;

  UVit(const Options& o, const Needs& given) : options(o), needs(given) {
    const int64_t D = o.width;
    patches = add<ditto::Patches>(Unit::tokens, "patches", "uvit", needs, o.patch, 0, D);
    if (patches->tokens() < 0)
      throw ditto::Error(ditto::ErrorKind::config, "model \"uvit\"",
                         "learns a table of places, the data has many sizes",
                         "choose data of one size, or a model that computes positions");
    if (o.time_mlp) {
      time_in = linear(Unit::tokens, "time_in", D, 4 * D);
      time_out = linear(Unit::tokens, "time_out", 4 * D, D);
    }
    if (const auto n = needs.values("label")) label = add<ditto::LabelEmbed>(Unit::tokens, "label", n, D);
    positions = add<Positions>(Unit::tokens, "positions", extras() + patches->tokens(), D);
    for (int64_t i = 0; i < depth(); ++i) blocks.push_back(add_block<Block>(i, o, i > o.depth / 2));
    norm = add<ditto::LayerNorm>(Unit::head, "norm", D);
    out = linear(Unit::head, "out", D, patches->outputs(needs.out_channels));
    if (o.convolution)
      convolution = add<ditto::Conv2d>(Unit::head, "convolution",
                                       ditto::ConvShape{.in = needs.out_channels, .out = needs.out_channels});
  }

  // Of each sample, as tokens.
  ditto::Conditioning condition(const Batch&, Context&) override { return {}; }

  Stream tokens(const Batch& in, Context& ctx) override {
    const int64_t half = options.width / 2;
    auto time_BD = ditto::timestep_features(in.at("t"), half, static_cast<double>(half), ctx).to(ctx.compute);
    if (options.time_mlp) time_BD = time_out(ctx.ops.silu(time_in(time_BD, ctx)), ctx);
    std::vector<Tensor> parts{time_BD.unsqueeze(1), patches->forward(in.at("x"), ctx)};
    if (label) parts.insert(parts.begin(), label->forward(in.at("label"), ctx).unsqueeze(1));
    Stream s;
    s.x_BTD = ctx.ops.add_row(torch::cat(parts, 1), positions->table(ctx));
    s.grid = {1, 1, s.x_BTD.size(1)};
    return s;
  }

  int64_t depth() const override { return options.depth + 1; }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    const int64_t middle = options.depth / 2;
    Tensor skip_BTD;
    if (i > middle) {
      skip_BTD = s.skips_BTD.back();
      s.skips_BTD.pop_back();
    }
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(skip_BTD, s, ctx);
    if (i < middle) s.skips_BTD.push_back(s.x_BTD);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override {
    const auto x_BTD = s.x_BTD.narrow(1, extras(), patches->tokens());
    const auto y = patches->unpatchify(out(norm->forward(x_BTD, ctx), ctx), patches->grid());
    return convolution ? convolution->forward(y, ctx) : y;
  }

  bool token_local() const override { return true; }
  ditto::TensorSpecs takes() const override { return ditto::takes_offered(needs, {"x", "t", "label"}); }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return ditto::without_class_and_text(std::move(in), which_B, needs);
  }

  std::vector<std::string> foreign_formats() const override {
    return ditto::formats_of({"u-vit"}, [&](const auto&) { return not_theirs(); });
  }
  // github.com/baofff/U-ViT, libs/uvit.py.
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, {"u-vit"}, [&](const auto&) { return not_theirs(); });
    ditto::ForeignNames n(*this);
    n.layers("", "",
             "patches.map=patch_embed.proj time_in=time_embed.0 time_out=time_embed.2 label.table=label_emb.weight "
             "positions.table=pos_embed norm=norm out=decoder_pred convolution=final_layer");
    const auto layers = "norm1=norm1 qkv=attn.qkv proj=attn.proj norm2=norm2 up=mlp.fc1 down=mlp.fc2 skip=skip_linear";
    const int64_t half = options.depth / 2;
    n.blocks(half, "blocks.#.", "in_blocks.#.", layers);
    n.blocks(1, "blocks.#.", "mid_block.", layers, half);
    n.blocks(half, "blocks.#.", "out_blocks.#.", layers, half + 1);
    n.shape("patches.map", patches->convolution());
    n.shape("positions.table", {1, extras() + patches->tokens(), options.width});
    return n.format;
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, {"u-vit"});
    ditto::ForeignSizes s(
        file, {"patch_embed.proj.weight", "in_blocks.", ".mlp.fc1.weight", "decoder_pred.weight", "label_emb.weight"});
    Options o{s.size};
    o.depth *= 2;
    o.time_mlp = file.has("time_embed.0.weight"), o.convolution = file.has("final_layer.weight");
    ditto::read_sizes_over(o, reader, file, published(), {"time_mlp", "convolution"});
    return s.needs(o.patch * ditto::square_of(file, "pos_embed", o.width, s.classes > 0 ? 2 : 1));
  }

 private:
  int64_t extras() const { return label ? 2 : 1; }

  // Why no model of theirs is this one; empty: one is.
  std::string not_theirs() const {
    if (needs.out_channels != patches->x()[0]) return "predicts as many channels as there are, and this model others";
    return patches->is_square() ? "" : "makes square pictures, and this model's are not";
  }

  Options options;
  Needs needs;
  std::shared_ptr<ditto::Patches> patches;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::shared_ptr<Positions> positions;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::LayerNorm> norm;
  std::shared_ptr<ditto::Conv2d> convolution;
  ditto::Linear time_in, time_out, out;
};

}  // namespace

DITTO_MODEL_PLUGIN(UVit, "uvit", "1.0.0", "Apache-2.0",
                   "U-ViT: long skips, class and time as tokens (F. Bao et al., 2022)")
