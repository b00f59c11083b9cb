#include "weights.h"

#include <ditto/conditions.h>
#include <ditto/foreign_names.h>

namespace mmdit {

namespace {

using ditto::ModelNeeds;
namespace most = ditto::most;

const std::vector<std::string> kFormats{"diffusers", "comfy"};

// A family's names, in one kind of file: of a module's layers, of the whole model, of blocks in which each sequence has
// its own weights, and of those with weights for both.
struct Names {
  bool is_flux, is_file;
  const char *parts, *patches, *table, *whole, *joint_blocks, *joint, *single_blocks, *single;
};

constexpr const char *kDiffusersWhole =
                         "text=context_embedder time=time_text_embed.timestep_embedder "
                         "pooled_in=time_text_embed.text_embedder.linear_1 "
                         "pooled_out=time_text_embed.text_embedder.linear_2 "
                         "guidance=time_text_embed.guidance_embedder final_modulation=norm_out.linear out=proj_out",
                     *kDiffusersJoint =
                         "picture.modulation=norm1.linear picture.attn=attn picture.proj=attn.to_out.0 "
                         "picture.up=ff.net.0.proj picture.down=ff.net.2 picture.second=attn2 "
                         "words.modulation=norm1_context.linear "
                         "words.attn.qkv=attn.add_q_proj+attn.add_k_proj+attn.add_v_proj "
                         "words.attn.q_norm=attn.norm_added_q words.attn.k_norm=attn.norm_added_k "
                         "words.proj=attn.to_add_out words.up=ff_context.net.0.proj words.down=ff_context.net.2",
                     *kDiffusersSingle = "modulation=norm.linear attn=attn up=proj_mlp out=proj_out";
constexpr Names kSd3{false,
                     false,
                     ditto::kDiffusersParts,
                     "pos_embed.proj",
                     "pos_embed.pos_embed",
                     kDiffusersWhole,
                     "transformer_blocks.",
                     kDiffusersJoint,
                     "",
                     ""};
constexpr Names kFlux{true,
                      false,
                      ditto::kDiffusersParts,
                      "x_embedder",
                      "",
                      kDiffusersWhole,
                      "transformer_blocks.",
                      kDiffusersJoint,
                      "single_transformer_blocks.",
                      kDiffusersSingle};
constexpr Names kSd3File{
    false,
    true,
    "qkv=qkv proj=proj q_norm=ln_q k_norm=ln_k in=mlp.0 out=mlp.2",
    "x_embedder.proj",
    "pos_embed",
    "text=context_embedder time=t_embedder pooled_in=y_embedder.mlp.0 pooled_out=y_embedder.mlp.2 "
    "final_modulation=final_layer.adaLN_modulation.1 out=final_layer.linear",
    "joint_blocks.",
    "picture.modulation=x_block.adaLN_modulation.1 picture.attn=x_block.attn picture.proj=x_block.attn.proj "
    "picture.up=x_block.mlp.fc1 picture.down=x_block.mlp.fc2 picture.second=x_block.attn2 "
    "words.modulation=context_block.adaLN_modulation.1 words.attn=context_block.attn "
    "words.proj=context_block.attn.proj words.up=context_block.mlp.fc1 words.down=context_block.mlp.fc2",
    "",
    ""};
constexpr Names kFluxFile{
    true,
    true,
    "qkv=qkv q_norm.weight=norm.query_norm.scale k_norm.weight=norm.key_norm.scale in=in_layer out=out_layer",
    "img_in",
    "",
    "text=txt_in time=time_in pooled_in=vector_in.in_layer pooled_out=vector_in.out_layer guidance=guidance_in "
    "final_modulation=final_layer.adaLN_modulation.1 out=final_layer.linear",
    "double_blocks.",
    "picture.modulation=img_mod.lin picture.attn=img_attn picture.proj=img_attn.proj picture.up=img_mlp.0 "
    "picture.down=img_mlp.2 words.modulation=txt_mod.lin words.attn=txt_attn words.proj=txt_attn.proj "
    "words.up=txt_mlp.0 words.down=txt_mlp.2",
    "single_blocks.",
    "modulation=modulation.lin attn.qkv=linear1 attn.q_norm.weight=norm.query_norm.scale "
    "attn.k_norm.weight=norm.key_norm.scale up=linear1 out=linear2"};

const Names& names_of(bool is_flux, bool is_file) {
  if (is_flux) return is_file ? kFluxFile : kFlux;
  return is_file ? kSd3File : kSd3;
}

// Why the model is of neither family; empty: it is of one.
std::string not_theirs(const MmDitOptions& o, const ModelNeeds& needs) {
  if (needs.width("text_pooled") == 0) return "takes a pooled text, and this model none";
  if (o.is_flux() ? o.single_depth == 0 || o.dual_attention > 0 || !o.qk_norm : o.single_depth > 0 || o.guidance_embed)
    return "is of Stable Diffusion 3 or of Flux, and this model has parts of both";
  return {};
}

// The constructor's arguments there.
ditto::ForeignConfig config_of(const MmDitOptions& o, const ModelNeeds& needs) {
  const int64_t of_patch = o.is_flux() ? o.patch * o.patch : 1;
  ditto::ForeignConfig config{
      {"_class_name", std::string(o.is_flux() ? "FluxTransformer2DModel" : "SD3Transformer2DModel")},
      {"patch_size", o.is_flux() ? int64_t{1} : o.patch},
      {"in_channels", needs.shape("x")[0] * of_patch},
      {"num_layers", o.depth},
      {"attention_head_dim", o.head_width()},
      {"num_attention_heads", o.heads},
      {"joint_attention_dim", needs.width("text")},
      {"pooled_projection_dim", needs.width("text_pooled")}};
  if (o.is_flux()) {
    config["num_single_layers"] = o.single_depth;
    config["guidance_embeds"] = o.guidance_embed;
    config["axes_dims_rope"] = o.rotary;
    if (needs.out_channels != needs.shape("x")[0]) config["out_channels"] = needs.out_channels * of_patch;
    return config;
  }
  std::vector<int64_t> dual(static_cast<size_t>(o.dual_attention));
  std::iota(dual.begin(), dual.end(), 0);
  config["out_channels"] = needs.out_channels;
  config["sample_size"] = o.position_base * o.patch;
  config["pos_embed_max_size"] = o.position_side;
  config["caption_projection_dim"] = o.width;
  config["dual_attention_layers"] = dual;
  if (o.qk_norm) config["qk_norm"] = "rms_norm";
  return config;
}

}  // namespace

std::vector<std::string> formats(const MmDitOptions& o, const ModelNeeds& needs) {
  return ditto::formats_of(kFormats, [&](const auto&) { return not_theirs(o, needs); });
}

ditto::ForeignFormat names(const ditto::Model& model, const MmDitOptions& o, const ModelNeeds& needs,
                           const std::string& format) {
  ditto::require_format(format, kFormats, [&](const auto&) { return not_theirs(o, needs); });
  const Names& they = names_of(o.is_flux(), format == "comfy");
  const int64_t D = o.width, P = o.patch, C = needs.out_channels;
  ditto::ForeignNames names(model, they.parts);
  names.layers("", "", std::string("patches.map=") + they.patches + " " + they.whole);
  names.blocks(o.depth, "blocks.#.", they.joint_blocks + std::string("#."), they.joint);
  names.blocks(o.single_depth, "blocks.#.", they.single_blocks + std::string("#."), they.single, o.depth);
  if (!they.is_file) {  // where a sequence ends, diffusers' norms have the scale before the shift
    const auto scale_first = ditto::foreign_rows({{D, D}, {0, D}});
    names.rows("final_modulation", scale_first);
    if (!they.is_flux) names.rows("blocks." + std::to_string(o.depth - 1) + ".words.modulation", scale_first);
    names.format.config = config_of(o, needs);
  }
  if (!they.is_flux) {
    names.shape("patches.map", {D, needs.shape("x")[0], P, P});
    names.table(they.table, o.positions({1, o.position_side, o.position_side}));
    return std::move(names.format);
  }
  for (const char* attention : {"blocks.#.picture.attn", "blocks.#.words.attn", "blocks.#.attn"})
    names.turn_pairs(attention, o.head_width());
  std::vector<int64_t> channel_first;  // of a patch; ours has the channel last
  for (int64_t i = 0; i < P * P * C; ++i) channel_first.push_back(i % C * P * P + i / C);
  names.rows("out", channel_first);
  if (they.is_file) {  // "linear1" is both
    for (const char* layer : {"blocks.#.attn.qkv", "blocks.#.up"}) names.shape(layer, {7 * D, D});
    names.rows("blocks.#.up", ditto::foreign_rows({{3 * D, 4 * D}}));
  }
  return std::move(names.format);
}

ModelNeeds needs_of(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
  ditto::require_format(file.format, kFormats);
  const bool is_file = file.format == "comfy";
  const std::string of_flux = names_of(true, is_file).single_blocks;
  const auto from = file.tensors.lower_bound(of_flux);
  const Names& they = names_of(from != file.tensors.end() && from->first.starts_with(of_flux), is_file);
  const auto whole = [&](const char* ours) { return ditto::foreign_name(they.whole, ours, they.parts); };
  const auto joint = [&](const char* ours) { return "." + ditto::foreign_name(they.joint, ours, they.parts); };
  const auto count = [&](const std::string& blocks, const std::string& layer) -> int64_t {
    return file.has(blocks + "0" + layer) ? file.count(blocks, layer, most::kBlocks) : 0;
  };
  const std::string patches = they.patches + std::string(".weight"), blocks = they.joint_blocks,
                    norm = blocks + "0" + joint("picture.attn.q_norm.weight");
  MmDitOptions o;
  o.text.mask = false, o.text.tokens = they.is_flux ? 512 : 333;
  o.width = file.size(whole("text.weight"), 0, most::kWidth);
  o.depth = file.count(blocks, joint("picture.modulation.weight"), most::kBlocks);
  o.qk_norm = file.has(norm);
  int64_t side = ditto::kOwnSide, channels = file.size(patches, 1, most::kNumbers);
  std::vector<std::string> said{"single_depth", "dual_attention", "qk_norm", "patch", "guidance_embed"};
  if (they.is_flux) {
    o.single_depth = count(of_flux, "." + ditto::foreign_name(they.single, "modulation.weight"));
    o.guidance_embed = file.has(whole("guidance.in.weight"));
    channels /= o.patch * o.patch;
  } else {
    o.dual_attention = count(blocks, joint("picture.second.proj.weight"));
    o.patch = file.size(patches, 2, most::kPatch);
    o.position_side = ditto::square_of(file, they.table, o.width);
    side = is_file ? 128 : file.number("sample_size", most::kSide);
    o.position_base = side / o.patch;
    said.emplace_back("position_side");
  }
  if (!is_file)
    o.heads = ditto::heads_of(file, "num_attention_heads", o.width);
  else if (o.qk_norm)
    o.heads = o.width / file.size(norm, 0, o.width);
  else
    o.heads = o.width % 64 == 0 ? o.width / 64 : 0;  // as all of Stable Diffusion 3
  if (they.is_flux && o.heads > 0) {
    const int64_t K = o.head_width();
    o.rotary = {K / 8, (K - K / 8) / 2, (K - K / 8) / 2};
    if (const auto axes = file.config.find("axes_dims_rope"); axes != file.config.end())
      if (const auto* list = std::get_if<std::vector<int64_t>>(&axes->second)) o.rotary = *list;
  }
  ditto::read_heads_over(o, reader, file, {}, said);
  const int64_t out = ditto::rows_of(file, whole("out.weight"), o.width, most::kNumbers) / (o.patch * o.patch);
  auto made = ditto::foreign_needs_of({channels, side, side}, out);
  ditto::offer_text(made, file.size(whole("text.weight"), 1, most::kWidth), /*and_empty=*/false);
  made.inputs.push_back({"text_pooled", torch::kFloat, {file.size(whole("pooled_in.weight"), 1, most::kWidth)}, ""});
  if (!is_file) ditto::expect_config(file, config_of(o, made));
  return made;
}

}  // namespace mmdit
