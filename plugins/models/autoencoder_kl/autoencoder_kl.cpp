// An autoencoder of pictures, to be trained by objective "autoencoder": R. Rombach et al., 2021 (arXiv:2112.10752), as
// diffusers' AutoencoderKL. Its prediction is the picture that it makes of the one it sees; "moments" are those of the
// latents between. The encoder of this name makes latents with what it has learned.
//
// Legend: B samples, C channels of a picture, Z of a latent, H rows, W columns, f pixels of a latent's side.
#include <ditto/ditto.h>
#include <ditto/exchange/autoencoder_names.h>
#include <ditto/nn/autoencoder.h>

#include <algorithm>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

constexpr const char *kMap = "map", *kMoments = "moments";

struct ModelOptions : ditto::AutoencoderSize {
  bool draws = true;

  void read(ditto::OptionReader& option) {
    AutoencoderSize::read(option);
    option("draws", draws,
           "while training the picture is made of a draw from the latent's Gaussian; else, and where false, of its "
           "mean");
  }
};

struct AutoencoderKl final : ditto::Model {
  using Options = ModelOptions;

  AutoencoderKl(const Options& o, const Needs& needs) : options(o), x(needs.shape("x")) {
    moments = options.latents(x, "model \"autoencoder_kl\"");
    moments[0] *= 2;
    if (needs.out_channels != x[0])
      throw ditto::Error(ditto::ErrorKind::config, "model \"autoencoder_kl\"",
                         "makes pictures of " + std::to_string(x[0]) + " channels, and is asked for " +
                             std::to_string(needs.out_channels),
                         "leave [scheduler] out: it learns by objective \"autoencoder\"");
    for (int64_t i = 0; i < options.blocks(); ++i)
      blocks.push_back(add_block<ditto::AutoencoderBlock>(i, options, x[0], i));
  }

  ditto::Conditioning condition(const Batch&, Context&) override { return {}; }

  Stream tokens(const Batch& in, Context& ctx) override {
    const auto& pictures = in.at("x");
    (void)options.latents(pictures.sizes().slice(1), "model \"autoencoder_kl\"");  // of sides that are a sample's own
    Stream s;
    s.grid = {1, pictures.size(2) / options.factor(), pictures.size(3) / options.factor()};
    s.extra[kMap] = {pictures.to(ctx.compute)};
    return s;
  }

  int64_t depth() const override { return options.blocks(); }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    auto& map = s.extra.at(kMap).tensor;
    map = blocks[static_cast<size_t>(i)]->forward(map, ctx);
    if (i != options.middle()) return s;
    const auto of = ditto::LatentMoments::of(map);
    map = latent(of, s.ids, ctx);
    s.extra[kMoments] = {of.together()};
    return s;
  }

  Tensor head(const Stream& s, Context&) override { return s.extra.at(kMap).tensor; }

  ditto::TensorSpecs takes() const override { return {{"x", torch::kFloat, x, "a picture"}}; }
  ditto::TensorSpecs makes() const override {
    return {{kMoments, torch::kFloat, moments, "mean, and logarithm of the variance in -30 … 20"}};
  }

  std::vector<std::string> foreign_formats() const override { return ditto::autoencoder_formats(); }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    return ditto::autoencoder_names(*this, options, x[0], x[1] == x[2] ? std::max<int64_t>(x[1], 0) : 0, format);
  }
  static std::vector<std::string> foreign_classes() { return ditto::autoencoder_classes(); }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    const ditto::ForeignAutoencoder of(file);
    Options o;
    static_cast<ditto::AutoencoderSize&>(o) = of.size;
    ditto::read_over(o, reader, file, of.options);
    of.require_groups(reader, file);
    return {{{"x", torch::kFloat, {of.pictures, ditto::kOwnSide, ditto::kOwnSide}, ""}}, of.pictures};
  }

 private:
  Tensor latent(const ditto::LatentMoments& of, const std::vector<int64_t>& ids, const Context& ctx) const {
    if (!options.draws || ctx.phase != ditto::Phase::train || of.mean.is_meta()) return of.mean;
    const auto shape = of.mean.sizes().slice(1);
    const auto noise = ctx.random.normal(ditto::Purpose::encoding, ids, shape, of.mean.scalar_type());
    return of.drawn(noise.to(of.mean.device()));
  }

  Options options;
  std::vector<int64_t> x, moments;  // [C, H, W], [2 Z, H / f, W / f]
  std::vector<std::shared_ptr<ditto::AutoencoderBlock>> blocks;
};

}  // namespace

DITTO_MODEL_PLUGIN(AutoencoderKl, "autoencoder_kl", "1.0.0", "Apache-2.0",
                   "an autoencoder of pictures with a Gaussian between its halves, to be trained")
