#include <ditto/nn/imagen.h>

#include <algorithm>
#include <utility>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/padded_text.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr size_t kMostLevels = 12;
constexpr const char* kMap = "map";

Tensor& map_of(Stream& s) { return s.extra.at(kMap).tensor; }

}  // namespace

void ImagenOptions::read(OptionReader& option) {
  option("embed_dim", embed_dim, "channels of a map are so many, times its level's number in channel_mult")
      .between(2, most::kWidth);
  option("channel_mult", channel_mult, "of each level, that of the picture's sides first");
  option("num_attn_heads", num_attn_heads,
         "attention heads where per_head_channels = -1; else it does nothing, as in NeMo: heads are the channels "
         "divided by per_head_channels")
      .between(1, most::kHeads);
  option("per_head_channels", per_head_channels, "channels of an attention head, which divide those of its map; or -1")
      .between(-1, most::kWidth);
  option("attention_type", attention_type,
         "what a map's places attend to: \"self\", one another; \"cross\", the text; \"stacked\", one after the "
         "other, and a perceptron behind them; \"fused\", both in one softmax")
      .one_of({"self", "cross", "stacked", "fused"});
  option("feature_pooling_type", feature_pooling_type,
         "how a text becomes one vector, of all its places: by \"attention\", or their \"mean\"")
      .one_of({"attention", "mean"});
  option("learned_sinu_pos_emb_dim", learned_sinu_pos_emb_dim,
         "sines and cosines of learned frequencies that a time becomes; 0: embed_dim of them that are not learned")
      .between(0, most::kWidth);
  option("use_null_token", use_null_token, "a learned token behind each text, which counts always");
  option("init_conv_kernel_size", init_conv_kernel_size, "side of the first convolution's kernel; odd")
      .between(1, most::kPatch);
  option("scale_shift_norm", scale_shift_norm,
         "the conditioning scales and shifts what a block's second norm makes; false: it is added before it");
  option("noise_cond_aug", noise_cond_aug, "the low-resolution picture comes with a time of its own, low_t");
  option("token_length", token_length,
         "places of a text: norms see padding, so that it is a part of the model how many there are")
      .between(1, most::kSide);
  const auto is_sound = [&](int64_t mult) { return mult >= 1 && mult <= most::kWidth / embed_dim; };
  if (channel_mult.empty() || channel_mult.size() > kMostLevels ||
      !std::all_of(channel_mult.begin(), channel_mult.end(), is_sound))
    option.reject("channel_mult", "is " + to_text(OptionValue(channel_mult)),
                  "give 1 to " + std::to_string(kMostLevels) + " numbers of at least 1");
  for (size_t level = 0; level < levels(); ++level)
    if (channels(level) % kImagenGroups != 0)
      option.reject("embed_dim",
                    "= " + std::to_string(embed_dim) + " makes level " + std::to_string(level) + " of " +
                        std::to_string(channels(level)) + " channels, which 32 groups do not divide",
                    "choose multiples of 32");
  if (per_head_channels == 0) option.reject("per_head_channels", "= 0", "give a divisor of the channels, or -1");
  if (embed_dim % 2 != 0 || learned_sinu_pos_emb_dim % 2 != 0)
    option.reject(embed_dim % 2 != 0 ? "embed_dim" : "learned_sinu_pos_emb_dim", "is odd",
                  "choose an even number: half of a time's numbers are sines");
  if (init_conv_kernel_size % 2 == 0)
    option.reject("init_conv_kernel_size",
                  "= " + std::to_string(init_conv_kernel_size) + " changes the picture's sides",
                  "choose an odd number");
  if (noise_cond_aug && !low_res_cond)
    option.reject("noise_cond_aug", "= true is of a low-resolution picture, and low_res_cond is false",
                  "set low_res_cond = true, or noise_cond_aug = false");
}

ImagenBlock::ImagenBlock(const ImagenBlockShape& shape)
    : shape_(shape), residual_(make<MapResidual>("residual", shape.residual)) {
  if (shape.attention) attention_ = make<ImagenAttention>("attention", *shape.attention);
  if (shape.down) down_ = make<Conv2d>("down", *shape.down);
  if (shape.up) up_ = make<ConvTransposed2d>("up", *shape.up);
  if (shape.resized) resized_ = make<MapResidual>("resized", *shape.resized);
}
ImagenBlock::~ImagenBlock() = default;

Stream ImagenBlock::forward(Stream s, Context& ctx) {
  Tensor x = map_of(s);
  if (!shape_.takes.empty()) {
    const auto it = s.extra.find(shape_.takes);
    x = shape_.adds ? x + it->second.tensor : torch::cat({x, it->second.tensor}, 1);
    s.extra.erase(it);
  }
  x = residual_->forward(x, s.condition.cond_BD, ctx, s.ids);
  if (attention_) x = attention_->forward(x, s.condition, ctx);
  if (!shape_.leaves.empty()) s.extra[shape_.leaves] = {x};
  if (down_) x = down_->forward(x, ctx);
  if (up_) x = up_->forward(x, ctx);
  if (resized_) x = resized_->forward(x, s.condition.cond_BD, ctx, s.ids);
  if (shape_.mean) x = downsampled(x, ctx);
  if (!shape_.leaves_after.empty()) s.extra[shape_.leaves_after] = {x};
  map_of(s) = x;
  return s;
}

ImagenUNet::ImagenUNet(const std::string& name, const ImagenOptions& o, const Text& seen, const Needs& needs)
    : name_(name), options_(o), seen_(seen), needs_(needs), x_(needs.shape("x")) {
  const auto refuse = [&](const std::string& found, const std::string& remedy) {
    throw Error(ErrorKind::config, "model \"" + name + "\"", found, remedy);
  };
  const int64_t text = require_text(name, needs), places = needs.shape("text").at(0);
  if (x_.size() != 3) refuse("takes pictures [C, H, W], and these are " + c10::str(x_), "choose such data");
  if (seen.is_seen && seen.context % kImagenGroups != 0)
    refuse("norms texts of width " + std::to_string(seen.context) + ", which 32 groups do not divide",
           "choose a multiple of 32");
  if (o.use_null_token && !seen.is_seen)
    refuse("has a null token (use_null_token) behind texts that nothing attends to",
           "leave it out, or choose an attention_type that sees the text");
  if (places > o.token_length)
    refuse("is of texts of " + std::to_string(o.token_length) + " places (token_length), and the data's have " +
               std::to_string(places),
           "cut the texts, or set token_length higher");
  if (o.low_res_cond)
    if (const auto& low = needs.shape("low"); low.size() != 3 || low[0] != x_[0])
      refuse("puts \"low\" beside x " + c10::str(x_) + ", and it is " + c10::str(low),
             "give a smaller picture of as many channels");
  const auto time = [&](const char* part) {
    return add<ImagenTime>(Unit::condition, part, o.learned_sinu_pos_emb_dim, o.embed_dim, o.width());
  };
  time_ = time("time");
  if (o.noise_cond_aug) low_time_ = time("low_time");
  text_ = add<ImagenText>(Unit::condition, "text",
                          ImagenText::Shape{text, seen.context, o.width(), o.feature_pooling_type == "attention",
                                            seen.is_seen, o.use_null_token});
  in_ = add<Conv2d>(Unit::tokens, "in",
                    ConvShape{(o.low_res_cond ? 2 : 1) * x_[0], o.channels(0), {o.init_conv_kernel_size}});
}
ImagenUNet::~ImagenUNet() = default;

void ImagenUNet::add_shape(const ImagenBlockShape& shape) {
  auto named = shape;
  const auto index = depth();
  named.residual.name = "blocks." + std::to_string(index) + ".residual";
  if (named.resized) named.resized->name = "blocks." + std::to_string(index) + ".resized";
  blocks_.push_back(add_block<ImagenBlock>(index, named));
  theirs_.push_back(shape.theirs);
}

void ImagenUNet::check_known_sides() const {
  const std::vector<int64_t> sides(x_.begin() + 1, x_.end());
  if (std::all_of(sides.begin(), sides.end(), [](int64_t side) { return side > 0; })) check_sides(sides);
}

std::string ImagenUNet::skip(size_t number) { return (number < 10 ? "skip.0" : "skip.") + std::to_string(number); }

ResidualShape ImagenUNet::residual(int64_t in, int64_t out) const {
  ResidualShape shape{in, out, options_.width()};
  shape.groups = kImagenGroups;
  shape.scale_shift = options_.scale_shift_norm;
  return shape;
}

ImagenAttentionShape ImagenUNet::attention(int64_t channels) const {
  const bool by_width = options_.per_head_channels > 0;
  const int64_t by = by_width ? options_.per_head_channels : options_.num_attn_heads;
  if (channels % by != 0)
    throw Error(ErrorKind::config, by_width ? "model.per_head_channels" : "model.num_attn_heads",
                "= " + std::to_string(by) + " does not divide the " + std::to_string(channels) +
                    " channels of a map that attends",
                "choose a divisor of the channels of every level with attention");
  return {options_.attention_type, channels, options_.heads(channels), seen_.context};
}

Conditioning ImagenUNet::condition(const Batch& in, Context& ctx) {
  if (const int64_t found = in.at("text").size(1); found > options_.token_length)
    throw Error(ErrorKind::shape, "text",
                "has " + std::to_string(found) +
                    " places, more than model.token_length = " + std::to_string(options_.token_length),
                "cut the texts, or set token_length higher");
  PaddedText places;
  places.tokens = options_.token_length;
  Batch texts;
  texts["text"] = in.at("text");
  places.mask = seen_.is_seen;
  if (places.mask) texts["text_mask"] = in.at("text_mask");
  texts = places.padded(std::move(texts));
  Conditioning made;
  auto cond_BD = time_->forward(in.at("t"), ctx);
  if (low_time_) cond_BD = cond_BD + low_time_->forward(in.at("low_t"), ctx);
  cond_BD = cond_BD + text_->forward(texts.at("text"), places.mask ? texts.at("text_mask") : Tensor(), made, ctx);
  made.cond_BD = ctx.ops.silu(cond_BD);
  return made;
}

Stream ImagenUNet::tokens(const Batch& in, Context& ctx) {
  Tensor x = in.at("x");
  const std::vector<int64_t> sides{x.size(2), x.size(3)};
  check_sides(sides);
  Stream s;
  s.grid = {1, sides[0], sides[1]};
  if (options_.low_res_cond) {
    const auto low = in.at("low").to(x.scalar_type());
    x = torch::cat({x, low.sizes() == x.sizes() ? low : bicubic(low, ctx, sides)}, 1);
  }
  const auto map = entered(in_->forward(x, ctx), s, ctx);
  s.extra[kMap] = {map};
  return s;
}

Stream ImagenUNet::run_block(int64_t index, Stream s, Context& ctx) {
  return blocks_[static_cast<size_t>(index)]->forward(std::move(s), ctx);
}

TensorSpecs ImagenUNet::takes() const {
  TensorSpecs specs{{"x", torch::kFloat, x_, "noisy picture"},
                    {"t", torch::kFloat, {}, "time, in the scheduler's units"},
                    {"text", torch::kFloat, {-1, needs_.width("text")}, "embeddings of a text's tokens"}};
  if (seen_.is_seen) specs.push_back({"text_mask", torch::kBool, {-1}, "true where there is text"});
  if (options_.low_res_cond) specs.push_back({"low", torch::kFloat, needs_.shape("low"), "a smaller picture"});
  if (options_.noise_cond_aug) specs.push_back({"low_t", torch::kFloat, {}, "the time of its noise"});
  return specs;
}

Batch ImagenUNet::without_condition(Batch in, const Tensor& which_B) const {
  const auto& text_BSE = in.at("text");
  in["text"] = torch::where(which_B.view({-1, 1, 1}), torch::zeros_like(text_BSE), text_BSE);
  return in;
}

// NeMo's files.
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

void require_said(const OptionReader& reader, const ForeignShapes& file, const std::vector<const char*>& names) {
  const auto& declared = reader.declared();
  for (const char* name : names)
    if (std::none_of(declared.begin(), declared.end(), [&](const OptionInfo& info) {
          return info.given && (info.name == name || info.name == "preset");
        }))
      reader.reject(name, "is not said, and " + file.file + " does not say it",
                    std::string("add it to the recipe, or --set model.") + name + "=…, as it was trained with");
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
