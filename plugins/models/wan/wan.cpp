// Wan 2.1's transformer for video from text: Team Wan, "Wan: open and advanced large-scale video generative models",
// 2025 (arXiv:2503.20314). Full attention in space and time, queries and keys normed over all heads of a token and
// turned by frame, row and column, and one modulation for all blocks.
//
// Legend: B samples, D width, N heads, K = D / N head width, S tokens of text, E their width.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/norm_over_heads.h>
#include <ditto/nn/padded_text.h>
#include <ditto/nn/tables.h>
#include <ditto/nn/video.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Pattern;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;
namespace most = ditto::most;

struct WanOptions : ditto::TransformerSize {
  int64_t hidden = 0;
  ditto::PaddedText text;

  void read(ditto::OptionReader& option) {
    read_size(option, {{"1.3B", 30, 1536, 12}, {"14B", 40, 5120, 40}},
              "Wan 2.1's sizes; the options below override its parts");
    if (!preset.empty()) text.mask = false, text.tokens = 512, hidden = preset == "14B" ? 13824 : 8960;
    option("hidden", hidden, "hidden width of the MLP; 0: four times D").between(0, most::kMlpRatio * most::kWidth);
    read_frames(option);
    text.read(option);
    if (head_width() % 2 != 0 || head_width() < 6)
      option.reject("heads", "give heads of width " + std::to_string(head_width()),
                    "positions by rotation need an even width of at least 6");
  }
  int64_t mlp() const { return hidden > 0 ? hidden : 4 * width; }
};

// Attention of tokens among themselves, or to the text.
struct Attention : ditto::Layer {
  explicit Attention(const WanOptions& o)
      : q_norm(make<ditto::RmsNormOverHeads>("q_norm", o.heads, o.head_width())),
        k_norm(make<ditto::RmsNormOverHeads>("k_norm", o.heads, o.head_width())),
        proj(linear("proj", o.width, o.width, Split::rows().in_units(o.head_width()))),
        head_width(o.head_width()) {}

  // x [B, T, D] mapped to `parts` of heads [B, T, N here, K].
  ditto::Tensors heads(const ditto::Linear& map, const Tensor& x, int64_t parts, Context& ctx) const {
    return map(x, ctx).unflatten(-1, {parts, -1, head_width}).unbind(-3);
  }

  std::shared_ptr<ditto::RmsNormOverHeads> q_norm, k_norm;
  ditto::Linear proj;
  int64_t head_width;
};

struct SelfAttention : Attention {
  explicit SelfAttention(const WanOptions& o)
      : Attention(o),
        qkv(linear("qkv", o.width, 3 * o.width, Split::heads({o.heads, o.heads, o.heads}, o.head_width()))) {}

  Tensor forward(const Tensor& x_BTD, const Stream& s, Context& ctx) {
    return ctx.attention_unit(qkv, proj, x_BTD, [&](const Tensor& x) {
      const auto h = heads(qkv, x, 3, ctx);
      const auto q = ditto::apply_rotary(q_norm->forward(h[0], ctx, ctx.ops.inside()), s.rotary_TK);
      const auto k = ditto::apply_rotary(k_norm->forward(h[1], ctx, ctx.ops.inside()), s.rotary_TK);
      return proj(ctx.attention(q, k, h[2], Pattern::full, s).flatten(-2), ctx);
    });
  }

  ditto::Linear qkv;
};

struct CrossAttention : Attention {
  explicit CrossAttention(const WanOptions& o)
      : Attention(o),
        q(linear("q", o.width, o.width, Split::heads({o.heads}, o.head_width()))),
        kv(linear("kv", o.width, 2 * o.width, Split::heads({o.heads, o.heads}, o.head_width()).of_condition())) {}

  Tensor forward(const Tensor& x_BTD, const Stream& s, Context& ctx) {
    const auto queries = q_norm->forward(heads(q, x_BTD, 1, ctx)[0], ctx, ctx.ops.inside());
    const auto h = heads(kv, s.condition.text_BSE, 2, ctx);
    const auto keys = k_norm->forward(h[0], ctx, ctx.ops.of_condition());
    return proj(ctx.attention(queries, keys, h[1], Pattern::cross, s).flatten(-2), ctx);
  }

  ditto::Linear q, kv;
};

// Self-attention and MLP, modulated and gated; between them cross-attention, with a norm and without a gate.
struct Block : ditto::Layer {
  explicit Block(const WanOptions& o)
      : modulation(make<ditto::Modulation>("modulation", ditto::AdaLn::single, o.width, 2)),
        attn(make<SelfAttention>("attn", o)),
        cross_norm(make<ditto::LayerNorm>("cross_norm", o.width, 1e-6)),
        cross(make<CrossAttention>("cross", o)),
        mlp(make<ditto::Mlp>("mlp", o.width, o.mlp())) {}

  Tensor forward(const Stream& s, Context& ctx) {
    const auto m = modulation->forward(s, ctx);
    auto x_BTD = ditto::modulated(s.x_BTD, m[0], s, ctx, [&](const Tensor& h) { return attn->forward(h, s, ctx); });
    x_BTD = x_BTD + cross->forward(cross_norm->forward(x_BTD, ctx), s, ctx);
    return ditto::modulated(x_BTD, m[1], s, ctx, [&](const Tensor& h) { return mlp->forward(h, ctx); });
  }

  std::shared_ptr<ditto::Modulation> modulation;
  std::shared_ptr<SelfAttention> attn;
  std::shared_ptr<ditto::LayerNorm> cross_norm;
  std::shared_ptr<CrossAttention> cross;
  std::shared_ptr<ditto::Mlp> mlp;
};

// Names in diffusers, and in the project's own files, as ComfyUI loads them.
struct Names {
  const char *parts, *whole, *block;
};
constexpr Names kDiffusers{ditto::kDiffusersParts,
                           "patches.map=patch_embedding time=condition_embedder.time_embedder "
                           "modulation.map=condition_embedder.time_proj "
                           "text_in=condition_embedder.text_embedder.linear_1 "
                           "text_out=condition_embedder.text_embedder.linear_2 final.table=scale_shift_table "
                           "final.out=proj_out",
                           "modulation.table=scale_shift_table attn=attn1 cross_norm=norm2 cross=attn2 mlp=ffn"};
constexpr Names kComfy{"qkv=q+k+v q=q kv=k+v proj=o q_norm=norm_q k_norm=norm_k up=0 down=2 in=0 out=2",
                       "patches.map=patch_embedding time=time_embedding modulation.map=time_projection.1 "
                       "text_in=text_embedding.0 text_out=text_embedding.2 final.table=head.modulation "
                       "final.out=head.head",
                       "modulation.table=modulation attn=self_attn cross_norm=norm3 cross=cross_attn mlp=ffn"};

struct Wan final : ditto::VideoTransformer {
  using Options = WanOptions;

  Wan(const Options& o, const Needs& needs_)
      : VideoTransformer({"wan", o.depth, o.width, o.patch, o.patch_frames}, needs_), options(o), needs(needs_) {
    o.text.check(needs, "wan");
    time = add<ditto::TimeEmbed>(Unit::condition, "time", o.width, 128.0);
    modulation = add<ditto::SharedModulation>(Unit::condition, "modulation", o.width, 2);
    text_in = linear(Unit::condition, "text_in", needs.width("text"), o.width);
    text_out = linear(Unit::condition, "text_out", o.width, o.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    final_layer = add<ditto::FinalLayer>(Unit::head, "final", ditto::AdaLn::single, o.width, outputs());
  }
  bool time_per_frame() const override { return false; }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    ditto::Conditioning c;
    c.cond_BD = modulation->forward(time->forward(in.at("t"), ctx), ctx);
    const auto batch = options.text.padded(in);
    c.text_BSE = text_out(ctx.ops.gelu(text_in(batch.at("text"), ctx)), ctx);
    if (!options.text.mask) return c;
    const auto& mask_BS = batch.at("text_mask");  // attention to nothing is undefined: then to all of it
    c.text_mask_BS = mask_BS.bitwise_or(mask_BS.any(1, /*keepdim=*/true).bitwise_not());
    return c;
  }

  Stream tokens(const Batch& in, Context& ctx) override { return patched(in, ctx); }

  void constants(const Batch&, Stream& s, Context& ctx) override {
    const int64_t pairs = options.head_width() / 2, side = options.head_width() / 6;
    s.rotary_TK = turns.of(s.grid, torch::TensorOptions(torch::kDouble).device(ctx.device), [&] {
      return ditto::rotary_table_in_double(s.grid, {pairs - 2 * side, side, side});
    });
  }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override {
    return patches_->unpatchify(final_layer->forward(s, ctx), s.grid);
  }

  ditto::TensorSpecs takes() const override {
    auto inputs = VideoTransformer::takes();
    for (auto& input : options.text.takes(needs))
      if (!input.name.starts_with("text_pooled")) inputs.push_back(std::move(input));
    return inputs;
  }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return options.text.without_text(std::move(in), which_B);
  }

  std::vector<std::string> foreign_formats() const override { return all_formats(); }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    const auto& o = options;
    ditto::require_format(format, all_formats());
    const auto& they = names_in(format);
    ditto::ForeignNames n(*this, they.parts);
    n.layers("", "", they.whole);
    n.blocks(o.depth, "blocks.#.", "blocks.#.", they.block);
    n.shape("patches.map", {o.width, x_[0], o.patch_frames, o.patch, o.patch});
    n.shape("blocks.#.modulation.table", {1, 6, o.width});
    n.shape("final.table", {1, 2, o.width});
    n.turn_pairs("blocks.#.attn", o.head_width());
    if (format == "diffusers") n.format.config = config_of(o, needs);
    return n.format;
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, all_formats());
    const auto& they = names_in(file.format);
    const bool has_config = file.format == "diffusers";
    const auto whole = [&](const char* ours) { return ditto::foreign_name(they.whole, ours); };
    for (const char* of_picture : {"condition_embedder.image_embedder.norm1.weight", "img_emb.proj.0.weight"})
      if (file.has(of_picture)) ditto::refuse_tensor(file, of_picture, "is of a model that takes a picture, too");
    const auto patches = whole("patches.map.weight");
    const auto up = "." + ditto::foreign_name(they.block, "mlp.up.weight", they.parts);
    Options o;
    o.text.mask = false, o.text.tokens = 512;
    o.width = file.size(patches, 0, most::kWidth);
    o.patch_frames = file.size(patches, 2, most::kPatch);
    o.patch = file.size(patches, 3, most::kPatch);
    o.depth = file.count("blocks.", up, most::kBlocks);
    o.hidden = file.size("blocks.0" + up, 0, most::kMlpRatio * most::kWidth);
    // Wan's own files are of heads of 128.
    o.heads = has_config           ? ditto::heads_of(file, "num_attention_heads", o.width)
              : o.width % 128 == 0 ? o.width / 128
                                   : 0;
    ditto::read_heads_over(o, reader, file, {}, {"hidden", "patch", "patch_frames"});
    const int64_t channels = file.size(patches, 1, most::kNumbers), own = ditto::kOwnSide,  // no file says sizes
        out = ditto::rows_of(file, whole("final.out.weight"), o.width, most::kNumbers);
    auto made = ditto::foreign_needs_of({channels, own, own, own}, out / (o.patch_frames * o.patch * o.patch));
    ditto::offer_text(made, file.size(whole("text_in.weight"), 1, most::kWidth), /*and_empty=*/false);
    if (has_config) ditto::expect_config(file, config_of(o, made));
    return made;
  }

 private:
  static std::vector<std::string> all_formats() { return {"diffusers", "comfy"}; }
  static const Names& names_in(const std::string& format) { return format == "comfy" ? kComfy : kDiffusers; }

  // The constructor's arguments there.
  static ditto::ForeignConfig config_of(const Options& o, const Needs& needs) {
    return {{"_class_name", std::string("WanTransformer3DModel")},
            {"patch_size", std::vector<int64_t>{o.patch_frames, o.patch, o.patch}},
            {"num_attention_heads", o.heads},
            {"attention_head_dim", o.head_width()},
            {"in_channels", needs.shape("x")[0]},
            {"out_channels", needs.out_channels},
            {"text_dim", needs.width("text")},
            {"freq_dim", int64_t{256}},
            {"ffn_dim", o.mlp()},
            {"num_layers", o.depth},
            {"cross_attn_norm", true},
            {"qk_norm", std::string("rms_norm_across_heads")},
            {"eps", 1e-6},
            {"rope_max_seq_len", int64_t{1024}}};
  }

  Options options;
  Needs needs;
  std::shared_ptr<ditto::TimeEmbed> time;
  ditto::GridTable turns;
  std::shared_ptr<ditto::SharedModulation> modulation;
  ditto::Linear text_in, text_out;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::FinalLayer> final_layer;
};

}  // namespace

DITTO_MODEL_PLUGIN(Wan, "wan", "1.0.0", "Apache-2.0", "video from text with full attention (Wan 2.1)")
