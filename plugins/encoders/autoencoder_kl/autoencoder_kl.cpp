// Pictures to an autoencoder's latents, and back: R. Rombach et al., 2021 (arXiv:2112.10752), as diffusers'
// AutoencoderKL, of which every function here is. What is kept of a picture are its moments; a draw of them, and the
// scale that a diffusion model learns them in, are made at every step.
//
// Legend: B samples, C channels of a picture, Z of a latent, H rows, W columns.
#include <ditto/ditto.h>
#include <ditto/encoder.h>
#include <ditto/exchange/autoencoder_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/autoencoder.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace {

using ditto::AutoencoderSize;
using ditto::Batch;
using ditto::Context;
using ditto::Unit;
using torch::Tensor;

constexpr const char *kImage = "image", *kClean = "clean", *kMoments = "clean_moments";
constexpr const char* kPlace = "encoder \"autoencoder_kl\"";

struct Published {
  double scale, shift;
  bool upcast;
};
const std::map<std::string, Published>& published() {
  static const std::map<std::string, Published> all{{AutoencoderSize::kSd, {0.18215, 0, false}},
                                                    {AutoencoderSize::kSdxl, {0.13025, 0, true}},
                                                    {AutoencoderSize::kSd3, {1.5305, 0.0609, true}},
                                                    {AutoencoderSize::kFlux, {0.3611, 0.1159, true}}};
  return all;
}

struct EncoderOptions : AutoencoderSize {
  double scale = 1, shift = 0;
  std::vector<double> mean, std;
  std::string draw = "posterior";
  int64_t tile = 0;
  double overlap = 0.25;
  bool slice = false, upcast = false;

  void read(ditto::OptionReader& option) {
    AutoencoderSize::read(option);
    if (const auto one = published().find(preset); one != published().end())
      scale = one->second.scale, shift = one->second.shift, upcast = one->second.upcast;
    option("scale", scale, "clean = (latent - shift) * scale").above(0.0);
    option("shift", shift, "see scale");
    option("mean", mean, "of each channel, in the place of shift: clean = (latent - mean) / std * scale");
    option("std", std, "of each channel, see mean");
    option("draw", draw, "the latent: a draw from its Gaussian at every step, by the sample, or the Gaussian's mean")
        .one_of({"posterior", "mean"});
    option("tile", tile,
           "pixels of a tile's side: larger pictures are encoded and decoded in tiles, which is another function; 0: "
           "as a whole")
        .between(0, ditto::most::kSide);
    option("overlap", overlap, "the share of a tile that lies in the next one too, where the seam is blended")
        .between(0.0, 0.5);
    option("slice", slice, "one picture at a time goes through a layer, for less memory").changes(ditto::Effect::bits);
    option("upcast", upcast, "computes in fp32 whatever the precision; SDXL's overflows in fp16")
        .changes(ditto::Effect::bits);
    option.only_if(tile > 0, {"overlap"}, "is of tiles, and tile is 0");
    check(option);
  }

 private:
  void check(const ditto::OptionReader& option) const {
    const auto channels = static_cast<size_t>(latent);
    const bool is_sound = std::all_of(std.begin(), std.end(), [](double one) { return one > 0; });
    if (mean.size() != std.size() || (!mean.empty() && mean.size() != channels) || !is_sound)
      option.reject("mean",
                    "and std have " + std::to_string(mean.size()) + " and " + std::to_string(std.size()) +
                        " numbers, of " + std::to_string(latent) + " channels",
                    "give both one number for each channel, those of std above 0, or leave both out");
    if (!mean.empty() && shift != 0)
      option.reject("shift", "is of all channels, and mean is of each", "leave one of them out");
    const double shared = static_cast<double>(tile) * overlap;
    if (tile % factor() != 0 ||
        std::abs(shared / static_cast<double>(factor()) - std::round(shared / static_cast<double>(factor()))) > 1e-9)
      option.reject("tile",
                    "= " + std::to_string(tile) + " with overlap = " + ditto::to_text(ditto::OptionValue(overlap)) +
                        " cuts latents of " + std::to_string(factor()) + " pixels' side",
                    "choose a tile and an overlap of it that are multiples of " + std::to_string(factor()));
  }
};

std::vector<double> reals(const ditto::ForeignShapes& file, const char* key) {
  const auto found = file.config.find(key);
  if (found == file.config.end()) return {};
  if (const auto* list = std::get_if<std::vector<double>>(&found->second)) return *list;
  if (const auto* list = std::get_if<std::vector<int64_t>>(&found->second)) return {list->begin(), list->end()};
  throw ditto::Error(ditto::ErrorKind::checkpoint, file.config_file,
                     "\"" + std::string(key) + "\" is " + ditto::to_text(found->second), "expected a list of numbers");
}

// Layers compute in fp32 meanwhile, where they would in fewer bits.
class Upcast {
 public:
  Upcast(Context& ctx, bool applies) : ctx_(ctx), before_(ctx.compute) {
    if (applies && before_ != torch::kDouble) ctx_.compute = torch::kFloat;
  }
  ~Upcast() { ctx_.compute = before_; }
  Upcast(const Upcast&) = delete;
  Upcast& operator=(const Upcast&) = delete;

 private:
  Context& ctx_;
  const at::ScalarType before_;
};

at::ScalarType wide(at::ScalarType compute) { return compute == torch::kDouble ? torch::kDouble : torch::kFloat; }

struct AutoencoderKl final : ditto::Encoder {
  using Options = EncoderOptions;

  AutoencoderKl(const Options& o, const Needs& needs) : options(o), image(image_of(needs.inputs)) {
    latent_shape = options.latents(image.shape, kPlace);
    for (int64_t i = 0; i < options.blocks(); ++i)
      blocks.push_back(add_block<ditto::AutoencoderBlock>(i, options, image.shape[0], i));
  }

  ditto::TensorSpecs takes() const override { return {image}; }
  ditto::TensorSpecs caches() const override {
    auto shape = latent_shape;
    shape[0] *= 2;
    return {{kMoments, torch::kFloat, shape, "mean, and logarithm of the variance in -30 … 20"}};
  }
  ditto::TensorSpecs makes() const override { return {{kClean, torch::kFloat, latent_shape, "any"}}; }

  Batch precompute(Batch batch, Context& ctx) const override {
    const auto& pictures = batch.at(kImage);
    (void)options.latents(pictures.sizes().slice(1), kPlace);  // of sides that are a sample's own
    const auto moments = through(pictures, 0, options.middle() + 1,
                                 ditto::Tiles::of_pictures(options.tile, options.overlap, options.factor()), ctx);
    batch[kMoments] = ditto::LatentMoments::of(moments).together();
    return batch;
  }

  Batch encode(Batch batch, Context& ctx) const override {
    const auto moments = ditto::LatentMoments::of(batch.at(kMoments));
    auto latent = moments.mean;
    if (options.draw == "posterior") {
      const auto noise =
          ctx.random.normal(ditto::Purpose::encoding, batch.ids, latent.sizes().slice(1), latent.scalar_type());
      latent = moments.drawn(noise.to(latent.device()));
    }
    batch[kClean] = (latent - offset(latent)) * factor(latent);
    return batch;
  }

  bool decodes() const override { return true; }
  Tensor decode(const Tensor& clean, Context& ctx) const override {
    const auto latent = clean.to(wide(ctx.compute));
    return through(latent / factor(latent) + offset(latent), options.middle() + 1, options.blocks(),
                   ditto::Tiles::of_latents(options.tile, options.overlap, options.factor()), ctx);
  }
  std::vector<int64_t> decoded(const std::vector<int64_t>& clean) const override {
    if (clean.size() != 3 || clean[0] != options.latent)
      throw ditto::Error(ditto::ErrorKind::shape, kPlace,
                         "decodes latents of " + std::to_string(options.latent) + " channels, and these are " +
                             ditto::to_text(ditto::OptionValue(clean)),
                         "decode latents [Z, H, W] of this autoencoder");
    return {image.shape[0], clean[1] * options.factor(), clean[2] * options.factor()};
  }

  std::string fingerprint() const override {
    std::string text = "autoencoder_kl 1";
    const auto add = [&](const char* name, const ditto::OptionValue& value) {
      text += ", " + std::string(name) + " " + ditto::to_text(value);
    };
    add("channels", options.channels), add("layers", options.layers), add("latent", options.latent);
    add("groups", options.groups), add("middle_attention", options.middle_attention), add("quant", options.quant);
    add("tile", options.tile);
    if (options.tile > 0) add("overlap", options.overlap);
    add("upcast", options.upcast);
    return text;
  }

  std::vector<std::string> foreign_formats() const override { return ditto::autoencoder_formats(); }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    return ditto::autoencoder_names(*this, options, image.shape[0], 0, format);
  }
  static std::vector<std::string> foreign_classes() { return ditto::autoencoder_classes(); }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::ForeignAutoencoder of(file);
    Options o;
    static_cast<AutoencoderSize&>(o) = of.size;
    const bool has_class = file.config.count("_class_name") != 0;
    const auto take = [&](const char* key, const char* option, double& value) {
      if (file.config.count(key) == 0) return;
      value = ditto::real_of(file, key);
      of.options.emplace_back(option);
    };
    if (has_class) {  // the class's own, where the file says none or null
      o.scale = 0.18215;
      of.options.insert(of.options.end(), {"scale", "shift", "mean", "std"});
    }
    take("scaling_factor", "scale", o.scale);
    take("shift_factor", "shift", o.shift);
    o.mean = reals(file, "latents_mean"), o.std = reals(file, "latents_std");
    if (!o.mean.empty()) of.options.insert(of.options.end(), {"mean", "std"});
    require_scaling(file, o);
    if (const auto upcast = file.config.find("force_upcast"); upcast != file.config.end())
      if (const auto* said = std::get_if<bool>(&upcast->second)) o.upcast = *said;  // a recipe may say otherwise
    ditto::read_over(o, reader, file, of.options);
    of.require_groups(reader, file);
    require_scale(reader, file, has_class);
    return {};
  }

 private:
  static void require_scaling(const ditto::ForeignShapes& file, const Options& o) {
    const auto refuse = [&](const std::string& what) {
      throw ditto::Error(ditto::ErrorKind::checkpoint, file.config_file, what, "take the config.json of this model");
    };
    if (!(o.scale > 0))
      refuse("\"scaling_factor\" is " + ditto::to_text(ditto::OptionValue(o.scale)) + ", and it is above 0");
    const auto count = static_cast<size_t>(o.latent);
    if (o.mean.empty() && o.std.empty()) return;
    if (o.mean.size() != count || o.std.size() != count ||
        std::any_of(o.std.begin(), o.std.end(), [](double one) { return !(one > 0); }))
      refuse("\"latents_mean\" and \"latents_std\" have " + std::to_string(o.mean.size()) + " and " +
             std::to_string(o.std.size()) + " numbers, of " + std::to_string(count) +
             " channels, and those of the latter are above 0");
    if (o.shift != 0) refuse("says \"shift_factor\" and \"latents_mean\", of which one is in the other's place");
  }

  static ditto::TensorSpec image_of(const ditto::TensorSpecs& inputs) {
    if (const auto* image = ditto::find(inputs, kImage)) return *image;
    std::string there;
    for (const auto& input : inputs) there += (there.empty() ? "" : ", ") + input.name;
    throw ditto::Error(ditto::ErrorKind::config, kPlace,
                       "there is no \"image\" to be encoded, only: " + (there.empty() ? "nothing" : there),
                       "choose data with pictures, or another encoder");
  }

  // Latents in another scale than the diffusion model's are not seen to be wrong.
  static void require_scale(const ditto::OptionReader& reader, const ditto::ForeignShapes& file, bool has_class) {
    const auto& list = reader.declared();
    const bool is_said = has_class || std::any_of(list.begin(), list.end(), [](const ditto::OptionInfo& option) {
                           return option.given && (option.name == "scale" || option.name == "preset");
                         });
    if (!is_said)
      reader.reject("scale", "is said by nobody: " + file.file + " has no config.json beside it",
                    "set scale, or the preset that the weights are of; 1 leaves latents as they are");
  }

  // Each unit is entered once, whatever the number of tiles: ranks that share its weights may have other pictures.
  Tensor through(const Tensor& x, int64_t first, int64_t last, const ditto::Tiles& by, Context& ctx) const {
    const Upcast upcast(ctx, options.upcast);
    const bool is_cut = options.tile > 0 && by.cut(x);
    auto pieces = is_cut ? by.tiles(x) : std::vector<Tensor>{x};
    for (int64_t i = first; i < last; ++i)
      ctx.in_unit({Unit::Kind::block, i}, [&] {
        for (auto& piece : pieces) piece = through(i, piece, ctx);
        return pieces.front();
      });
    for (auto& piece : pieces) piece = piece.to(wide(ctx.compute));
    return is_cut ? by.joined(std::move(pieces), by.rows(x)) : pieces.front();
  }
  Tensor through(int64_t block, const Tensor& x, Context& ctx) const {
    auto& layers = *blocks[static_cast<size_t>(block)];
    if (!options.slice || x.size(0) < 2) return layers.forward(x, ctx);
    std::vector<Tensor> made;
    for (const auto& one : x.split(1)) made.push_back(layers.forward(one, ctx));
    return torch::cat(made);
  }

  // [Z, 1, 1], or one number for all: clean = (latent - offset) * factor.
  Tensor offset(const Tensor& like) const { return of_channels(options.mean, options.shift, like); }
  Tensor factor(const Tensor& like) const {
    auto factors = options.std;
    for (double& one : factors) one = options.scale / one;
    return of_channels(factors, options.scale, like);
  }
  static Tensor of_channels(const std::vector<double>& each, double all, const Tensor& like) {
    const auto numbers = torch::tensor(each.empty() ? std::vector<double>{all} : each, torch::kDouble);
    return numbers.view({-1, 1, 1}).to(like.device(), like.scalar_type());
  }

  Options options;
  ditto::TensorSpec image;
  std::vector<int64_t> latent_shape;  // [Z, H, W]
  std::vector<std::shared_ptr<ditto::AutoencoderBlock>> blocks;
};

}  // namespace

DITTO_PLUGIN(Encoder, AutoencoderKl, "autoencoder_kl", "1.0.0", "Apache-2.0",
             "latents of pictures, and back: Stable Diffusion's, SDXL's, SD3's and Flux.1's autoencoders")
