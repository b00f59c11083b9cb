#include "weights.h"

#include <torch/types.h>

#include <ditto/foreign_names.h>

namespace st_dit {

namespace {

using ditto::ModelNeeds;
namespace most = ditto::most;

constexpr int64_t kCompression = 8;  // pixels a latent's side stands for: Open-Sora's configuration counts pixels

const std::vector<std::string> kFormats{"diffusers", "open-sora"};

// Blocks alternate: even ones are spatial, odd ones temporal.
struct Names {
  const char *parts, *whole, *spatial, *temporal, *block;
};
constexpr Names kLatte{
    ditto::kDiffusersParts,
    "patches.map=pos_embed.proj time=adaln_single.emb.timestep_embedder modulation.map=adaln_single.linear "
    "text=caption_projection final.table=scale_shift_table final.out=proj_out",
    "transformer_blocks.", "temporal_transformer_blocks.",
    "modulation.table=scale_shift_table spatial=attn1 temporal=attn1 cross=attn2 mlp=ff"};
constexpr Names kStDit3{ditto::kFacebookParts,
                        "patches.map=x_embedder.proj time=t_embedder rate=fps_embedder modulation.map=t_block.1 "
                        "text.in=y_embedder.y_proj.fc1 text.out=y_embedder.y_proj.fc2 text.null=y_embedder.y_embedding "
                        "final.table=final_layer.scale_shift_table final.out=final_layer.linear",
                        "spatial_blocks.", "temporal_blocks.",
                        "modulation.table=scale_shift_table spatial=attn temporal=attn cross=cross_attn mlp=mlp"};

bool is_latte(const std::string& format) { return format == "diffusers"; }

// Why no model of the format is this one; empty: one is. Its sizes are any.
std::string not_theirs(const StDitOptions& o, const ModelNeeds& needs, const std::string& format) {
  const bool common = o.arrangement == "alternating" && o.adaln == "single" && o.cross != "none" &&
                      needs.width("text") > 0 && o.kv_heads == 0;
  const auto& x = needs.shape("x");
  if (is_latte(format)) {
    const int64_t side = x[2], times = std::max<int64_t>(side / 64, 1);
    const bool is_theirs = common && o.cross == "spatial" && o.rotary == "none" && !o.qk_norm && o.fps == 0 &&
                           o.null_text != "learned" && o.patch_frames == 1 && o.mlp_ratio == 4 && side > 0 &&
                           side == x[3] && (times == 1 ? o.base_side == 0 : o.base_side * times == side);
    if (is_theirs) return {};
    return "LatteTransformer3DModel has arrangement = \"alternating\", adaln = \"single\", cross = \"spatial\", "
           "rotary = \"none\", no qk_norm, kv_heads, fps or learned null text, an mlp_ratio of 4 and square frames, "
           "and this model has not";
  }
  if (common && o.cross != "spatial" && o.rotary == "temporal" && o.fps > 0 && o.null_tokens > 0 && o.base_side > 0)
    return {};
  return "STDiT3 has arrangement = \"alternating\", adaln = \"single\", cross = \"all\", rotary = \"temporal\", fps, "
         "base_side and null_tokens, and no kv_heads, and this model has not";
}

ditto::ForeignConfig config_of(const StDitOptions& o, const ModelNeeds& needs, const std::string& format) {
  const auto& x = needs.shape("x");
  if (is_latte(format)) {
    ditto::TransformerSize size = o;
    size.depth /= 2;  // it counts pairs
    auto made = ditto::diffusers_config("LatteTransformer3DModel", size, x[0], needs.out_channels, x[2]);
    made["cross_attention_dim"] = o.width, made["caption_channels"] = needs.width("text");
    made["norm_type"] = "ada_norm_single", made["norm_eps"] = 1e-6;
    made["video_length"] = x[1];
    return made;
  }
  return {{"model_type", "STDiT3"},
          {"depth", o.depth / 2},
          {"hidden_size", o.width},
          {"num_heads", o.heads},
          {"in_channels", x[0]},
          {"pred_sigma", needs.out_channels == 2 * x[0]},
          {"patch_size", std::vector<int64_t>{o.patch_frames, o.patch, o.patch}},
          {"mlp_ratio", static_cast<double>(o.mlp_ratio)},
          {"caption_channels", needs.width("text")},
          {"model_max_length", o.null_tokens},
          {"input_sq_size", kCompression * o.base_side},
          {"qk_norm", o.qk_norm}};
}

}  // namespace

std::vector<std::string> formats(const StDitOptions& o, const ModelNeeds& needs) {
  return ditto::formats_of(kFormats, [&](const auto& format) { return not_theirs(o, needs, format); });
}

ditto::ForeignFormat names(const ditto::Model& model, const StDitOptions& o, const ModelNeeds& needs,
                           const std::string& format) {
  ditto::require_format(format, kFormats, [&](const auto& one) { return not_theirs(o, needs, one); });
  const bool latte = is_latte(format);
  const Names& they = latte ? kLatte : kStDit3;
  const int64_t C = needs.shape("x")[0], K = o.head_width(), P = o.patch;
  ditto::ForeignNames n(model, they.parts);
  n.layers("", "", they.whole);
  n.blocks(o.depth / 2, "blocks.#.", std::string(they.spatial) + "#.", they.block, 0, 2);
  n.blocks(o.depth / 2, "blocks.#.", std::string(they.temporal) + "#.", they.block, 1, 2);
  if (latte) {
    n.shape("patches.map", {o.width, C, P, P});
  } else {
    n.shape("patches.map", {o.width, C, o.patch_frames, P, P});
    n.turn_pairs("blocks.#.temporal", K);
    // In fp32, as theirs: an export is the file that was imported.
    n.format.constants["rope.freqs"] =
        torch::pow(10000.0, torch::arange(0, K, 2, torch::kFloat) / static_cast<double>(K)).reciprocal();
  }
  n.format.config = config_of(o, needs, format);
  return n.format;
}

ModelNeeds needs_of(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
  ditto::require_format(file.format, kFormats);
  const bool latte = is_latte(file.format);
  const Names& they = latte ? kLatte : kStDit3;
  const auto theirs = [&](const std::string& list, const char* ours) {
    return ditto::foreign_name(list, ours, they.parts);
  };
  const ditto::ForeignSizes s(
      file, {theirs(they.whole, "patches.map.weight"), they.spatial, "." + theirs(they.block, "mlp.up.weight"),
             theirs(they.whole, "final.out.weight")});
  StDitOptions o{s.size};
  o.depth *= 2, o.arrangement = "alternating", o.adaln = "single";
  o.heads = ditto::heads_of(file, latte ? "num_attention_heads" : "num_heads", o.width);
  std::vector<int64_t> x{s.channels, ditto::kOwnSide, ditto::kOwnSide, ditto::kOwnSide};
  if (latte) {
    o.cross = "spatial", o.null_text = "empty";
    x[1] = file.number("video_length", most::kSide), x[2] = x[3] = file.number("sample_size", most::kSide);
    if (x[2] >= 128) o.base_side = x[2] / (x[2] / 64);
  } else {
    o.cross = "all", o.rotary = "temporal", o.fps = 24;
    o.qk_norm = file.has(std::string(they.spatial) + "0." + theirs(they.block, "spatial.q_norm.weight"));
    o.null_tokens = file.size(theirs(they.whole, "text.null"), 0, most::kSide);
    o.base_side = std::max<int64_t>(file.number("input_sq_size", most::kSide) / kCompression, o.patch);
  }
  ditto::read_sizes_over(
      o, reader, file, {},
      {"arrangement", "adaln", "cross", "rotary", "qk_norm", "patch_frames", "null_tokens", "base_side"});
  auto made = ditto::foreign_needs_of(x, s.out_channels);
  ditto::offer_text(made, file.size(theirs(they.whole, "text.in.weight"), 1, most::kWidth), /*and_empty=*/false);
  ditto::expect_config(file, config_of(o, made, file.format));
  return made;
}

}  // namespace st_dit
