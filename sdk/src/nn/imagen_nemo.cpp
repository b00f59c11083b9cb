// Imagen's UNets in NeMo's files.
#include <algorithm>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/imagen.h>

namespace ditto {

namespace {

constexpr const char* kEnds =
    "time.weights=time_embed.0.weights time.in=time_embed.1 time.out=time_embed.3 "
    "low_time.weights=lowres_time_embed.0.weights low_time.in=lowres_time_embed.1 low_time.out=lowres_time_embed.3 "
    "text.pool=attention_pooling.0.W text.pool_norm=attention_pooling.1 text.pool_out=attention_pooling.2 "
    "text.to_context=text_to_cond text.norm=to_text_non_attn_cond.0 text.in=to_text_non_attn_cond.1 "
    "text.out=to_text_non_attn_cond.3 text.null=null_text_embedding";
constexpr const char* kOneTime = "time_embed.1.weight";

std::string attention_names(const std::string& type) {
  const std::string keys = type == "cross" ? "kv_text=kv" : "kv_text=kv_context";
  return "norm=norm norm_text=norm_context norm_self=norm_self qkv=qkv q=q " + keys + " kv_self=kv_self proj=proj_out";
}

// Rows of gate and values, which stand the other way round there.
std::vector<int64_t> swapped(int64_t rows) { return foreign_rows({{rows / 2, rows / 2}, {0, rows / 2}}); }

}  // namespace

std::vector<std::string> ImagenUNet::foreign_formats() const {
  return formats_of({"nemo"}, [&](const auto&) { return not_theirs(); });
}

// Why no model of theirs is this one; empty: one is.
std::string ImagenUNet::not_theirs() const {
  if (needs_.out_channels != x_[0]) return "predicts as many channels as there are, and this model others";
  return seen_.is_seen || options_.feature_pooling_type == "mean"
             ? ""
             : "maps texts for attention to them (text_to_cond), and in this model nothing attends to them";
}

// nemo/collections/multimodal/modules/imagen/diffusionmodules/nets.py, as imagen.py's models hold it.
ForeignFormat ImagenUNet::foreign(const std::string& format) const {
  require_format(format, {"nemo"}, [&](const auto&) { return not_theirs(); });
  ForeignNames n(*this);
  const std::string unet = kNemo;
  n.layers("", unet, kEnds);
  n.layers("", unet, their_ends());
  for (size_t i = 0; i < theirs_.size(); ++i) {
    const auto ours = "blocks." + std::to_string(i) + ".";
    const auto& theirs = theirs_[i];
    n.layers(ours + "residual.", unet + theirs.residual + ".", their_residual());
    n.layers(ours + "resized.", unet + theirs.sides + ".", their_residual());
    n.layers(ours, unet + theirs.sides, "down= up=");
    if (theirs.attention.empty()) continue;
    const auto own = ours + "attention.", its = unet + theirs.attention + ".";
    if (options_.attention_type != "stacked") {
      n.layers(own, its, attention_names(options_.attention_type));
      continue;
    }
    n.layers(own, its, "norm=norm in=proj_in out=proj_out ff_norm=ff.norm ff.gate_up=ff.net.0.proj ff.down=ff.net.2");
    n.layers(own + "self.", its + "self_attention_block.", attention_names("self"));
    n.layers(own + "cross.", its + "cross_attention_block.", attention_names("cross"));
  }
  // Attention's maps are convolutions of lines there, with a kernel of one place.
  const auto parameters = named_parameters();
  const auto is_of = [](const std::string& name, const char* layer) {
    return name.find(std::string(".") + layer + ".weight") != std::string::npos &&
           name.find(".attention.") != std::string::npos;
  };
  for (auto& tensor : n.format.tensors) {
    const auto shape = parameters[tensor.ours].sizes().vec();
    for (const char* layer : {"qkv", "q", "kv_text", "kv_self", "proj"})
      if (is_of(tensor.ours, layer)) tensor.shape = {shape[0], shape[1], 1};
    if (tensor.ours.find(".ff.gate_up.") != std::string::npos) tensor.rows = swapped(shape[0]);
    if (tensor.ours == "text.null") tensor.shape = {1, 1, shape[0]};
  }
  if (const auto copy = their_copy(); !copy.empty())
    for (const char* end : {".weight", ".bias"})
      for (const auto& tensor : n.format.tensors)
        if (tensor.ours == std::string("in") + end) n.format.copies[unet + copy + end] = tensor.theirs.at(0);
  // A UNet that torch.compile has wrapped when it was saved.
  const auto compiled = [&](const std::string& name) {
    n.format.former[name] = kNemoCompiled + name.substr(unet.size());
  };
  for (const auto& tensor : n.format.tensors) compiled(tensor.theirs.at(0));
  for (const auto& [copy, original] : n.format.copies) compiled(copy);
  return n.format;
}

ForeignShapes nemo_unet(const ForeignShapes& file) {
  ForeignShapes unet = file;
  std::string before;
  bool is_known = false;
  for (const auto& [name, shape] : file.tensors)
    if (name.ends_with(kOneTime) && !name.ends_with(std::string("lowres_") + kOneTime))
      before = name.substr(0, name.size() - std::string(kOneTime).size()), is_known = true;
  if (!is_known)
    throw Error(ErrorKind::checkpoint, file.file, std::string("has no UNet of NeMo's: no tensor '") + kOneTime + "'",
                "choose another format, or another file");
  unet.tensors.clear();
  for (const auto& [name, shape] : file.tensors)
    if (name.starts_with(before)) unet.tensors[name.substr(before.size())] = shape;
  return unet;
}

void require_nemo_unet(const ForeignShapes& unet, const std::string& tensor, const std::string& model,
                       const std::string& other) {
  if (unet.has(tensor)) return;
  throw Error(ErrorKind::checkpoint, unet.file,
              "is no \"" + model + "\": it has no '" + tensor + "', as NeMo's other UNet has none",
              "choose model.plugin = \"" + other + "\", or another file");
}

void read_nemo_unet(const ForeignShapes& unet, ImagenOptions& o) {
  const int64_t width = unet.size(kOneTime, 0, most::kWidth);
  if (width % 4 != 0) refuse_tensor(unet, kOneTime, "makes a vector of a width that is no multiple of 4");
  o.embed_dim = width / 4;
  const bool is_learned = unet.has("time_embed.0.weights");
  o.learned_sinu_pos_emb_dim = is_learned ? 2 * unet.size("time_embed.0.weights", 0, most::kWidth) : 0;
  o.feature_pooling_type = unet.has("attention_pooling.0.W.weight") ? "attention" : "mean";
  o.use_null_token = unet.has("null_text_embedding");
  o.noise_cond_aug = unet.has("lowres_time_embed.1.weight");
  const auto some = [&](const std::string& part) {
    return std::any_of(unet.tensors.begin(), unet.tensors.end(),
                       [&](const auto& tensor) { return tensor.first.find(part) != std::string::npos; });
  };
  o.attention_type = some(".self_attention_block.") ? "stacked"
                     : some(".kv_context.")         ? "fused"
                     : some(".kv.")                 ? "cross"
                                                    : "self";
}

ModelNeeds nemo_unet_needs(const ForeignShapes& unet, const ImagenOptions& options, int64_t channels) {
  const std::vector<int64_t> picture{channels, kOwnSide, kOwnSide};
  auto made = foreign_needs_of(picture, channels);
  offer_text(made, unet.size("text_to_cond.weight", 1, most::kWidth), /*and_empty=*/false);
  if (options.low_res_cond) made.inputs.push_back({"low", torch::kFloat, picture, ""});
  if (options.noise_cond_aug) made.inputs.push_back({"low_t", torch::kFloat, {}, ""});
  return made;
}

}  // namespace ditto
