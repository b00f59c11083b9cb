#include "weights.h"

#include <ditto/foreign_names.h>

namespace mmdit {

namespace {

using ditto::ForeignShapes;
namespace most = ditto::most;

// A family's names, in one kind of file: of the whole model, of blocks in which each sequence has its own weights, and
// of those with weights for both.
struct Names {
  bool is_flux, is_file;
  const char *patches, *table, *whole, *joint_blocks, *joint, *single_blocks, *single;
};

constexpr const char *kDiffusersWhole =
                         "text=context_embedder time.in=time_text_embed.timestep_embedder.linear_1 "
                         "time.out=time_text_embed.timestep_embedder.linear_2 "
                         "pooled_in=time_text_embed.text_embedder.linear_1 "
                         "pooled_out=time_text_embed.text_embedder.linear_2 "
                         "guidance.in=time_text_embed.guidance_embedder.linear_1 "
                         "guidance.out=time_text_embed.guidance_embedder.linear_2 "
                         "final_modulation=norm_out.linear out=proj_out",
                     *kDiffusersJoint =
                         "picture.modulation=norm1.linear picture.attn.qkv=attn.to_q+attn.to_k+attn.to_v "
                         "picture.attn.q_norm.weight=attn.norm_q.weight picture.attn.k_norm=attn.norm_k "
                         "picture.proj=attn.to_out.0 picture.up=ff.net.0.proj picture.down=ff.net.2 "
                         "picture.second.qkv=attn2.to_q+attn2.to_k+attn2.to_v picture.second.q_norm=attn2.norm_q "
                         "picture.second.k_norm=attn2.norm_k picture.second.proj=attn2.to_out.0 "
                         "words.modulation=norm1_context.linear "
                         "words.attn.qkv=attn.add_q_proj+attn.add_k_proj+attn.add_v_proj "
                         "words.attn.q_norm=attn.norm_added_q words.attn.k_norm=attn.norm_added_k "
                         "words.proj=attn.to_add_out words.up=ff_context.net.0.proj words.down=ff_context.net.2",
                     *kDiffusersSingle =
                         "modulation=norm.linear attn.qkv=attn.to_q+attn.to_k+attn.to_v attn.q_norm=attn.norm_q "
                         "attn.k_norm=attn.norm_k up=proj_mlp out=proj_out";
constexpr Names kSd3{
    false, false, "pos_embed.proj", "pos_embed.pos_embed", kDiffusersWhole, "transformer_blocks.", kDiffusersJoint,
    "",    ""};
constexpr Names kFlux{true,
                      false,
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
    "x_embedder.proj",
    "pos_embed",
    "text=context_embedder time.in=t_embedder.mlp.0 time.out=t_embedder.mlp.2 pooled_in=y_embedder.mlp.0 "
    "pooled_out=y_embedder.mlp.2 final_modulation=final_layer.adaLN_modulation.1 out=final_layer.linear",
    "joint_blocks.",
    "picture.modulation=x_block.adaLN_modulation.1 picture.attn.qkv=x_block.attn.qkv "
    "picture.attn.q_norm.weight=x_block.attn.ln_q.weight picture.attn.k_norm=x_block.attn.ln_k "
    "picture.proj=x_block.attn.proj "
    "picture.up=x_block.mlp.fc1 picture.down=x_block.mlp.fc2 picture.second.qkv=x_block.attn2.qkv "
    "picture.second.q_norm=x_block.attn2.ln_q picture.second.k_norm=x_block.attn2.ln_k "
    "picture.second.proj=x_block.attn2.proj words.modulation=context_block.adaLN_modulation.1 "
    "words.attn.qkv=context_block.attn.qkv words.attn.q_norm=context_block.attn.ln_q "
    "words.attn.k_norm=context_block.attn.ln_k words.proj=context_block.attn.proj words.up=context_block.mlp.fc1 "
    "words.down=context_block.mlp.fc2",
    "",
    ""};
constexpr Names kFluxFile{
    true,
    true,
    "img_in",
    "",
    "text=txt_in time.in=time_in.in_layer time.out=time_in.out_layer pooled_in=vector_in.in_layer "
    "pooled_out=vector_in.out_layer guidance.in=guidance_in.in_layer guidance.out=guidance_in.out_layer "
    "final_modulation=final_layer.adaLN_modulation.1 out=final_layer.linear",
    "double_blocks.",
    "picture.modulation=img_mod.lin picture.attn.qkv=img_attn.qkv "
    "picture.attn.q_norm.weight=img_attn.norm.query_norm.scale "
    "picture.attn.k_norm.weight=img_attn.norm.key_norm.scale picture.proj=img_attn.proj picture.up=img_mlp.0 "
    "picture.down=img_mlp.2 words.modulation=txt_mod.lin words.attn.qkv=txt_attn.qkv "
    "words.attn.q_norm.weight=txt_attn.norm.query_norm.scale "
    "words.attn.k_norm.weight=txt_attn.norm.key_norm.scale words.proj=txt_attn.proj words.up=txt_mlp.0 "
    "words.down=txt_mlp.2",
    "single_blocks.",
    "modulation=modulation.lin attn.qkv=linear1 attn.q_norm.weight=norm.query_norm.scale "
    "attn.k_norm.weight=norm.key_norm.scale up=linear1 out=linear2"};

const Names& names_of(bool is_flux, bool is_file) {
  if (is_flux) return is_file ? kFluxFile : kFlux;
  return is_file ? kSd3File : kSd3;
}

// Why the model is of neither family; empty: it is of one.
std::string not_theirs(const Form& form) {
  const auto& o = form.options;
  if (form.needs.width("text_pooled") == 0) return "takes a pooled text, and this model none";
  if (o.is_flux() ? o.single_depth == 0 || o.dual_attention > 0 || !o.qk_norm : o.single_depth > 0 || o.guidance_embed)
    return "is of Stable Diffusion 3 or of Flux, and this model has parts of both";
  return {};
}

std::vector<std::string> known_formats() { return {"diffusers", "comfy"}; }

// The constructor's arguments there.
ditto::ForeignConfig config_of(const MmDitOptions& o, const ditto::ModelNeeds& needs) {
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
  if (o.qk_norm) config["qk_norm"] = std::string("rms_norm");
  return config;
}

}  // namespace

std::vector<std::string> formats(const Form& form) {
  return ditto::formats_of(known_formats(), [&](const std::string&) { return not_theirs(form); });
}

ditto::ForeignFormat names(const Form& form, const std::string& format) {
  const auto& o = form.options;
  ditto::require_format(format, known_formats(), [&](const std::string&) { return not_theirs(form); });
  const Names& they = names_of(o.is_flux(), format == "comfy");
  const int64_t D = o.width, P = o.patch, C = form.needs.out_channels, K = o.head_width();
  ditto::ForeignNames names(form.model);
  names.layers("", "", std::string("patches.map=") + they.patches + " " + they.whole);
  names.blocks(o.depth, "blocks.#.", they.joint_blocks + std::string("#."), they.joint);
  names.blocks(o.single_depth, "blocks.#.", they.single_blocks + std::string("#."), they.single, o.depth);
  if (!they.is_file) {  // where a sequence ends, diffusers' norms have the scale before the shift
    const auto scale_first = ditto::foreign_rows({{D, D}, {0, D}});
    names.rows("final_modulation", scale_first);
    if (!they.is_flux) names.rows("blocks." + std::to_string(o.depth - 1) + ".words.modulation", scale_first);
  }
  if (they.is_flux) {
    for (const std::string part : {"picture.attn.", "words.attn.", "attn."}) {
      names.rows("blocks.#." + part + "qkv", ditto::foreign_rows({{0, 2 * D, K}, {2 * D, D}}));
      for (const char* norm : {"q_norm", "k_norm"})
        names.rows("blocks.#." + part + norm, ditto::foreign_rows({{0, K, K}}));
    }
    std::vector<int64_t> channel_first;  // of a patch; ours has the channel last
    for (int64_t i = 0; i < P * P * C; ++i) channel_first.push_back(i % C * P * P + i / C);
    names.rows("out", channel_first);
  } else {
    names.shape("patches.map", {D, form.needs.shape("x")[0], P, P});
    const auto whole = o.positions({1, o.position_side, o.position_side});
    names.format.constants[they.table] = whole.to(torch::kFloat).unsqueeze(0);
  }
  if (they.is_flux && they.is_file) {  // "linear1" is both
    for (const char* layer : {"blocks.#.attn.qkv", "blocks.#.up"}) names.shape(layer, {7 * D, D});
    names.rows("blocks.#.up", ditto::foreign_rows({{3 * D, 4 * D}}));
  }
  if (!they.is_file) names.format.config = config_of(o, form.needs);
  return std::move(names.format);
}

ditto::ModelNeeds needs_of(ditto::OptionReader& reader, const ForeignShapes& file) {
  ditto::require_format(file.format, known_formats());
  const bool is_file = file.format == "comfy";
  const auto weight_of = [](const std::string& layer) { return layer + ".weight"; };
  const std::string of_flux = names_of(true, is_file).single_blocks;
  const auto from = file.tensors.lower_bound(of_flux);
  const Names& they = names_of(from != file.tensors.end() && from->first.starts_with(of_flux), is_file);
  const auto weight = [&](const char* ours) { return weight_of(ditto::foreign_name(they.whole, ours)); };
  const auto after = [&](const char* ours) { return "." + weight_of(ditto::foreign_name(they.joint, ours)); };
  const auto count = [&](const std::string& blocks, const std::string& layer) -> int64_t {
    return file.has(blocks + "0" + layer) ? file.count(blocks, layer, most::kBlocks) : 0;
  };
  const std::string patches = weight_of(they.patches), joint = they.joint_blocks,
                    norm = joint + "0." + ditto::foreign_name(they.joint, "picture.attn.q_norm.weight");
  MmDitOptions o;
  o.text.mask = false, o.text.tokens = they.is_flux ? 512 : 333;
  o.width = file.size(weight("text"), 0, most::kWidth);
  o.depth = file.count(joint, after("picture.modulation"), most::kBlocks);
  o.qk_norm = file.has(norm);
  int64_t side = ditto::kOwnSide, channels = file.size(patches, 1, most::kNumbers);
  if (they.is_flux) {
    o.single_depth = count(they.single_blocks, "." + weight_of(ditto::foreign_name(they.single, "modulation")));
    o.guidance_embed = file.has(weight("guidance.in"));
    channels /= o.patch * o.patch;
  } else {
    o.dual_attention = count(joint, after("picture.second.proj"));
    o.patch = file.size(patches, 2, most::kPatch);
    o.position_side = ditto::square_of(file, they.table, o.width);
    side = is_file ? 128 : file.number("sample_size", most::kSide);
    o.position_base = side / o.patch;
  }
  const bool says_heads = !is_file || o.qk_norm || o.width % 64 == 0;
  if (!is_file)
    o.heads = ditto::heads_of(file, "num_attention_heads", o.width);
  else
    o.heads = says_heads ? o.width / (o.qk_norm ? file.size(norm, 0, o.width) : 64) : 1;
  if (const int64_t K = o.head_width(); they.is_flux) o.rotary = {K / 8, (K - K / 8) / 2, (K - K / 8) / 2};
  if (const auto axes = file.config.find("axes_dims_rope"); axes != file.config.end())
    if (const auto* list = std::get_if<std::vector<int64_t>>(&axes->second)) o.rotary = *list;
  std::vector<std::string> said{"depth",   "single_depth", "dual_attention", "width",
                                "qk_norm", "patch",        "guidance_embed"};
  if (says_heads) said.emplace_back("heads");
  if (!they.is_flux) said.emplace_back("position_side");
  ditto::read_over(o, reader, file, said);
  if (!says_heads) ditto::require_heads(reader, file);
  const int64_t out = ditto::rows_of(file, weight("out"), o.width, most::kNumbers) / (o.patch * o.patch);
  ditto::ModelNeeds needs{{{"x", torch::kFloat, {channels, side, side}, ""},
                           {"t", torch::kFloat, {}, ""},
                           {"text", torch::kFloat, {-1, file.size(weight("text"), 1, most::kWidth)}, ""},
                           {"text_mask", torch::kBool, {-1}, ""},
                           {"text_pooled", torch::kFloat, {file.size(weight("pooled_in"), 1, most::kWidth)}, ""}},
                          out};
  if (!is_file) ditto::expect_config(file, config_of(o, needs));
  return needs;
}

}  // namespace mmdit
