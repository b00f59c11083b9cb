#include <ditto/nn/imagen.h>

#include <algorithm>
#include <utility>

#include <torch/types.h>

#include <ditto/error.h>
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
  if (shape.attention) attention_ = make<MapAttention>("attention", *shape.attention);
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

MapAttentionShape ImagenUNet::attention(int64_t channels) const {
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

}  // namespace ditto
