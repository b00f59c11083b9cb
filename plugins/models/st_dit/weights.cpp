#include "weights.h"

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/foreign_names.h>

namespace st_dit {

namespace {

constexpr int64_t kCompression = 8;  // pixels a latent's side stands for: Open-Sora's configuration counts pixels

// Blocks alternate: even ones are spatial, odd ones temporal.
constexpr const char *kLatte =
                         "patches.map=pos_embed.proj time.in=adaln_single.emb.timestep_embedder.linear_1 "
                         "time.out=adaln_single.emb.timestep_embedder.linear_2 modulation.map=adaln_single.linear "
                         "text.in=caption_projection.linear_1 text.out=caption_projection.linear_2 "
                         "final.table=scale_shift_table final.out=proj_out",
                     *kLatteBlock =
                         "modulation.table=scale_shift_table spatial.qkv=attn1.to_q+attn1.to_k+attn1.to_v "
                         "spatial.proj=attn1.to_out.0 temporal.qkv=attn1.to_q+attn1.to_k+attn1.to_v "
                         "temporal.proj=attn1.to_out.0 cross.q=attn2.to_q cross.kv=attn2.to_k+attn2.to_v "
                         "cross.proj=attn2.to_out.0 mlp.up=ff.net.0.proj mlp.down=ff.net.2";
constexpr const char *kStDit3 =
                         "patches.map=x_embedder.proj time.in=t_embedder.mlp.0 time.out=t_embedder.mlp.2 "
                         "rate.in=fps_embedder.mlp.0 rate.out=fps_embedder.mlp.2 modulation.map=t_block.1 "
                         "text.in=y_embedder.y_proj.fc1 text.out=y_embedder.y_proj.fc2 "
                         "text.null=y_embedder.y_embedding final.table=final_layer.scale_shift_table "
                         "final.out=final_layer.linear",
                     *kStDit3Block =
                         "modulation.table=scale_shift_table spatial.qkv=attn.qkv spatial.proj=attn.proj "
                         "spatial.q_norm=attn.q_norm spatial.k_norm=attn.k_norm temporal.qkv=attn.qkv "
                         "temporal.proj=attn.proj temporal.q_norm=attn.q_norm temporal.k_norm=attn.k_norm "
                         "cross.q=cross_attn.q_linear cross.kv=cross_attn.kv_linear cross.proj=cross_attn.proj "
                         "mlp.up=mlp.fc1 mlp.down=mlp.fc2";

// What is common to both, and what differs; the model's own sizes are any.
bool is_theirs(const Form& form, bool latte) {
  const auto& o = form.options;
  const bool common =
      o.arrangement == "alternating" && o.adaln == "single" && form.text_width > 0 && o.attention.kv_heads == 0;
  if (latte) {
    const int64_t side = form.x[2], times = std::max<int64_t>(side / 64, 1);
    return common && o.cross == "spatial" && o.rotary == "none" && !o.attention.qk_norm && o.fps == 0 &&
           o.null_text != "learned" && o.patch_frames == 1 && o.mlp_ratio == 4 && side > 0 && side == form.x[3] &&
           (times == 1 ? o.base_side == 0 : o.base_side * times == side);
  }
  return common && o.cross != "spatial" && o.rotary == "temporal" && o.fps > 0 && o.null_tokens > 0 && o.base_side > 0;
}

ditto::ForeignConfig config_of(const Form& form, bool latte) {
  const auto& o = form.options;
  if (latte)
    return {{"num_attention_heads", o.attention.heads},
            {"attention_head_dim", o.attention.head_width()},
            {"in_channels", form.x[0]},
            {"out_channels", form.out_channels},
            {"num_layers", o.depth / 2},
            {"cross_attention_dim", o.attention.width},
            {"attention_bias", true},
            {"sample_size", form.x[2]},
            {"patch_size", o.patch},
            {"activation_fn", std::string("gelu-approximate")},
            {"norm_type", std::string("ada_norm_single")},
            {"norm_elementwise_affine", false},
            {"norm_eps", 1e-6},
            {"caption_channels", form.text_width},
            {"video_length", form.x[1]}};
  return {{"model_type", std::string("STDiT3")},
          {"depth", o.depth / 2},
          {"hidden_size", o.attention.width},
          {"num_heads", o.attention.heads},
          {"in_channels", form.x[0]},
          {"pred_sigma", form.out_channels == 2 * form.x[0]},
          {"patch_size", std::vector<int64_t>{o.patch_frames, o.patch, o.patch}},
          {"mlp_ratio", static_cast<double>(o.mlp_ratio)},
          {"caption_channels", form.text_width},
          {"model_max_length", o.null_tokens},
          {"input_sq_size", kCompression * o.base_side},
          {"qk_norm", o.attention.qk_norm}};
}

}  // namespace

std::vector<std::string> formats(const Form& form) {
  if (is_theirs(form, true)) return {"diffusers"};
  if (is_theirs(form, false)) return {"open-sora"};
  return {};
}

ditto::ForeignFormat names(const ditto::Model& model, const Form& form, const std::string& format) {
  const auto& o = form.options;
  const bool latte = format == "diffusers";
  if (!is_theirs(form, latte))
    throw ditto::Error(
        ditto::ErrorKind::config, "checkpoint format \"" + format + "\"",
        latte ? "LatteTransformer3DModel has arrangement = \"alternating\", adaln = \"single\", cross = \"spatial\", "
                "rotary = \"none\", no qk_norm, kv_heads, fps or learned null text, an mlp_ratio of 4 and square "
                "frames, and this model has not"
              : "STDiT3 has arrangement = \"alternating\", adaln = \"single\", cross = \"all\", rotary = "
                "\"temporal\", fps, base_side and null_tokens, and no kv_heads, and this model has not",
        "keep it as a checkpoint of Ditto");
  const int64_t D = o.attention.width, K = o.attention.head_width(), P = o.patch;
  ditto::ForeignNames n(model);
  n.layers("", "", latte ? kLatte : kStDit3);
  n.blocks(o.depth / 2, "blocks.#.", latte ? "transformer_blocks.#." : "spatial_blocks.#.",
           latte ? kLatteBlock : kStDit3Block, 0, 2);
  n.blocks(o.depth / 2, "blocks.#.", latte ? "temporal_transformer_blocks.#." : "temporal_blocks.#.",
           latte ? kLatteBlock : kStDit3Block, 1, 2);
  n.shape("patches.map", {D, form.x[0], P, P});
  if (!latte) {
    n.shape("patches.map", {D, form.x[0], o.patch_frames, P, P});
    n.rows("blocks.#.temporal.qkv", ditto::foreign_rows({{0, 2 * D, K}, {2 * D, D}}));
    for (const char* norm : {"q_norm", "k_norm"})
      n.rows(std::string("blocks.#.temporal.") + norm, ditto::foreign_rows({{0, K, K}}));
    // In fp32, as theirs: an export is the file that was imported.
    n.format.constants["rope.freqs"] =
        torch::pow(10000.0, torch::arange(0, K, 2, torch::kFloat) / static_cast<double>(K)).reciprocal();
  }
  n.format.config = config_of(form, latte);
  if (latte) n.format.config["_class_name"] = std::string("LatteTransformer3DModel");
  return n.format;
}

ditto::ModelNeeds needs_of(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
  namespace most = ditto::most;
  const bool latte = file.format == "diffusers";
  if (!latte && file.format != "open-sora")
    throw ditto::Error(ditto::ErrorKind::config, "checkpoint format",
                       "this model has no format \"" + file.format + "\"", "it has: diffusers, open-sora");
  const std::string map = latte ? "pos_embed.proj.weight" : "x_embedder.proj.weight",
                    text = latte ? "caption_projection.linear_1.weight" : "y_embedder.y_proj.fc1.weight",
                    out = latte ? "proj_out.weight" : "final_layer.linear.weight";
  const auto patches = ditto::patches_of(file, map);
  StDitOptions o;
  o.arrangement = "alternating", o.adaln = "single";
  o.attention.width = patches.width, o.patch = patches.side, o.patch_frames = patches.frames;
  o.attention.heads = ditto::heads_of(file, latte ? "num_attention_heads" : "num_heads", patches.width);
  std::vector<int64_t> x{patches.channels, ditto::kOwnSide, ditto::kOwnSide, ditto::kOwnSide};
  if (latte) {
    o.depth = 2 * file.count("transformer_blocks.", ".attn1.to_q.weight", most::kBlocks / 2);
    o.cross = "spatial", o.null_text = "empty";
    x[1] = file.number("video_length", most::kSide), x[2] = x[3] = file.number("sample_size", most::kSide);
    if (x[2] >= 128) o.base_side = x[2] / (x[2] / 64);
  } else {
    o.depth = 2 * file.count("spatial_blocks.", ".attn.qkv.weight", most::kBlocks / 2);
    o.attention.qk_norm = file.has("spatial_blocks.0.attn.q_norm.weight");
    o.cross = "all", o.rotary = "temporal", o.fps = 24;
    o.mlp_ratio = std::max<int64_t>(
        1, ditto::rows_of(file, "spatial_blocks.0.mlp.fc1.weight", patches.width, most::kMlpRatio * patches.width) /
               patches.width);
    o.null_tokens = file.size("y_embedder.y_embedding", 0, most::kSide);
    o.base_side = std::max<int64_t>(file.number("input_sq_size", most::kSide) / kCompression, o.patch);
  }
  ditto::read_over(o, reader, file,
                   {"arrangement", "adaln", "width", "heads", "depth", "cross", "rotary", "qk_norm", "patch",
                    "patch_frames", "null_tokens", "base_side", "mlp_ratio"});
  const int64_t numbers = o.patch_frames * o.patch * o.patch;
  const Form form{o, x, ditto::rows_of(file, out, patches.width, most::kNumbers) / numbers,
                  file.size(text, 1, most::kWidth)};
  ditto::expect_config(file, config_of(form, latte));
  return {{{"x", torch::kFloat, x, ""},
           {"t", torch::kFloat, {}, ""},
           {"text", torch::kFloat, {-1, form.text_width}, ""},
           {"text_mask", torch::kBool, {-1}, ""}},
          form.out_channels};
}

}  // namespace st_dit
