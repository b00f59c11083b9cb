// A convolutional autoencoder of pictures with a Gaussian between its halves, as latent diffusion has it: R. Rombach et
// al., 2021 (arXiv:2112.10752) after D. Kingma and M. Welling, 2013 (arXiv:1312.6114). One body for the encoder that
// makes latents and for the model that learns it. ditto.h does not include it.
//
// Legend: B samples, C channels of a picture, H rows, W columns, Z channels of a latent, f pixels of its side.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/nn.h>
#include <ditto/options.h>

namespace ditto {

// The options of its shape, alike in both plugins.
struct DITTO_API AutoencoderSize {
  std::string preset;                                 // whose parts the other options override; empty: none
  std::vector<int64_t> channels{128, 256, 512, 512};  // of a map in each stage, the one of pixels first
  int64_t layers = 2;                                 // residual layers of a stage; one more on the way up
  int64_t latent = 4;                                 // Z
  int64_t groups = 32;                                // of every norm; divides all channels
  bool middle_attention = true;                       // between the two layers of the middle, of all places
  bool quant = true, post_quant = true;               // maps of places right before and right behind the Gaussian

  // The autoencoders of Stable Diffusion (1 and 2), SDXL, Stable Diffusion 3 and Flux.1.
  static constexpr const char *kSd = "sd", *kSdxl = "sdxl", *kSd3 = "sd3", *kFlux = "flux";
  // Declares them all. Refuses channels that the groups do not divide.
  void read(OptionReader& option);

  int64_t stages() const { return static_cast<int64_t>(channels.size()); }
  int64_t factor() const { return int64_t{1} << (stages() - 1); }  // f
  int64_t blocks() const { return 2 * stages() + 2; }
  // The last block of the way down, which makes the moments; those behind it make the picture.
  int64_t middle() const { return stages(); }
  // Of a picture [C, H, W] that of its latents, [Z, H / f, W / f]; a side that is a sample's own (kOwnSide) stays so.
  // Throws Error(shape) at `who` for another number of dims, and for sides that f does not divide.
  std::vector<int64_t> latents(at::IntArrayRef picture, const std::string& who) const;
};

// Block `index` of its way, which all blocks in turn are, each on what the one before has made:
//   0 … stages - 1   way down: pictures [B, C, H, W] -> maps [B, channels, H / 2^index, …]
//   stages           -> moments [B, 2 Z, H / f, W / f]: the mean, and the logarithm of the variance as it comes
//   stages + 1 …     way up: latents [B, Z, H / f, W / f] -> … -> pictures, of any range
// Its layers: down0 … or up0 …, half or twice, middle0, attention, middle1, norm, in, out, quant, post_quant.
class DITTO_API AutoencoderBlock : public Layer {
 public:
  // `pictures`: C.
  AutoencoderBlock(const AutoencoderSize& size, int64_t pictures, int64_t index);
  ~AutoencoderBlock() override;
  torch::Tensor forward(torch::Tensor x, Context& ctx);

 private:
  using Step = std::function<torch::Tensor(const torch::Tensor&, Context&)>;
  template <class T, class... Args>
  void step(const std::string& name, Args&&... args);
  void middle(const AutoencoderSize& size, int64_t channels);
  void leave(const AutoencoderSize& size, int64_t channels, int64_t out);
  std::vector<Step> steps_;
};

// The Gaussian of each latent. Both [B, Z, …].
struct DITTO_API LatentMoments {
  torch::Tensor mean, log_variance;

  // Of moments [B, 2 Z, …]; the logarithm is kept within -30 … 20.
  static LatentMoments of(const torch::Tensor& moments);
  torch::Tensor together() const;                         // [B, 2 Z, …]
  torch::Tensor drawn(const torch::Tensor& noise) const;  // mean + deviation noise
  // The divergence from the normal one, in nats, summed over a sample's latents: [B].
  torch::Tensor divergence() const;
};

// What is computed in overlapping tiles, whose seams are blended from one tile to the next: another function than of
// the whole, as a norm sees a tile alone. After diffusers' AutoencoderKL.
struct DITTO_API Tiles {
  int64_t side, stride;  // of a tile, and from one's beginning to the next's; in places of what is cut
  int64_t blend, keep;   // places of what is made: of a seam, and of each tile that stay

  // Of pictures in tiles of `side` pixels, of which the share `overlap` lies in the next one too; of latents in the
  // same. f divides side and side * overlap.
  static Tiles of_pictures(int64_t side, double overlap, int64_t factor);
  static Tiles of_latents(int64_t side, double overlap, int64_t factor);

  bool cut(const torch::Tensor& x) const { return x.size(2) > side || x.size(3) > side; }
  int64_t rows(const torch::Tensor& x) const { return (x.size(2) + stride - 1) / stride; }
  int64_t columns(const torch::Tensor& x) const { return (x.size(3) + stride - 1) / stride; }
  // Row by row; views of x [B, C, H, W].
  std::vector<torch::Tensor> tiles(const torch::Tensor& x) const;
  // Of what was made of them, so many rows of them.
  torch::Tensor joined(std::vector<torch::Tensor> made, int64_t rows) const;
};

}  // namespace ditto
