// Wan 2.1's transformer for video from text: Team Wan, "Wan: open and advanced large-scale video generative models",
// 2025 (arXiv:2503.20314). Full attention in space and time, queries and keys normed over all heads of a token and
// turned by frame, row and column, and one modulation for all blocks.
//
// Legend: B samples, D width, N heads, K = D / N head width, S tokens of text, E their width.
#include <ditto/ditto.h>
#include <ditto/foreign_names.h>
#include <ditto/norm_over_heads.h>
#include <ditto/padded_text.h>
#include <ditto/positions.h>
#include <ditto/sizes.h>
#include <ditto/transformer.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Pattern;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;
namespace most = ditto::most;

struct WanOptions {
  std::string preset;
  int64_t depth = 12, width = 384, heads = 6, hidden = 0, patch = 2, patch_frames = 1;
  ditto::PaddedText text;

  void read(ditto::OptionReader& option) {
    option("preset", preset, "Wan 2.1's sizes; the options below override its parts").one_of({"", "1.3B", "14B"});
    if (!preset.empty()) text.mask = false, text.tokens = 512;
    if (preset == "1.3B") depth = 30, width = 1536, heads = 12, hidden = 8960;
    if (preset == "14B") depth = 40, width = 5120, heads = 40, hidden = 13824;
    option("depth", depth, "number of transformer blocks").between(1, most::kBlocks);
    option("width", width, "token width D").between(4, most::kWidth);
    option("heads", heads, "attention heads N; must divide the width").between(1, most::kHeads);
    option("hidden", hidden, "hidden width of the MLP; 0: four times D").between(0, most::kMlpRatio * most::kWidth);
    option("patch", patch, "patch side, in the model's input pixels").between(1, most::kPatch);
    option("patch_frames", patch_frames, "frames of a patch").between(1, most::kPatch);
    text.read(option);
    if (width % heads != 0) option.reject("heads", "does not divide model.width", "choose one of its divisors");
    if (head_width() % 2 != 0 || head_width() < 6)
      option.reject("heads", "give heads of width " + std::to_string(head_width()),
                    "positions by rotation need an even width of at least 6");
  }
  int64_t head_width() const { return width / heads; }
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
    const auto h = attn->forward(ctx.ops.norm_modulate(s.x_BTD, m[0].shift, m[0].scale, s), s, ctx);
    auto x_BTD = ctx.ops.gated_residual(s.x_BTD, m[0].gate, h, s);
    x_BTD = x_BTD + cross->forward(cross_norm->forward(x_BTD, ctx), s, ctx);
    const auto y = mlp->forward(ctx.ops.norm_modulate(x_BTD, m[1].shift, m[1].scale, s), ctx);
    return ctx.ops.gated_residual(x_BTD, m[1].gate, y, s);
  }

  std::shared_ptr<ditto::Modulation> modulation;
  std::shared_ptr<SelfAttention> attn;
  std::shared_ptr<ditto::LayerNorm> cross_norm;
  std::shared_ptr<CrossAttention> cross;
  std::shared_ptr<ditto::Mlp> mlp;
};

const std::vector<std::string> kFormats{"diffusers", "comfy"};
// In diffusers, and in the project's own files, as ComfyUI loads them.
constexpr const char
    *kDiffusers =
        "patches.map=patch_embedding time.in=condition_embedder.time_embedder.linear_1 "
        "time.out=condition_embedder.time_embedder.linear_2 "
        "modulation.map=condition_embedder.time_proj text_in=condition_embedder.text_embedder.linear_1 "
        "text_out=condition_embedder.text_embedder.linear_2 final.table=scale_shift_table "
        "final.out=proj_out",
    *kDiffusersBlock =
        "modulation.table=scale_shift_table attn.qkv=attn1.to_q+attn1.to_k+attn1.to_v "
        "attn.q_norm=attn1.norm_q attn.k_norm=attn1.norm_k attn.proj=attn1.to_out.0 cross_norm=norm2 "
        "cross.q=attn2.to_q cross.kv=attn2.to_k+attn2.to_v cross.q_norm=attn2.norm_q "
        "cross.k_norm=attn2.norm_k cross.proj=attn2.to_out.0 mlp.up=ffn.net.0.proj mlp.down=ffn.net.2";
constexpr const char *kComfy =
                         "patches.map=patch_embedding time.in=time_embedding.0 time.out=time_embedding.2 "
                         "modulation.map=time_projection.1 text_in=text_embedding.0 text_out=text_embedding.2 "
                         "final.table=head.modulation final.out=head.head",
                     *kComfyBlock =
                         "modulation.table=modulation attn.qkv=self_attn.q+self_attn.k+self_attn.v "
                         "attn.q_norm=self_attn.norm_q attn.k_norm=self_attn.norm_k attn.proj=self_attn.o "
                         "cross_norm=norm3 cross.q=cross_attn.q cross.kv=cross_attn.k+cross_attn.v "
                         "cross.q_norm=cross_attn.norm_q cross.k_norm=cross_attn.norm_k cross.proj=cross_attn.o "
                         "mlp.up=ffn.0 mlp.down=ffn.2";

struct Wan final : ditto::Model {
  using Options = WanOptions;

  Wan(const Options& o, const Needs& needs_) : options(o), needs(needs_), x_(needs.shape("x")) {
    if (x_.size() != 4)
      throw ditto::Error(ditto::ErrorKind::config, "model \"wan\"",
                         "takes video [C, F, H, W], the data has " + std::to_string(x_.size()) + " dims",
                         "choose a model for pictures, or data with frames (one is enough)");
    ditto::check_patches("model.patch_frames", o.patch_frames, "the frames,", {x_[1]});
    ditto::check_patches("model.patch", o.patch, "frames of", {x_[2], x_[3]});
    o.text.check(needs, "wan");
    patches = add<ditto::VideoPatchEmbed>(Unit::tokens, "patches", x_[0], o.patch, o.patch_frames, o.width);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", o.width, 128.0);
    modulation = add<ditto::SharedModulation>(Unit::condition, "modulation", o.width, 2);
    text_in = linear(Unit::condition, "text_in", needs.width("text"), o.width);
    text_out = linear(Unit::condition, "text_out", o.width, o.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    const int64_t out = o.patch_frames * o.patch * o.patch * needs.out_channels;
    final_layer = add<ditto::FinalLayer>(Unit::head, "final", ditto::AdaLn::single, o.width, out);
  }

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

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx);
    return s;
  }

  void constants(const Batch&, Stream& s, Context& ctx) override {
    const int64_t pairs = options.head_width() / 2, side = options.head_width() / 6;
    s.rotary_TK = ditto::rotary_table_in_double(s.grid, {pairs - 2 * side, side, side}).to(ctx.device);
  }

  int64_t depth() const override { return options.depth; }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override {
    return patches->unpatchify(final_layer->forward(s, ctx), s.grid);
  }

  bool token_local() const override { return true; }

  ditto::TensorSpecs takes() const override {
    ditto::TensorSpecs inputs{{"x", torch::kFloat, x_, "noisy video"},
                              {"t", torch::kFloat, {}, "time, in the scheduler's units"}};
    for (auto& input : options.text.takes(needs))
      if (!input.name.starts_with("text_pooled")) inputs.push_back(std::move(input));
    return inputs;
  }
  ditto::TensorSpecs makes() const override {
    const auto& o = options;
    return {{"features",
             torch::kFloat,
             {ditto::count_patches({x_[1], x_[2], x_[3]}, {o.patch_frames, o.patch, o.patch}), o.width}}};
  }

  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return options.text.without_text(std::move(in), which_B);
  }

  std::vector<std::string> foreign_formats() const override { return kFormats; }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    const auto& o = options;
    ditto::require_format(format, kFormats);
    const bool is_file = format == "comfy";
    const int64_t D = o.width, K = o.head_width();
    ditto::ForeignNames n(*this);
    n.layers("", "", is_file ? kComfy : kDiffusers);
    n.blocks(o.depth, "blocks.#.", "blocks.#.", is_file ? kComfyBlock : kDiffusersBlock);
    n.shape("patches.map", {D, x_[0], o.patch_frames, o.patch, o.patch});
    n.shape("blocks.#.modulation.table", {1, 6, D});
    n.shape("final.table", {1, 2, D});
    n.rows("blocks.#.attn.qkv", ditto::foreign_rows({{0, 2 * D, K}, {2 * D, D}}));
    for (const char* norm : {"blocks.#.attn.q_norm", "blocks.#.attn.k_norm"})
      n.rows(norm, ditto::foreign_rows({{0, D, K}}));
    if (!is_file) n.format.config = config_of(o, needs);
    return n.format;
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, kFormats);
    const bool is_file = file.format == "comfy";
    const auto weight = [&](const char* ours) {
      return ditto::foreign_name(is_file ? kComfy : kDiffusers, ours) + ".weight";
    };
    for (const char* of_picture : {"condition_embedder.image_embedder.norm1.weight", "img_emb.proj.0.weight"})
      if (file.has(of_picture)) ditto::refuse_tensor(file, of_picture, "is of a model that takes a picture, too");
    const auto patches = weight("patches.map");
    const std::string up = is_file ? ".ffn.0.weight" : ".ffn.net.0.proj.weight";
    Options o;
    o.text.mask = false, o.text.tokens = 512;
    o.width = file.size(patches, 0, most::kWidth);
    o.patch_frames = file.size(patches, 2, most::kPatch);
    o.patch = file.size(patches, 3, most::kPatch);
    o.depth = file.count("blocks.", up, most::kBlocks);
    o.hidden = file.size("blocks.0" + up, 0, most::kMlpRatio * most::kWidth);
    std::vector<std::string> said{"depth", "width", "hidden", "patch", "patch_frames"};
    const bool says_heads = !is_file || o.width % 128 == 0;  // Wan's own files are of heads of 128
    o.heads = !is_file ? ditto::heads_of(file, "num_attention_heads", o.width) : says_heads ? o.width / 128 : 1;
    if (says_heads) said.emplace_back("heads");
    ditto::read_over(o, reader, file, said);
    if (!says_heads) ditto::require_heads(reader, file);
    const int64_t out = ditto::rows_of(file, weight("final.out"), o.width, most::kNumbers);
    const int64_t of_patch = o.patch_frames * o.patch * o.patch, own = ditto::kOwnSide;  // no file says sizes
    Needs needs{{{"x", torch::kFloat, {file.size(patches, 1, most::kNumbers), own, own, own}, ""},
                 {"t", torch::kFloat, {}, ""},
                 {"text", torch::kFloat, {-1, file.size(weight("text_in"), 1, most::kWidth)}, ""},
                 {"text_mask", torch::kBool, {-1}, ""}},
                out / of_patch};
    if (!is_file) ditto::expect_config(file, config_of(o, needs));
    return needs;
  }

 private:
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
  std::vector<int64_t> x_;  // [C, F, H, W]
  std::shared_ptr<ditto::VideoPatchEmbed> patches;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::SharedModulation> modulation;
  ditto::Linear text_in, text_out;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::FinalLayer> final_layer;
};

}  // namespace

DITTO_MODEL_PLUGIN(Wan, "wan", "1.0.0", "Apache-2.0", "video from text with full attention (Wan 2.1)")
