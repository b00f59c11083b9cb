// What takes pictures, times and classes in.
//
// Legend: B samples, T tokens, D width, C channels, H W picture sides, P patch side.
#pragma once

#include <cstdint>

#include <torch/types.h>

#include <ditto/nn/layer.h>
#include <ditto/stream.h>

namespace ditto {

// Patches of P x P pixels to tokens by one linear map, and back. x [B, C, H, W]; H and W must be multiples of P.
class DITTO_API PatchEmbed : public Layer {
 public:
  PatchEmbed(int64_t channels, int64_t patch, int64_t width);
  ~PatchEmbed() override;
  torch::Tensor forward(const torch::Tensor& x_BCHW, Context& ctx);  // -> [B, T, D], rows first
  Grid grid(const torch::Tensor& x_BCHW) const;
  // [B, T, P*P*C'] with the channel fastest -> [B, C', H, W].
  torch::Tensor unpatchify(const torch::Tensor& y, const Grid& grid) const;

 private:
  int64_t patch_;
  Linear map_;  // weight [D, C*P*P]
};

// Sinusoidal features of a scalar, as timestep_features makes them: cosines first, or sines.
struct TimeFeatures {
  int64_t count = 256;
  double divisor = 128;
  bool sine_first = false;
};

// A scalar time to a conditioning vector: sinusoidal features, then an MLP with SiLU. [B] -> [B, D].
class DITTO_API TimeEmbed : public Layer {
 public:
  TimeEmbed(int64_t width, const TimeFeatures& features);
  // `divisor` of the features' frequencies: see timestep_features. 256 features.
  TimeEmbed(int64_t width, double divisor) : TimeEmbed(width, TimeFeatures{256, divisor, false}) {}
  ~TimeEmbed() override;
  torch::Tensor forward(const torch::Tensor& t_B, Context& ctx);

 private:
  TimeFeatures features_;
  Linear in_, out_;
};

// Rows of a table: int64 [...] -> [..., D]. It may be cut by its width (Split::columns), so that every rank looks all
// rows up and no sum is made: gathered, its numbers are the table's to the bit.
class DITTO_API Embedding : public CutLayer {
 public:
  Embedding(int64_t rows, int64_t width, Split split = {}, Init init = Init::normal(0.02));
  ~Embedding() override;
  torch::Tensor forward(const torch::Tensor& index, Context& ctx);
  std::optional<int64_t> leaves_to_cut() const override { return 0; }

  Parameter table;  // [rows, D]; a strategy may have cut it
};

// A table of classes and one null class, the last row. int64 [B] -> [B, D].
class DITTO_API LabelEmbed : public Embedding {
 public:
  LabelEmbed(int64_t classes, int64_t width);
  ~LabelEmbed() override;
  torch::Tensor forward(const torch::Tensor& label_B, Context& ctx);  // throws Error(data) for a label out of range
  int64_t null_label() const { return classes_; }

 private:
  int64_t classes_;
};

}  // namespace ditto
