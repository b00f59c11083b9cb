// Imagen's Efficient UNet, which enlarges pictures (C. Saharia et al., 2022, arXiv:2205.11487, B.1), as NeMo's
// EfficientUNetModel has it: sides change before the blocks of a level on the way down and behind them on the way up,
// skips are added, and there is no norm before the last map.
#include <algorithm>
#include <cmath>

#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/imagen.h>

namespace {

using ditto::Context;
using ditto::ConvShape;
using ditto::Error;
using ditto::ErrorKind;
using ditto::ImagenBlockShape;
using ditto::Unit;
using torch::Tensor;

constexpr int64_t kKernel = 4;  // of what changes the sides, with a padding of 1

struct EfficientOptions : ditto::ImagenOptions {
  std::vector<int64_t> atnn_enabled_at{0, 0, 0, 0, 1}, num_resblocks{1, 2, 4, 8, 8};
  int64_t stride = 2;
  bool skip_connection_scaling = false;

  EfficientOptions() {
    channel_mult = {1, 1, 2, 4, 8};
    num_attn_heads = 8;
    low_res_cond = true;
  }

  bool attends(size_t level) const { return atnn_enabled_at.at(level) != 0; }
  // Whether a map's places see the text.
  bool sees_text() const {
    return attention_type != "self" && std::count(atnn_enabled_at.begin(), atnn_enabled_at.end(), 1) > 0;
  }

  void read(ditto::OptionReader& option) {
    option("preset", preset, "one of NeMo's; the options below override its parts")
        .one_of({"", "600m_res_256", "400m_res_1024"});
    if (!preset.empty()) *this = published(preset);
    option("low_res_cond", low_res_cond,
           "takes a smaller picture, low, which is enlarged and put beside the noisy one; NeMo's always does");
    ImagenOptions::read(option);
    option("atnn_enabled_at", atnn_enabled_at, "of each level 1 where its maps attend, behind its last block; else 0");
    option("num_resblocks", num_resblocks, "residual blocks of each level, on either way");
    option("stride", stride, "places of a side that become one from level to level").between(1, ditto::most::kPatch);
    option("skip_connection_scaling", skip_connection_scaling,
           "the way past a residual block is divided by the root of 2");
    const auto check = [&](const char* name, const std::vector<int64_t>& numbers, int64_t least, int64_t most) {
      const auto is_sound = [&](int64_t number) { return number >= least && number <= most; };
      if (numbers.size() == levels() && std::all_of(numbers.begin(), numbers.end(), is_sound)) return;
      option.reject(name, "is " + ditto::to_text(ditto::OptionValue(numbers)),
                    "give each of the " + std::to_string(levels()) + " levels of channel_mult a number from " +
                        std::to_string(least) + " to " + std::to_string(most));
    };
    check("atnn_enabled_at", atnn_enabled_at, 0, 1);
    check("num_resblocks", num_resblocks, 1, ditto::most::kBlocks);
  }

 private:
  static EfficientOptions published(const std::string& name) {
    EfficientOptions o;
    o.preset = name;
    o.channel_mult = {1, 2, 4, 8, 8};
    o.atnn_enabled_at = {0, 0, 0, 1, 1}, o.num_resblocks = {2, 4, 8, 8, 8};
    o.learned_sinu_pos_emb_dim = 0;
    o.noise_cond_aug = o.skip_connection_scaling = true;
    if (name == "400m_res_1024") o.attention_type = "cross";
    return o;
  }
};

struct EfficientUNet final : ditto::ImagenUNet {
  using Options = EfficientOptions;

  EfficientUNet(const Options& o, const Needs& given)
      : ditto::ImagenUNet("imagen_efficient_unet", o,
                          {ditto::require_text("imagen_efficient_unet", given), o.sees_text()}, given),
        options(o) {
    const int64_t first = o.channels(0);
    if (o.levels() > 1) down = add<ditto::Conv2d>(Unit::tokens, "down", smaller(first));
    add_blocks();
    check_known_sides();
    out = add<ditto::Conv2d>(Unit::head, "out", ConvShape{first, needs().out_channels, {1}});
  }

  Tensor head(const ditto::Stream& s, Context& ctx) override { return out->forward(s.extra.at("map").tensor, ctx); }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file);

 private:
  ConvShape smaller(int64_t channels) const { return {channels, channels, {kKernel}, {options.stride}, {1}}; }

  void check_sides(const std::vector<int64_t>& sides) const override {
    const auto whole = ditto::to_text(ditto::OptionValue(sides));
    for (int64_t side : sides)
      for (size_t level = 1; level < options.levels(); ++level) {
        if (side < 2 || (side - 2) % options.stride != 0)
          throw Error(ErrorKind::shape, "model \"imagen_efficient_unet\"",
                      "makes maps smaller " + std::to_string(options.levels() - 1) + " times by a stride of " +
                          std::to_string(options.stride) + ", which of pictures of " + whole +
                          " the way up does not undo: on the way down a side of " + std::to_string(side) +
                          " is not 2 more than a multiple of it",
                      "choose other sides, as powers of 2 for stride = 2, or another model.stride");
        side = (side - 2) / options.stride + 1;
      }
  }

  ditto::ResidualShape residual(int64_t in, int64_t channels) const {
    auto shape = ditto::ImagenUNet::residual(in, channels);
    shape.always_maps = true;
    if (options.skip_connection_scaling) shape.past = 1 / std::sqrt(2.0);
    return shape;
  }

  // Blocks of one level on one way; `last` is given the last of them.
  template <class Last>
  void add_level(size_t level, int64_t in, int64_t channels, const char* way, const std::string& takes,
                 const Last& last) {
    const int64_t count = options.num_resblocks[level];
    const auto theirs = way + std::to_string(level);
    for (int64_t i = 0; i < count; ++i) {
      ImagenBlockShape shape{residual(i == 0 ? in : channels, channels)};
      shape.theirs.residual = theirs + ".blocks." + std::to_string(i);
      if (i == 0) shape.takes = takes, shape.adds = true;
      if (i + 1 == count) {
        if (options.attends(level))
          shape.attention = attention(channels), shape.theirs.attention = theirs + ".attention_layer";
        last(shape);
      }
      add_shape(shape);
    }
  }
  void add_blocks() {
    const size_t levels = options.levels();
    const auto before = [&](size_t level) { return options.channels(level == 0 ? 0 : level - 1); };
    for (size_t level = 0; level < levels; ++level)
      add_level(level, before(level), options.channels(level), "DBlocks.", "", [&](ImagenBlockShape& shape) {
        if (level + 1 < levels) shape.leaves = skip(level);
        if (level + 2 >= levels) return;
        shape.down = smaller(options.channels(level));
        shape.theirs.sides = "DBlocks." + std::to_string(level + 1) + ".conv";
      });
    for (size_t level = levels; level-- > 0;)
      add_level(level, options.channels(level), before(level), "UBlocks.", level + 1 < levels ? skip(level) : "",
                [&](ImagenBlockShape& shape) {
                  if (level + 1 == levels) return;
                  shape.up = smaller(before(level));
                  shape.theirs.sides = "UBlocks." + std::to_string(level) + ".conv";
                });
  }

  Tensor entered(const Tensor& map, ditto::Stream&, Context& ctx) const override {
    return down ? down->forward(map, ctx) : map;
  }

  std::string their_ends() const override { return "in=init_conv down=DBlocks.0.conv out=out"; }
  std::string their_residual() const override {
    return "norm1=in_layers.0 conv1=in_layers.2 cond=emb_layers.1 norm2=out_layers.0 conv2=out_layers.2 "
           "past=shortcut";
  }

  Options options;
  std::shared_ptr<ditto::Conv2d> down, out;
};

EfficientUNet::Needs EfficientUNet::foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
  ditto::require_format(file.format, {"nemo"});
  const auto unet = ditto::nemo_unet(file);
  ditto::require_nemo_unet(unet, "init_conv.weight", "imagen_efficient_unet", "imagen_unet");
  Options o;
  ditto::read_nemo_unet(unet, o);
  const int64_t channels = unet.size("out.weight", 0, ditto::most::kNumbers);
  o.low_res_cond = unet.size("init_conv.weight", 1, ditto::most::kNumbers) == 2 * channels;
  o.init_conv_kernel_size = unet.size("init_conv.weight", 2, ditto::most::kPatch);
  const int64_t levels = unet.count("DBlocks.", ".blocks.0.out_layers.0.weight", ditto::most::kBlocks);
  o.channel_mult.clear(), o.num_resblocks.clear(), o.atnn_enabled_at.clear();
  for (int64_t level = 0; level < levels; ++level) {
    const auto theirs = "DBlocks." + std::to_string(level) + ".";
    o.channel_mult.push_back(unet.size(theirs + "blocks.0.out_layers.0.weight", 0, ditto::most::kWidth) / o.embed_dim);
    o.num_resblocks.push_back(unet.count(theirs + "blocks.", ".out_layers.0.weight", ditto::most::kBlocks));
    o.atnn_enabled_at.push_back(unet.has(theirs + "attention_layer.norm.weight") ? 1 : 0);
  }
  const auto of_first = [&](const char* end) {
    return unet.size("DBlocks.0.blocks.0." + std::string(end), 0, ditto::most::kNumbers);
  };
  o.scale_shift_norm = of_first("emb_layers.1.weight") == 2 * of_first("out_layers.0.weight");
  ditto::read_over(o, reader, file,
                   {"embed_dim", "channel_mult", "num_resblocks", "atnn_enabled_at", "attention_type", "low_res_cond",
                    "noise_cond_aug", "feature_pooling_type", "scale_shift_norm", "use_null_token",
                    "learned_sinu_pos_emb_dim", "init_conv_kernel_size"});
  ditto::require_said(reader, file, {"token_length", "skip_connection_scaling"});
  if (o.levels() > 1) ditto::require_said(reader, file, {"stride"});
  const bool attends = std::count(o.atnn_enabled_at.begin(), o.atnn_enabled_at.end(), 1) > 0;
  if (attends) ditto::require_said(reader, file, {"per_head_channels"});
  if (attends && o.per_head_channels < 0) ditto::require_said(reader, file, {"num_attn_heads"});
  return ditto::nemo_unet_needs(unet, o, channels);
}

}  // namespace

DITTO_MODEL_PLUGIN(EfficientUNet, "imagen_efficient_unet", "1.0.0", "Apache-2.0",
                   "Imagen's Efficient UNet, as NeMo has it (C. Saharia et al., 2022)")
