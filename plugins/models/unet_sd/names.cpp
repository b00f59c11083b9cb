#include "names.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>

namespace unet_sd {

namespace {

using ditto::Error;
using ditto::ErrorKind;
using ditto::ForeignConfig;
using ditto::ForeignShapes;
using ditto::OptionValue;
namespace most = ditto::most;

constexpr const char *kDiffusers = "diffusers", *kLdm = "ldm", *kDenoiser = "model.diffusion_model.";

// --- names ---

// Of a transformer, in both formats.
std::string transformer_parts(int64_t layers) {
  std::string parts = "norm=norm proj_in=proj_in proj_out=proj_out ";
  for (int64_t i = 0; i < layers; ++i) {
    const std::string ours = "layer" + std::to_string(i) + ".",
                      theirs = "transformer_blocks." + std::to_string(i) + ".";
    const auto add = [&](const std::string& name, const std::vector<std::string>& of) {
      parts += ours + name + "=";
      for (const auto& one : of) parts += (&one == &of.front() ? "" : "+") + theirs + one;
      parts += " ";
    };
    for (const auto& [attention, name] : {std::pair{"attn", "attn1."}, std::pair{"cross", "attn2."}}) {
      const std::string of = name, to = std::string(attention) + ".";
      add(to + "qkv", {of + "to_q", of + "to_k", of + "to_v"});
      add(to + "q", {of + "to_q"});
      add(to + "kv", {of + "to_k", of + "to_v"});
      add(to + "proj", {of + "to_out.0"});
    }
    for (const char* norm : {"norm1", "norm2", "norm3"}) add(norm, {norm});
    add("mlp.gate_up", {"ff.net.0.proj"});
    add("mlp.down", {"ff.net.2"});
  }
  return parts;
}

std::string parts_of(const std::string& format, int64_t layers) {
  const std::string residual =
      format == kLdm
          ? "in=0 out=2 norm1=in_layers.0 conv1=in_layers.2 cond=emb_layers.1 norm2=out_layers.0 conv2=out_layers.3 "
            "past=skip_connection "
          : "in=linear_1 out=linear_2 norm1=norm1 conv1=conv1 cond=time_emb_proj norm2=norm2 conv2=conv2 "
            "past=conv_shortcut ";
  return residual + transformer_parts(layers);
}

std::string ends_of(const std::string& format, const Options& o) {
  if (format == kLdm) {
    const std::string label = o.num_class_embeds > 0 ? "label.table=label_emb.weight" : "label=label_emb.0";
    return "time=time_embed in=input_blocks.0.0 norm=out.0 out=out.2 added=label_emb.0 " + label;
  }
  return "time=time_embedding in=conv_in norm=conv_norm_out out=conv_out added=add_embedding label=class_embedding "
         "label.table=class_embedding.weight";
}

// As a list for ForeignNames::layers.
std::string layers_of(const std::string& format, const Place& place, int64_t outputs) {
  const auto text = [](int64_t number) { return std::to_string(number); };
  const std::string stage = text(place.stage), layer = text(place.layer);
  if (format != kLdm) {
    const std::string way = place.way == Place::Way::middle ? "mid_block."
                            : place.way == Place::Way::down ? "down_blocks." + stage + "."
                                                            : "up_blocks." + stage + ".";
    return "residual=" + way + "resnets." + layer + " attention=" + way + "attentions." + layer + " half=" + way +
           "downsamplers.0.conv twice=" + way + "upsamplers.0.conv";
  }
  if (place.way == Place::Way::middle)
    return place.layer == 0 ? "residual=middle_block.0 attention=middle_block.1" : "residual=middle_block.2";
  if (place.way == Place::Way::down)  // theirs are numbered as what they leave
    return "residual=input_blocks." + text(place.leaves) + ".0 attention=input_blocks." + text(place.leaves) +
           ".1 half=input_blocks." + text(place.leaves + 1) + ".0.op";
  const std::string block = "output_blocks." + text(outputs - 1 - place.takes) + ".";
  return "residual=" + block + "0 attention=" + block + "1 twice=" + block + (place.heads > 0 ? "2" : "1") + ".conv";
}

// Why no such file is of a model of these options; empty: one is.
std::string not_theirs(const std::string& format, const Options& o) {
  if (format == kLdm && o.has_text_time() && o.has_classes())
    return "latent-diffusion has one embedding beside the time's, and this model two";
  return {};
}

const std::vector<std::string>& known_formats() {
  static const std::vector<std::string> list{kDiffusers, kLdm};
  return list;
}

// --- config.json ---

// The options that are keys of it, by the same names.
const std::vector<std::string>& shared_keys() {
  static const std::vector<std::string> keys{"block_out_channels",
                                             "down_block_types",
                                             "up_block_types",
                                             "layers_per_block",
                                             "attention_head_dim",
                                             "transformer_layers_per_block",
                                             "only_cross_attention",
                                             "use_linear_projection",
                                             "upcast_attention",
                                             "norm_num_groups",
                                             "norm_eps",
                                             "flip_sin_to_cos",
                                             "freq_shift",
                                             "resnet_time_scale_shift",
                                             "class_embed_type",
                                             "num_class_embeds",
                                             "addition_embed_type",
                                             "addition_time_embed_dim",
                                             "projection_class_embeddings_input_dim",
                                             "dropout"};
  return keys;
}

// What all Stable Diffusions have, and what the class makes where the key is not there.
ForeignConfig always() {
  return {{"center_input_sample", false},
          {"mid_block_type", "UNetMidBlock2DCrossAttn"},
          {"downsample_padding", int64_t{1}},
          {"mid_block_scale_factor", int64_t{1}},
          {"act_fn", "silu"},
          {"dual_cross_attention", false},
          {"resnet_skip_time_act", false},
          {"resnet_out_scale_factor", 1.0},
          {"time_embedding_type", "positional"},
          {"conv_in_kernel", int64_t{3}},
          {"conv_out_kernel", int64_t{3}},
          {"attention_type", "default"},
          {"class_embeddings_concat", false},
          {"addition_embed_type_num_heads", int64_t{64}}};
}

// Of those keys the others, which needs say; and what is of no network ("_class_name").
bool is_of_needs(const std::string& key) {
  static const std::set<std::string> keys{"sample_size", "in_channels", "out_channels", "cross_attention_dim"};
  return keys.count(key) != 0 || key.starts_with("_");
}

// One for all stands there without a list.
OptionValue of_levels(const std::vector<int64_t>& list) {
  return list.size() == 1 ? OptionValue(list[0]) : OptionValue(list);
}

ForeignConfig config_of(const Options& o, const ditto::ModelNeeds& needs) {
  const auto& x = needs.shape("x");
  auto config = always();
  config["_class_name"] = kClass;
  config["in_channels"] = x[0], config["out_channels"] = needs.out_channels;
  if (x[1] > 0) config["sample_size"] = x[1] == x[2] ? OptionValue(x[1]) : OptionValue(std::vector{x[1], x[2]});
  config["cross_attention_dim"] = needs.width("text");
  config["block_out_channels"] = o.block_out_channels;
  config["down_block_types"] = o.down_block_types, config["up_block_types"] = o.up_block_types;
  config["layers_per_block"] = of_levels(o.layers_per_block);
  config["attention_head_dim"] = of_levels(o.attention_head_dim);
  config["transformer_layers_per_block"] = of_levels(o.transformer_layers_per_block);
  config["only_cross_attention"] =
      o.only_cross_attention.size() == 1 ? OptionValue(o.only_cross_attention[0] == 1) : o.only_cross_attention;
  config["use_linear_projection"] = o.use_linear_projection, config["upcast_attention"] = o.upcast_attention;
  config["norm_num_groups"] = o.norm_num_groups, config["norm_eps"] = ditto::number_of(o.norm_eps);
  config["flip_sin_to_cos"] = o.flip_sin_to_cos, config["freq_shift"] = o.freq_shift;
  config["resnet_time_scale_shift"] = o.resnet_time_scale_shift, config["dropout"] = o.dropout;
  if (o.class_embed_type != Options::kNone) config["class_embed_type"] = o.class_embed_type;
  if (o.num_class_embeds > 0) config["num_class_embeds"] = o.num_class_embeds;
  if (o.has_text_time()) {
    const auto* ids = find(needs.inputs, "time_ids");
    config["addition_embed_type"] = o.addition_embed_type;
    config["addition_time_embed_dim"] = o.addition_time_embed_dim;
    config["projection_class_embeddings_input_dim"] =
        needs.width("text_pooled") + (ids ? ids->shape.at(0) : kWholePicture) * o.addition_time_embed_dim;
  } else if (o.class_embed_type == Options::kProjection) {
    config["projection_class_embeddings_input_dim"] = o.projection_class_embeddings_input_dim;
  }
  return config;
}

// A key's value as the option's, which is a list where they have a list or one number.
OptionValue as_option(const std::string& key, const OptionValue& value) {
  static const std::set<std::string> lists{"layers_per_block", "attention_head_dim", "transformer_layers_per_block",
                                           "only_cross_attention"};
  if (lists.count(key) == 0) return value;
  if (const auto* number = std::get_if<int64_t>(&value)) return std::vector<int64_t>{*number};
  if (const auto* flag = std::get_if<bool>(&value)) return std::vector<int64_t>{*flag ? 1 : 0};
  return value;
}

// What a file says: options, and of which of them a recipe may say nothing else.
struct Said {
  Options options;
  std::vector<std::string> names;
  bool heads = true, groups = true, only_text = true;  // it says them
  int64_t text, channels, out_channels;
};

Said of_config(const ForeignShapes& file) {
  if (file.config_file.empty())
    throw Error(ErrorKind::checkpoint, file.file, "has no config.json beside it, which says how it is made",
                "put the model's config.json into the file's folder");
  Said said{{}, shared_keys()};
  const auto fixed = always();
  ditto::OptionMap given{"config", file.config_file, {}};
  for (const auto& [key, value] : file.config) {
    if (const auto one = fixed.find(key); one != fixed.end())
      file.expect(key, one->second);
    else if (std::find(said.names.begin(), said.names.end(), key) != said.names.end())
      given.given[key] = {as_option(key, value), file.config_file};
    else if (!is_of_needs(key))
      throw Error(ErrorKind::checkpoint, file.config_file,
                  "\"" + key + "\" is " + ditto::to_text(value) + ", which no UNet of Stable Diffusion 1, 2 or XL has",
                  "choose another model, or another file");
  }
  ditto::OptionReader reader(given);
  said.options.read(reader);
  reader.finish();
  said.channels = file.number("in_channels", most::kNumbers);
  said.out_channels = file.number("out_channels", most::kNumbers);
  const auto text = file.config.find("cross_attention_dim");
  const auto* list = text == file.config.end() ? nullptr : std::get_if<std::vector<int64_t>>(&text->second);
  if (list && !list->empty() && shortest(*list).size() == 1)
    said.text = std::clamp<int64_t>(list->front(), 1, most::kWidth);
  else
    said.text = file.number("cross_attention_dim", most::kWidth);
  return said;
}

// --- the tensors of a file in the format ldm ---

std::string block(const char* way, int64_t number, const char* end) {
  return std::string(way) + "_blocks." + std::to_string(number) + "." + end;
}

int64_t transformer_layers(const ForeignShapes& file, const std::string& transformer) {
  return file.count(transformer + "transformer_blocks.", ".norm1.weight", most::kPatch);
}

// The way down, level by level.
void read_down(const ForeignShapes& file, Said& said, std::vector<int64_t>& layers,
               std::vector<int64_t>& transformers) {
  auto& o = said.options;
  o.block_out_channels.clear(), o.down_block_types.clear(), o.only_cross_attention.clear();
  bool begins = true;  // a level
  for (int64_t n = 1;; ++n) {
    if (file.has(block("input", n, "0.op.weight"))) {
      begins = true;
      continue;
    }
    const auto conv = block("input", n, "0.in_layers.2.weight"), attention = block("input", n, "1.");
    if (!file.has(conv)) return;
    const bool sees_text = file.has(attention + "proj_in.weight");
    if (begins) {
      o.block_out_channels.push_back(file.size(conv, 0, most::kWidth));
      o.down_block_types.emplace_back(sees_text ? Options::kDownText : Options::kDown);
      o.only_cross_attention.push_back(0);
      layers.push_back(0), transformers.push_back(1);
    }
    begins = false, ++layers.back();
    if (!sees_text) continue;
    transformers.back() = transformer_layers(file, attention);
    const auto keys = attention + "transformer_blocks.0.attn1.to_k.weight";
    if (file.size(keys, 1, most::kWidth) != o.block_out_channels.back()) o.only_cross_attention.back() = 1;
  }
}

// Heads, groups and precision of a published one of these sizes, which no tensor says.
bool take_published(Said& said) {
  auto& o = said.options;
  for (const auto& [preset, text] : {std::pair{"sd1", 768}, std::pair{"sd2", 1024}, std::pair{"sdxl", 2048}}) {
    Options one;
    ditto::OptionReader reader(ditto::OptionMap{"model", preset, {{"preset", {std::string(preset), preset}}}});
    one.read(reader);
    if (said.text != text || o.block_out_channels != one.block_out_channels ||
        o.down_block_types != one.down_block_types || o.layers_per_block != one.layers_per_block ||
        o.transformer_layers_per_block != one.transformer_layers_per_block ||
        o.use_linear_projection != one.use_linear_projection)
      continue;
    o.attention_head_dim = one.attention_head_dim, o.upcast_attention = one.upcast_attention;
    return true;
  }
  return false;
}

// One embedding is there beside the time's. Numbers that are mapped are a pooled text and sizes where the text is
// SDXL's or its refiner's, as diffusers takes them; a recipe may say otherwise.
void read_label(const ForeignShapes& file, Said& said) {
  auto& o = said.options;
  if (file.has("label_emb.weight")) {
    o.num_class_embeds = file.size("label_emb.weight", 0, most::kClasses);
    said.names.emplace_back("num_class_embeds");
  }
  const std::string numbers = "label_emb.0.0.weight";
  if (!file.has(numbers)) return;
  o.projection_class_embeddings_input_dim = file.size(numbers, 1, most::kWidth);
  const bool is_xl = said.text == 2048 || said.text == 1280;
  (is_xl ? o.addition_embed_type : o.class_embed_type) = is_xl ? Options::kTextTime : Options::kProjection;
}

Said of_tensors(const ForeignShapes& file) {
  Said said{
      {},
      {"block_out_channels", "down_block_types", "up_block_types", "layers_per_block", "transformer_layers_per_block",
       "only_cross_attention", "use_linear_projection", "resnet_time_scale_shift"}};
  auto& o = said.options;
  said.channels = file.size("input_blocks.0.0.weight", 1, most::kNumbers);
  said.out_channels = file.size("out.2.weight", 0, most::kNumbers);
  std::vector<int64_t> layers, transformers;
  read_down(file, said, layers, transformers);
  if (layers.empty())
    ditto::refuse_tensor(file, "input_blocks.1.0.in_layers.2.weight", "is missing: it is no UNet of Stable Diffusion");
  const std::string middle = "middle_block.1.", projection = middle + "proj_in.weight";
  transformers.back() = transformer_layers(file, middle);
  said.text = file.size(middle + "transformer_blocks.0.attn2.to_k.weight", 1, most::kWidth);
  (void)file.size(projection, 1, most::kWidth);
  o.use_linear_projection = file.tensors.at(projection).size() == 2;
  o.up_block_types.clear();
  for (int64_t level = o.levels() - 1, n = 0; level >= 0; n += layers[static_cast<size_t>(level--)] + 1)
    o.up_block_types.emplace_back(file.has(block("output", n, "1.proj_in.weight")) ? Options::kUpText : Options::kUp);
  if (file.size("input_blocks.1.0.emb_layers.1.weight", 0, most::kWidth) == 2 * o.channels(0))
    o.resnet_time_scale_shift = Options::kScaleShift;
  o.layers_per_block = shortest(layers), o.transformer_layers_per_block = shortest(transformers);
  o.only_cross_attention = shortest(o.only_cross_attention);
  read_label(file, said);
  // A map of a text as wide as the channels is as one of the channels.
  for (size_t level = 0; level < o.block_out_channels.size(); ++level) {
    const bool sees_text = o.down_block_types[level] == Options::kDownText ||
                           o.up_block_types[o.block_out_channels.size() - 1 - level] == Options::kUpText;
    if (sees_text && o.block_out_channels[level] == said.text) said.only_text = false;
  }
  if (!said.only_text) std::erase(said.names, "only_cross_attention");
  for (const int64_t channels : o.block_out_channels) o.norm_num_groups = std::gcd(o.norm_num_groups, channels);
  said.heads = said.groups = take_published(said);
  if (!said.heads) o.attention_head_dim = {1};
  return said;
}

// What a recipe has to say, as the file does not.
void require_said(const ditto::OptionReader& reader, const ForeignShapes& file, const char* name,
                  const std::string& example) {
  const auto& declared = reader.declared();
  const bool is_said = std::any_of(declared.begin(), declared.end(), [&](const ditto::OptionInfo& info) {
    return info.given && (info.name == name || info.name == "preset");
  });
  if (!is_said)
    reader.reject(name, "is not said, and " + file.file + " does not say it",
                  std::string("add it to the recipe, or --set model.") + name + "=" + example);
}

// Sides that the configuration says, one or two; none: a sample's own.
std::vector<int64_t> picture_of(const ForeignShapes& file, int64_t channels) {
  const auto said = file.config.find("sample_size");
  if (file.format != kDiffusers || said == file.config.end()) return {channels, ditto::kOwnSide, ditto::kOwnSide};
  if (std::holds_alternative<std::vector<int64_t>>(said->second)) {
    const auto sides = file.numbers("sample_size", 2, most::kSide);
    return {channels, sides[0], sides[1]};
  }
  const int64_t side = file.number("sample_size", most::kSide);
  return {channels, side, side};
}

}  // namespace

std::vector<std::string> formats(const Options& options) {
  return ditto::formats_of(known_formats(), [&](const auto& format) { return not_theirs(format, options); });
}

ditto::ForeignFormat names(const ditto::Units& model, const Options& o, const ditto::ModelNeeds& needs,
                           const std::string& format) {
  ditto::require_format(format, known_formats(), [&](const auto& one) { return not_theirs(one, o); });
  const auto places = places_of(o);
  int64_t layers = 0, outputs = 0;
  for (const auto& place : places) layers = std::max(layers, place.layers), outputs += place.takes >= 0 ? 1 : 0;
  ditto::ForeignNames n(model, parts_of(format, layers));
  n.layers("", "", ends_of(format, o));
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& place = places[i];
    const std::string ours = "blocks." + std::to_string(i) + ".", attention = ours + "attention.";
    n.layers(ours, "", layers_of(format, place, outputs));
    if (place.heads == 0) continue;
    const int64_t C = place.out;
    n.rows(attention + "layer#.mlp.gate_up", ditto::foreign_rows({{4 * C, 4 * C}, {0, 4 * C}}));  // the gate is last
    if (o.use_linear_projection) continue;
    for (const char* map : {"proj_in", "proj_out"}) n.shape(attention + map, {C, C, 1, 1});
  }
  if (format == kLdm)
    n.format.prefix = kDenoiser;
  else
    n.format.config = config_of(o, needs);
  return n.format;
}

ditto::ModelNeeds needs_of(ditto::OptionReader& reader, const ForeignShapes& file) {
  ditto::require_format(file.format, known_formats());
  const auto said = file.format == kLdm ? of_tensors(file) : of_config(file);
  Options o = said.options;
  ditto::read_over(o, reader, file, said.names);
  if (!said.heads) require_said(reader, file, "attention_head_dim", "[N]");
  if (!said.only_text) require_said(reader, file, "only_cross_attention", "[0]");
  if (!said.groups) require_said(reader, file, "norm_num_groups", "N");
  auto made = ditto::foreign_needs_of(picture_of(file, said.channels), said.out_channels);
  ditto::offer_text(made, said.text, o.text.null == "empty");
  if (o.num_class_embeds > 0) made.inputs.push_back({"label", torch::kLong, {}, "", o.num_class_embeds});
  if (o.class_embed_type == Options::kTimestep) made.inputs.push_back({"label", torch::kFloat, {}, ""});
  if (o.class_embed_type == Options::kIdentity) made.inputs.push_back({"label", torch::kFloat, {o.time_width()}, ""});
  const int64_t numbers = o.projection_class_embeddings_input_dim;
  if (o.class_embed_type == Options::kProjection) made.inputs.push_back({"label", torch::kFloat, {numbers}, ""});
  if (!o.has_text_time()) return made;
  // SDXL's refiner has one text encoder, whose width both texts have, and five numbers beside them.
  constexpr int64_t kOfRefiner = 5;
  const bool is_refiner = numbers == said.text + kOfRefiner * o.addition_time_embed_dim;
  const int64_t pooled = is_refiner ? said.text : numbers - kWholePicture * o.addition_time_embed_dim;
  if (pooled < 1)
    throw Error(ErrorKind::checkpoint, file.config_file.empty() ? file.file : file.config_file,
                "maps " + std::to_string(numbers) + " numbers, no pooled text beside six time_ids of " +
                    std::to_string(o.addition_time_embed_dim) + " features",
                "choose another file");
  made.inputs.push_back({"text_pooled", torch::kFloat, {pooled}, ""});
  if (is_refiner) made.inputs.push_back({"time_ids", torch::kFloat, {kOfRefiner}, ""});
  if (o.text.null == "empty") made.inputs.push_back({"text_pooled_empty", torch::kFloat, {pooled}, ""});
  return made;
}

}  // namespace unet_sd
