// DiT with adaLN-Zero: W. Peebles and S. Xie, "Scalable diffusion models with transformers", 2023 (arXiv:2212.09748).
// Of videos all tokens attend to one another, as in OpenDiT's VDiT (github.com/NUS-HPC-AI-Lab/VideoSys, 2024).
//
// Legend: B samples, C channels, D width, E width of a text's embedding, N heads, P side and Q frames of a patch.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/joins.h>
#include <ditto/nn/patches.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

struct DitOptions : ditto::TransformerSize {
  std::string convention = "facebook";
  bool spare_variance = false;
  std::vector<std::string> joins;

  void read(ditto::OptionReader& option) {
    auto published = ditto::dit_sizes();
    published.insert(published.end(), {{"vDiT-XL/122", 28, 1152, 16, 2, 1}, {"vDiT-XL/222", 28, 1152, 16, 2, 2}});
    TransformerSize::read(option, published,
                          "a size of the paper, or OpenDiT's of video; the options below override its parts");
    read_frames(option);
    option("convention", convention,
           "two published functions: \"facebook\" divides time frequencies by 128, the MLP's norm has eps 1e-6; "
           "\"diffusers\" 127, 1e-5")
        .one_of({"facebook", "diffusers"});
    option("spare_variance", spare_variance, "as SiT: the last map makes twice the channels, and half are left out");
    ditto::Joins::read(option, joins);
  }
};

// x <- x + gate * f(norm(x) * (1 + scale) + shift), for attention and then for the MLP.
struct Block : ditto::Layer {
  explicit Block(const DitOptions& o)
      : modulation(zero_linear("modulation", o.width, 6 * o.width, Split::columns({6 * o.width}).gathered())),
        qkv(linear("qkv", o.width, 3 * o.width, Split::heads({o.heads, o.heads, o.heads}, o.head_width()))),
        proj(linear("proj", o.width, o.width, Split::rows().in_units(o.head_width()))),
        up(linear("up", o.width, o.mlp_ratio * o.width, Split::columns({o.mlp_ratio * o.width}))),
        down(linear("down", o.mlp_ratio * o.width, o.width, Split::rows())),
        head_width(o.head_width()),
        mlp_eps(o.convention == "diffusers" ? 1e-5 : 1e-6) {}

  Tensor forward(const Stream& s, Context& ctx) {
    const auto m = modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(6, -1);
    const auto a = ctx.attention_unit(qkv, proj, ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s), [&](const Tensor& x) {
      const auto qkv_BTNK = qkv(x, ctx).unflatten(-1, {3, -1, head_width}).unbind(-3);  // N is what is here of it
      return proj(ctx.attention(qkv_BTNK[0], qkv_BTNK[1], qkv_BTNK[2], ditto::Pattern::full, s).flatten(-2), ctx);
    });
    const auto x_BTD = ctx.ops.gated_residual(s.x_BTD, m[2], a, s);
    const auto h = ctx.ops.norm_modulate(x_BTD, m[3], m[4], s, mlp_eps);
    return ctx.ops.gated_residual(x_BTD, m[5], ctx.ops.mlp_gelu_tanh(h, up, down, ctx), s);
  }

  ditto::Linear modulation, qkv, proj, up, down;
  int64_t head_width;
  double mlp_eps;
};

// Of class and pooled text (CLIP's, say) it takes what the data have.
struct Dit final : ditto::Model {
  using Options = DitOptions;
  Dit(const Options& o, const Needs& given) : options(o), needs(given), joins("dit", o.joins, given) {
    patches = add<ditto::Patches>(Unit::tokens, "patches", "dit", joins.joined(), o.patch, o.patch_frames, o.width);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", o.width, is_diffusers() ? 127.0 : 128.0);
    if (const auto n = needs.values("label")) label = add<ditto::LabelEmbed>(Unit::condition, "label", n, o.width);
    if (has_text()) text = linear(Unit::condition, "text", needs.width("text_pooled"), o.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    final_modulation =
        zero_linear(Unit::head, "final_modulation", o.width, 2 * o.width, Split::columns({2 * o.width}).gathered());
    out = zero_linear(Unit::head, "out", o.width, patches->outputs((o.spare_variance ? 2 : 1) * needs.out_channels));
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    auto cond_BD = time->forward(in.at("t"), ctx);
    if (label) cond_BD = cond_BD + label->forward(in.at("label"), ctx);
    if (has_text()) cond_BD = cond_BD + text(in.at("text_pooled"), ctx);
    return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(joins.forward(in, ctx), ctx) +
              positions.of(s.grid, ctx.options(), [&] { return patches->positions(s.grid); });
    return s;
  }
  int64_t depth() const override { return options.depth; }
  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override {
    const auto m = final_modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(2, -1);
    const auto y = patches->unpatchify(out(ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s), ctx), s.grid);
    return options.spare_variance ? y.chunk(2, 1)[0] : y;
  }

  bool token_local() const override { return true; }
  ditto::TensorSpecs takes() const override {
    auto all = ditto::takes_offered(needs, {"x", "t", "label", "text_pooled", "text_pooled_empty"});
    joins.add_to(all);
    return all;
  }
  ditto::TensorSpecs makes() const override { return {patches->features()}; }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return ditto::without_class_and_text(std::move(in), which_B, needs);
  }
  int64_t fixed_parameters() const override { return patches->position_numbers(); }

  std::vector<std::string> foreign_formats() const override {
    return ditto::formats_of(all_formats(), [&](const auto& format) { return not_theirs(format); });
  }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, all_formats(), [&](const auto& one) { return not_theirs(one); });
    return is_diffusers() ? diffusers() : facebook();
  }

  // What a file of theirs says is what the recipe's options are where it leaves them open.
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, all_formats());
    const bool theirs = file.format == "diffusers", is_video = file.format == "opendit";
    ditto::ForeignSizes s(file, theirs ? diffusers_names() : facebook_names());
    Options o{s.size};
    o.heads = theirs ? ditto::heads_of(file, "num_attention_heads", o.width) : 0;
    o.convention = theirs ? "diffusers" : "facebook";
    o.spare_variance = file.format == "sit" && s.out_channels == 2 * s.channels;
    ditto::read_sizes_over(o, reader, file, ditto::dit_sizes(), {"convention", "patch_frames", "spare_variance"});
    if (o.spare_variance) s.out_channels = s.channels;
    const int64_t side = theirs
                             ? file.number("sample_size", ditto::most::kSide)
                             : o.patch * ditto::square_of(file, is_video ? "pos_embed_spatial" : "pos_embed", o.width);
    auto made = s.needs(side, is_video ? o.patch_frames * file.size("pos_embed_temporal", 1, ditto::most::kSide) : 0);
    if (theirs) ditto::expect_config(file, config(o, made));
    if (const std::string map = "y_embedder.output_projection.weight"; file.has(map))
      made.inputs.push_back({"text_pooled", torch::kFloat, {file.size(map, 1, ditto::most::kWidth)}, ""});
    return made;
  }

 private:
  using Names = ditto::ForeignSizes::Names;
  static std::vector<std::string> all_formats() { return {"facebook-dit", "sit", "opendit", "diffusers"}; }
  static Names facebook_names() {
    return {"x_embedder.proj.weight", "blocks.", ".mlp.fc1.weight", "final_layer.linear.weight",
            "y_embedder.embedding_table.weight"};
  }
  static Names diffusers_names() {
    return {"pos_embed.proj.weight", "transformer_blocks.", ".ff.net.0.proj.weight", "proj_out_2.weight",
            "transformer_blocks.0.norm1.emb.class_embedder.embedding_table.weight"};
  }

  bool is_diffusers() const { return options.convention == "diffusers"; }
  bool has_text() const { return needs.width("text_pooled") > 0; }

  // Why no model of theirs is this one; empty: one is.
  std::string not_theirs(const std::string& format) const {
    const bool theirs = format == "diffusers", is_video = patches->is_video();
    if (theirs != is_diffusers())  // under the other's names the same weights would predict something else
      return "is of the other function than model.convention = \"" + options.convention + "\"";
    if (const auto why = joins.not_theirs(); !why.empty()) return why;
    if (patches->tokens() < 0) return "is of samples of one size, and this model was made for many";
    if (is_video != (format == "opendit")) return std::string("is of ") + (is_video ? "pictures" : "videos");
    if (has_text() && !is_video) return "takes no text, and this model does";
    if (options.spare_variance && format != "sit") return "has no spare variance, and this model has";
    if (theirs && !label) return "DiTTransformer2DModel takes a class, and this model takes none";
    if (theirs && !patches->is_square()) return "DiTTransformer2DModel makes square pictures, and this model's are not";
    return theirs && options.mlp_ratio != 4 ? "DiTTransformer2DModel has an MLP of 4 times its width" : "";
  }

  // facebookresearch/DiT's names, which SiT and OpenDiT have kept.
  ditto::ForeignFormat facebook() const {
    ditto::ForeignNames n(*this, ditto::kFacebookParts);
    n.layers("", "", "patches.map=x_embedder.proj time=t_embedder");
    n.layers("", "y_embedder.", "label.table=embedding_table.weight text=output_projection");
    n.layers("", "final_layer.", "final_modulation=adaLN_modulation.1 out=linear");
    n.blocks(options.depth, "blocks.#.", "blocks.#.",
             "modulation=adaLN_modulation.1 qkv=attn.qkv proj=attn.proj up=mlp.fc1 down=mlp.fc2");
    n.shape("patches.map", patches->convolution());
    const auto grid = patches->grid();
    n.table(patches->is_video() ? "pos_embed_spatial" : "pos_embed",
            ditto::sincos_positions({1, grid.rows, grid.columns}, options.width));
    if (patches->is_video()) n.table("pos_embed_temporal", ditto::sincos_positions(grid.frames, options.width));
    return n.format;
  }

  // diffusers keeps the same time and label embedders in every block; ours are read from the first.
  ditto::ForeignFormat diffusers() const {
    ditto::ForeignNames n(*this, ditto::kDiffusersParts);
    n.layers("", "", "patches.map=pos_embed.proj final_modulation=proj_out_1 out=proj_out_2");
    n.blocks(options.depth, "blocks.#.", "transformer_blocks.#.",
             "modulation=norm1.linear qkv=attn1.to_q+attn1.to_k+attn1.to_v proj=attn1.to_out.0 up=ff.net.0.proj "
             "down=ff.net.2");
    n.layers("", "transformer_blocks.0.norm1.emb.",
             "time=timestep_embedder label.table=class_embedder.embedding_table.weight");
    n.copies(options.depth, "transformer_blocks.#.norm1.emb.");
    n.shape("patches.map", patches->convolution());
    n.format.config = config(options, needs);
    return n.format;
  }

  static ditto::ForeignConfig config(const Options& o, const Needs& needs) {
    const auto& x = needs.shape("x");
    auto made = ditto::diffusers_config("DiTTransformer2DModel", o, x[0], needs.out_channels, x[1]);
    made["num_embeds_ada_norm"] = needs.values("label");
    made["norm_type"] = "ada_norm_zero", made["norm_eps"] = 1e-5;
    return made;
  }

  Options options;
  Needs needs;
  ditto::Joins joins;
  std::shared_ptr<ditto::Patches> patches;
  ditto::GridTable positions;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::vector<std::shared_ptr<Block>> blocks;
  ditto::Linear text, final_modulation, out;
};

}  // namespace

DITTO_MODEL_PLUGIN(Dit, "dit", "1.1.0", "Apache-2.0", "DiT with adaLN-Zero, of pictures and of videos")
