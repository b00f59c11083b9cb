// Patches of pictures and of videos alike, for models of both. ditto.h does not include it.
//
// Legend: B samples, C channels, F frames, H W sides, T tokens, D width, P side and Q frames of a patch.
#pragma once

#include <string>
#include <vector>

#include <ditto/model.h>
#include <ditto/nn/transformer.h>

namespace ditto {

// Of what the data has: pictures [C, H, W], or videos [C, F, H, W]. Parameter map, [D, C*P*P] or [D, C*Q*P*P].
class DITTO_API Patches : public VideoPatchEmbed {
 public:
  // `frames`: of a video's patch; 1 also for pictures, and 0 for a model of pictures alone. Throws Error(config) for
  // data that `model` does not take, and for patches that do not divide it.
  Patches(const std::string& model, const ModelNeeds& needs, int64_t patch, int64_t frames, int64_t width);
  ~Patches() override;
  torch::Tensor forward(const torch::Tensor& x, Context& ctx);  // [B, C, H, W] or [B, C, F, H, W] -> [B, T, D]
  Grid grid(const torch::Tensor& x) const;
  // [B, T, Q*P*P*C'] with the channel fastest -> [B, C', …].
  torch::Tensor unpatchify(const torch::Tensor& y, const Grid& grid) const;

  // Fixed sine-cosine positions [T, D]: sincos_positions of rows and columns, and of videos those of 0 … F - 1, for all
  // of a frame's tokens, too (X. Ma et al., "Latte", 2024, arXiv:2401.03048). double.
  torch::Tensor positions(const Grid& grid) const;
  // Of a picture's rows and columns stretched to a side of `base` patches: place i of n is i / (n / base) / scale, an
  // fp32 number (J. Chen et al., "PixArt-alpha", 2023, arXiv:2310.00426, as diffusers has it). base 0: n.
  torch::Tensor positions(const Grid& grid, int64_t base, double scale) const;

  const std::vector<int64_t>& x() const { return x_; }  // of one sample
  bool is_video() const { return x_.size() == 4; }
  bool is_square() const { return x_[x_.size() - 2] == x_[x_.size() - 1]; }
  Grid grid() const;                        // of one sample; of sides that are each sample's own it has no meaning
  int64_t tokens() const;                   // of one sample, or -1 where its sides are its own
  int64_t outputs(int64_t channels) const;  // numbers of a patch that is predicted
  int64_t position_numbers() const;         // of one sample's table; 0 where its sides are its own
  TensorSpec features() const;              // for a model's makes()
  // The shape that the map's weight has elsewhere: [D, C, P, P] or [D, C, Q, P, P].
  std::vector<int64_t> convolution() const;

 private:
  std::vector<int64_t> x_;
  int64_t patch_, frames_, width_;
};

}  // namespace ditto
