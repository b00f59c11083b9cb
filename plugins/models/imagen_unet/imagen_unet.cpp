// Imagen's UNet of the base and the first enlargement (C. Saharia et al., 2022, arXiv:2205.11487), as NeMo's UNetModel
// has it: skips stand beside the map on its way up.
#include <algorithm>

#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/imagen.h>

namespace {

using ditto::Context;
using ditto::ConvShape;
using ditto::Error;
using ditto::ErrorKind;
using ditto::ImagenBlockShape;
using ditto::ResidualShape;
using ditto::Unit;
using torch::Tensor;

struct ImagenUNetOptions : ditto::ImagenOptions {
  int64_t image_size = 0, cond_dim = 512;
  std::vector<int64_t> num_res_blocks{3}, attention_resolutions{8, 16, 32};
  double dropout = 0;
  bool resblock_updown = false, resample_with_conv = true;

  int64_t blocks(size_t level) const {
    return num_res_blocks.size() == 1 ? num_res_blocks[0] : num_res_blocks.at(level);
  }

  void read(ditto::OptionReader& option) {
    const auto sizes = published();
    option("preset", preset, "one of NeMo's; the options below override its parts")
        .one_of({"", "500m_res_64", "2b_res_64", "400m_res_256"});
    for (const auto& size : sizes)
      if (!preset.empty() && size.preset == preset) *this = size;
    option("low_res_cond", low_res_cond,
           "takes a smaller picture, low, which is enlarged and put beside the noisy one");
    ImagenOptions::read(option);
    option("image_size", image_size,
           "side of the pictures that attention_resolutions are told of; 0: the rows of the data's")
        .between(0, ditto::most::kSide);
    option("cond_dim", cond_dim, "width that texts are mapped to").between(1, ditto::most::kWidth);
    option("num_res_blocks", num_res_blocks,
           "residual blocks of each level, on the way down; one number: of every level");
    option("attention_resolutions", attention_resolutions, "rows of the maps that attend, on both ways");
    option("dropout", dropout, "rate at which numbers inside of residual blocks are left out, while training")
        .at_least(0.0);
    option("resblock_updown", resblock_updown, "sides are changed by residual blocks");
    option(
        "resample_with_conv", resample_with_conv,
        "where they are not: halved by a convolution; false: by a mean. Doubled they are by a transposed one anyway");
    if (dropout >= 1)
      option.reject("dropout", "= " + ditto::to_text(ditto::OptionValue(dropout)), "expected a rate below 1");
    if (cond_dim % ditto::kImagenGroups != 0 && attention_type != "self")
      option.reject("cond_dim", "= " + std::to_string(cond_dim) + ", and 32 groups do not divide it",
                    "choose a multiple of 32");
    const auto is_sound = [](int64_t count) { return count >= 1 && count <= ditto::most::kBlocks; };
    if ((num_res_blocks.size() != 1 && num_res_blocks.size() != levels()) ||
        !std::all_of(num_res_blocks.begin(), num_res_blocks.end(), is_sound))
      option.reject("num_res_blocks", "is " + ditto::to_text(ditto::OptionValue(num_res_blocks)),
                    "give one number, or one for each of the " + std::to_string(levels()) + " levels of channel_mult");
  }

 private:
  static std::vector<ImagenUNetOptions> published() {
    ImagenUNetOptions small;
    small.preset = "500m_res_64", small.embed_dim = 256, small.learned_sinu_pos_emb_dim = 0;
    small.image_size = 64;
    auto large = small, enlarging = small;
    large.preset = "2b_res_64", large.embed_dim = 512, large.cond_dim = 2048;
    enlarging.preset = "400m_res_256", enlarging.embed_dim = 128, enlarging.image_size = 256;
    enlarging.channel_mult = {1, 2, 4, 6, 6}, enlarging.num_res_blocks = {2, 2, 3, 4, 3};
    enlarging.attention_resolutions = {16, 32};
    enlarging.low_res_cond = enlarging.noise_cond_aug = true;
    return {small, large, enlarging};
  }
};

struct ImagenUNet final : ditto::ImagenUNet {
  using Options = ImagenUNetOptions;

  ImagenUNet(const Options& o, const Needs& given)
      : ditto::ImagenUNet("imagen_unet", o, {o.cond_dim, o.attention_type != "self"}, given), options(o) {
    attends.assign(o.levels(), false);
    for (const int64_t resolution : o.attention_resolutions) attends[level_of(resolution)] = true;
    add_blocks();
    check_known_sides();
    const int64_t first = o.channels(0);
    norm = add<ditto::GroupNorm>(Unit::head, "norm", ditto::kImagenGroups, first);
    out = add<ditto::Conv2d>(Unit::head, "out", ConvShape{first, needs().out_channels, {o.init_conv_kernel_size}},
                             ditto::Split::none(), ditto::Init::zeros());
  }

  Tensor head(const ditto::Stream& s, Context& ctx) override {
    return out->forward(norm->forward(s.extra.at("map").tensor, ctx, {.silu = true}), ctx);
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file);

 private:
  // NeMo divides the picture's side by the resolution, and looks for a level whose sides are as many times smaller. It
  // drops what is left, so that any number is some level's there: here it is to be a map's rows.
  size_t level_of(int64_t resolution) const {
    const int64_t side = options.image_size > 0 ? options.image_size : x()[1];
    if (side < 1)
      throw Error(ErrorKind::config, "model.image_size", "is not said, nor one side of the data's pictures",
                  "say of which side attention_resolutions are");
    for (size_t level = 0; level < options.levels(); ++level)
      if (resolution >= 1 && side == resolution << level) return level;
    std::string sizes;
    for (size_t level = 0; level < options.levels(); ++level)
      sizes += (level == 0 ? "" : ", ") + std::to_string(side >> level);
    throw Error(ErrorKind::config, "model.attention_resolutions",
                "has " + std::to_string(resolution) + ", and no level has maps of so many rows",
                "choose among " + sizes);
  }

  void check_sides(const std::vector<int64_t>& sides) const override {
    const int64_t factor = int64_t{1} << (options.levels() - 1);
    for (const int64_t side : sides)
      if (side % factor != 0)
        throw Error(ErrorKind::shape, "model \"imagen_unet\"",
                    "halves sides " + std::to_string(options.levels() - 1) + " times, and a picture is of " +
                        ditto::to_text(ditto::OptionValue(sides)),
                    "choose sides that are multiples of " + std::to_string(factor));
  }

  ImagenBlockShape block(int64_t in, int64_t channels, bool is_attending, const std::string& theirs) const {
    ImagenBlockShape shape{dropping(in, channels)};
    shape.theirs.residual = theirs + ".0";
    if (is_attending) shape.attention = attention(channels), shape.theirs.attention = theirs + ".1";
    return shape;
  }
  ResidualShape dropping(int64_t in, int64_t channels) const {
    auto shape = residual(in, channels);
    shape.dropout = options.dropout;
    return shape;
  }
  ResidualShape resized(int64_t channels, ResidualShape::Sides sides) const {
    auto shape = dropping(channels, channels);
    shape.sides = sides;
    return shape;
  }

  // Every block of theirs on the way down leaves a skip, the first convolution too, and each on the way up takes one.
  void add_blocks() {
    const size_t levels = options.levels();
    std::vector<int64_t> skips{options.channels(0)};
    int64_t channels = skips[0];
    const auto input = [&] { return "input_blocks." + std::to_string(skips.size()); };
    for (size_t level = 0; level < levels; ++level)
      for (int64_t i = 0; i < options.blocks(level); ++i) {
        auto shape = block(channels, options.channels(level), attends[level], input());
        channels = options.channels(level);
        shape.leaves = skip(skips.size());
        skips.push_back(channels);
        if (i + 1 == options.blocks(level) && level + 1 < levels) {
          halve(shape, channels, input() + ".0");
          shape.leaves_after = skip(skips.size());
          skips.push_back(channels);
        }
        add_shape(shape);
      }
    add_shape(block(channels, channels, true, "middle_block"));
    ImagenBlockShape last{dropping(channels, channels)};
    last.theirs.residual = "middle_block.2";
    add_shape(last);
    int64_t outputs = 0;
    for (size_t level = levels; level-- > 0;)
      for (int64_t i = 0; i <= options.blocks(level); ++i) {
        const auto theirs = "output_blocks." + std::to_string(outputs++);
        auto shape = block(channels + skips.back(), options.channels(level), attends[level], theirs);
        channels = options.channels(level);
        skips.pop_back();
        shape.takes = skip(skips.size());
        if (i == options.blocks(level) && level > 0) twice(shape, channels, theirs + (attends[level] ? ".2" : ".1"));
        add_shape(shape);
      }
  }
  void halve(ImagenBlockShape& shape, int64_t channels, const std::string& theirs) const {
    shape.theirs.sides = theirs;
    if (options.resblock_updown) {
      shape.resized = resized(channels, ResidualShape::Sides::halved);
    } else if (options.resample_with_conv) {
      shape.down = ConvShape{channels, channels, {3}, {2}, {1}};
      shape.theirs.sides += ".op";
    } else {
      shape.mean = true;
    }
  }
  void twice(ImagenBlockShape& shape, int64_t channels, const std::string& theirs) const {
    shape.theirs.sides = theirs;
    if (options.resblock_updown) {
      shape.resized = resized(channels, ResidualShape::Sides::doubled);
    } else {
      shape.up = ConvShape{channels, channels, {4}, {2}, {1}};
      shape.theirs.sides += ".conv";
    }
  }

  Tensor entered(const Tensor& map, ditto::Stream& s, Context&) const override {
    s.extra[skip(0)] = {map};
    return map;
  }

  std::string their_ends() const override { return "in=init_conv.0 norm=out.0 out=out.2"; }
  std::string their_copy() const override { return "input_blocks.0.0"; }
  std::string their_residual() const override {
    return "norm1=in_layers.0 conv1=in_layers.2 cond=emb_layers.1 norm2=out_layers.0 conv2=out_layers.3 "
           "past=skip_connection twice=h_upd.conv past_twice=x_upd.conv";
  }

  Options options;
  std::vector<bool> attends;  // of each level
  std::shared_ptr<ditto::GroupNorm> norm;
  std::shared_ptr<ditto::Conv2d> out;
};

// Levels are read off the way up, whose last block of each doubles the sides by weights.
ImagenUNet::Needs ImagenUNet::foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
  ditto::require_format(file.format, {"nemo"});
  const auto unet = ditto::nemo_unet(file);
  ditto::require_nemo_unet(unet, "init_conv.0.weight", "imagen_unet", "imagen_efficient_unet");
  Options o;
  ditto::read_nemo_unet(unet, o);
  const int64_t channels = unet.size("out.2.weight", 0, ditto::most::kNumbers);
  o.low_res_cond = unet.size("init_conv.0.weight", 1, ditto::most::kNumbers) == 2 * channels;
  o.init_conv_kernel_size = unet.size("init_conv.0.weight", 2, ditto::most::kPatch);
  o.cond_dim = unet.size("text_to_cond.weight", 0, ditto::most::kWidth);
  o.channel_mult.clear(), o.num_res_blocks.clear();
  const int64_t count = unet.count("output_blocks.", ".0.out_layers.0.weight", ditto::most::kBlocks);
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; ++i, ++blocks) {
    const auto theirs = "output_blocks." + std::to_string(i);
    const auto has = [&](const char* end) { return unet.has(theirs + ".1" + end) || unet.has(theirs + ".2" + end); };
    const bool by_block = has(".h_upd.conv.weight");
    o.resblock_updown = o.resblock_updown || by_block;
    if (!by_block && !has(".conv.weight") && i + 1 < count) continue;
    o.channel_mult.insert(o.channel_mult.begin(),
                          unet.size(theirs + ".0.out_layers.0.weight", 0, ditto::most::kWidth) / o.embed_dim);
    o.num_res_blocks.insert(o.num_res_blocks.begin(), blocks);
    blocks = -1;
  }
  const auto of_first = [&](const char* end) {
    return unet.size("input_blocks.1.0." + std::string(end), 0, ditto::most::kNumbers);
  };
  o.scale_shift_norm = of_first("emb_layers.1.weight") == 2 * of_first("out_layers.0.weight");
  std::vector<std::string> said{"embed_dim",
                                "channel_mult",
                                "cond_dim",
                                "attention_type",
                                "low_res_cond",
                                "noise_cond_aug",
                                "feature_pooling_type",
                                "scale_shift_norm",
                                "use_null_token",
                                "resblock_updown",
                                "learned_sinu_pos_emb_dim",
                                "init_conv_kernel_size"};
  if (!o.resblock_updown && o.levels() > 1) {
    const auto down = "input_blocks." + std::to_string(o.num_res_blocks[0] + 1) + ".0.op.weight";
    o.resample_with_conv = unet.has(down);
    said.emplace_back("resample_with_conv");
  }
  const auto of_file = o;
  ditto::read_over(o, reader, file, said);
  for (size_t level = 0; level < o.levels(); ++level)  // one number of all levels is as good as a list
    if (o.blocks(level) != of_file.blocks(level))
      ditto::refuse_other(reader, file, "num_res_blocks", ditto::OptionValue(o.num_res_blocks),
                          ditto::OptionValue(of_file.num_res_blocks));
  ditto::require_said(reader, file, {"token_length", "per_head_channels", "attention_resolutions"});
  if (o.per_head_channels < 0) ditto::require_said(reader, file, {"num_attn_heads"});
  return ditto::nemo_unet_needs(unet, o, channels);
}

}  // namespace

DITTO_MODEL_PLUGIN(ImagenUNet, "imagen_unet", "1.0.0", "Apache-2.0",
                   "Imagen's UNet, as NeMo has it (C. Saharia et al., 2022)")
