// Stable Diffusion 3 and 3.5: P. Esser et al., "Scaling rectified flow transformers for high-resolution image
// synthesis", 2024 (arXiv:2403.03206). Text and picture have weights of their own and one attention in every block, and
// a picture's places are the middle of a table.
//
// Legend: B samples, D width, P patch side.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/joint_transformer.h>
#include <ditto/nn/tables.h>

#include <numeric>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Stream;
using torch::Tensor;
namespace most = ditto::most;

struct MmDitOptions : ditto::JointOptions {
  int64_t dual_attention = 0, position_side = 192, position_base = 64;

  void read(ditto::OptionReader& option) {
    for (const auto* name : {"rotary", "single_depth", "guidance_embed"}) option.replaced_by("flux", "mmdit", name);
    for (const auto* value : {"Flux.1-dev", "Flux.1-schnell"}) option.replaced_by("flux", "mmdit", "preset", value);
    read_size(option, {{"SD3-medium", 24, 1536, 24}, {"SD3.5-medium", 24, 1536, 24}, {"SD3.5-large", 38, 38 * 64, 38}},
              "a published size; the options below override its parts");
    if (!preset.empty()) text.mask = false, qk_norm = preset != "SD3-medium";
    if (preset == "SD3.5-medium") dual_attention = 13, position_side = 384;
    option("dual_attention", dual_attention, "first blocks that have an attention of the picture alone, too")
        .between(0, most::kBlocks);
    option("qk_norm", qk_norm, "RMS norm of each head's queries and keys");
    option("position_side", position_side,
           "patches along a side of the table of positions, of which pictures have the middle")
        .between(1, most::kSide);
    option("position_base", position_base, "patches along a side of the pictures that the table's spacing is made for")
        .between(1, most::kSide);
    text.read(option);
    ditto::Joins::read(option, joins);
    if (dual_attention > depth) option.reject("dual_attention", "is above model.depth", "use at most as many");
    if (width % 4 != 0) option.reject("width", "is not a multiple of 4", "the positions need it");
  }
  // The sine-cosine table of a picture's patches.
  Tensor positions(const ditto::Grid& grid) const {
    return ditto::centred_sincos_positions(grid, position_side, position_base, width);
  }
};

// Names in diffusers (SD3Transformer2DModel; "diffusers"), and in one file as Stability AI gave it out and ComfyUI
// loads it ("comfy").
struct Names {
  std::string parts, whole, table, blocks, block;
};
Names names_in(const std::string& format) {
  if (format == "diffusers")
    return {.parts = ditto::kDiffusersParts,
            .whole = std::string("patches.map=pos_embed.proj ") + ditto::kDiffusersJointEnds,
            .table = "pos_embed.pos_embed",
            .blocks = "transformer_blocks.",
            .block = ditto::kDiffusersJointBlock};
  return {.parts = "qkv=qkv proj=proj q_norm=ln_q k_norm=ln_k in=mlp.0 out=mlp.2",
          .whole =
              "patches.map=x_embedder.proj text=context_embedder time=t_embedder pooled_in=y_embedder.mlp.0 "
              "pooled_out=y_embedder.mlp.2 final_modulation=final_layer.adaLN_modulation.1 out=final_layer.linear",
          .table = "pos_embed",
          .blocks = "joint_blocks.",
          .block =
              "picture.modulation=x_block.adaLN_modulation.1 picture.attn=x_block.attn picture.proj=x_block.attn.proj "
              "picture.up=x_block.mlp.fc1 picture.down=x_block.mlp.fc2 picture.second=x_block.attn2 "
              "words.modulation=context_block.adaLN_modulation.1 words.attn=context_block.attn "
              "words.proj=context_block.attn.proj words.up=context_block.mlp.fc1 words.down=context_block.mlp.fc2"};
}

struct MmDit final : ditto::JointTransformer {
  using Options = MmDitOptions;

  MmDit(const Options& o, const Needs& needs) : JointTransformer("mmdit", o, needs), options(o) {
    for (int64_t i = 0; i < o.depth; ++i)
      add_joint_block({.second = i < o.dual_attention, .ends_text = i + 1 == o.depth});
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    auto s = JointTransformer::tokens(in, ctx);
    s.x_BTD = s.x_BTD + positions.of(s.grid, ctx.options(), [&] { return options.positions(s.grid); });
    return s;
  }

  std::vector<std::string> foreign_formats() const override {
    return ditto::formats_of(all_formats(), [&](const auto&) { return not_theirs(); });
  }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    const auto& o = options;
    ditto::require_format(format, all_formats(), [&](const auto&) { return not_theirs(); });
    const auto they = names_in(format);
    ditto::ForeignNames n(*this, they.parts);
    n.layers("", "", they.whole);
    n.blocks(o.depth, "blocks.#.", they.blocks + "#.", they.block);
    n.shape("patches.map", {o.width, needs_.shape("x")[0], o.patch, o.patch});
    n.table(they.table, o.positions({1, o.position_side, o.position_side}));
    if (format == "comfy") return n.format;
    // Where a sequence ends, diffusers' norms have the scale before the shift.
    const auto scale_first = ditto::foreign_rows({{o.width, o.width}, {0, o.width}});
    n.rows("final_modulation", scale_first);
    n.rows("blocks." + std::to_string(o.depth - 1) + ".words.modulation", scale_first);
    n.format.config = config_of(o, needs_);
    return n.format;
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, all_formats());
    const auto they = names_in(file.format);
    const bool has_config = file.format == "diffusers";
    const auto whole = [&](const char* ours) { return ditto::foreign_name(they.whole, ours, they.parts); };
    const auto block = [&](const char* ours) { return "." + ditto::foreign_name(they.block, ours, they.parts); };
    const auto patches = whole("patches.map.weight"), second = block("picture.second.proj.weight"),
               norm = they.blocks + "0" + block("picture.attn.q_norm.weight");
    Options o;
    o.text.mask = false, o.text.tokens = 333;
    o.width = file.size(whole("text.weight"), 0, most::kWidth);
    o.depth = file.count(they.blocks, block("picture.modulation.weight"), most::kBlocks);
    o.dual_attention = file.has(they.blocks + "0" + second) ? file.count(they.blocks, second, most::kBlocks) : 0;
    o.qk_norm = file.has(norm);
    o.patch = file.size(patches, 2, most::kPatch);
    o.position_side = ditto::square_of(file, they.table, o.width);
    const int64_t side = has_config ? file.number("sample_size", most::kSide) : 128;
    o.position_base = side / o.patch;
    // Without a configuration norms say the heads, or else they are of 64, as in all of Stable Diffusion 3.
    const int64_t head = o.qk_norm ? file.size(norm, 0, o.width) : 64;
    o.heads = has_config            ? ditto::heads_of(file, "num_attention_heads", o.width)
              : o.width % head == 0 ? o.width / head
                                    : 0;
    ditto::read_heads_over(o, reader, file, {}, {"dual_attention", "qk_norm", "patch", "position_side"});
    const int64_t outputs = ditto::rows_of(file, whole("out.weight"), o.width, most::kNumbers);
    auto made = ditto::joint_needs_of(file, {file.size(patches, 1, most::kNumbers), side, side},
                                      outputs / (o.patch * o.patch), whole("text.weight"), whole("pooled_in.weight"));
    if (has_config) ditto::expect_config(file, config_of(o, made));
    return made;
  }

 private:
  static std::vector<std::string> all_formats() { return {"diffusers", "comfy"}; }

  // The constructor's arguments there.
  static ditto::ForeignConfig config_of(const Options& o, const Needs& needs) {
    auto config = ditto::diffusers_joint_config("SD3Transformer2DModel", o, needs);
    std::vector<int64_t> dual(static_cast<size_t>(o.dual_attention));
    std::iota(dual.begin(), dual.end(), 0);
    config["patch_size"] = o.patch;
    config["in_channels"] = needs.shape("x")[0];
    config["out_channels"] = needs.out_channels;
    config["sample_size"] = o.position_base * o.patch;
    config["pos_embed_max_size"] = o.position_side;
    config["caption_projection_dim"] = o.width;
    config["dual_attention_layers"] = dual;
    if (o.qk_norm) config["qk_norm"] = "rms_norm";
    return config;
  }

  Options options;
  ditto::GridTable positions;
};

}  // namespace

DITTO_MODEL_PLUGIN(MmDit, "mmdit", "1.1.0", "Apache-2.0",
                   "text and picture in one attention (Stable Diffusion 3 and 3.5)")
