// What transformers of video share: patches of frames in and out, and what they are told besides time and text, as
// NeMo's DiT and MovieGen and Open-Sora's STDiT3 have it. ditto.h does not include it.
//
// Legend: B samples, F frames, D width, S tokens of text, E their width, P patch side, Q frames of a patch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ditto/model.h>
#include <ditto/nn/transformer.h>

namespace ditto {

// A model whose "x" is video [C, F, H, W] and whose blocks mix tokens through ctx.attention alone. Its predictions are
// of the same places, its features its tokens. Parameters patches.
class DITTO_API VideoTransformer : public Model {
 public:
  struct Form {
    std::string name;  // the plugin's, for messages
    int64_t depth, width, patch, patch_frames;
    bool channel_fastest = false;  // in a patch's numbers
  };
  ~VideoTransformer() override;
  int64_t depth() const override { return form_.depth; }
  bool token_local() const override { return true; }
  bool time_per_frame() const override { return form_.patch_frames == 1; }
  TensorSpecs takes() const override;  // "x" and "t"
  TensorSpecs makes() const override;

 protected:
  // Throws Error(config) for data that is no video, and for sides that patches do not divide.
  VideoTransformer(const Form& form, const Needs& needs);
  Stream patched(const Batch& in, Context& ctx) const;                                                // grid and x_BTD
  int64_t outputs() const { return form_.patch_frames * form_.patch * form_.patch * out_channels_; }  // of a token

  std::vector<int64_t> x_;  // [C, F, H, W]
  int64_t out_channels_;
  std::shared_ptr<VideoPatchEmbed> patches_;

 private:
  Form form_;
};

// A video's frames a second as a vector, to be added to the time's. Parameters in, out.
class DITTO_API FrameRateEmbed : public TimeEmbed {
 public:
  // `rate` is that of all samples where the data does not offer "fps".
  FrameRateEmbed(int64_t width, const TimeFeatures& features, double rate, const TensorSpecs& offered);
  ~FrameRateEmbed() override;
  torch::Tensor forward(const Batch& batch, Context& ctx);  // -> [B, width]
  TensorSpecs takes() const;                                // "fps" [B], or nothing

 private:
  double rate_;
  bool is_offered_;
};

// NeMo's conditioning (nemo/collections/diffusion/models/dit/dit_model.py): the time's vector, of D features, sines
// first; frames a second as the first 256 numbers of one, which is added; and the sum's RMS norm. "t" may be of frames,
// [B, F]. Parameters time, rate, norm.
class DITTO_API TimeAndRate : public Layer {
 public:
  static constexpr int64_t kRateWidth = 256;
  TimeAndRate(int64_t width, double rate, const TensorSpecs& offered);
  ~TimeAndRate() override;
  torch::Tensor forward(const Batch& batch, Context& ctx);  // -> [B, D], or [B, F, D]
  TensorSpecs takes() const { return rate_->takes(); }

 private:
  int64_t width_;
  std::shared_ptr<TimeEmbed> time_;
  std::shared_ptr<FrameRateEmbed> rate_;
  std::shared_ptr<RmsNorm> norm_;
};

// What a model whose positions are of so many places reads in a recipe, with the frames a second that it is told.
struct DITTO_API VideoPlaces {
  int64_t max_frames, max_side;     // frames, and pixels of rows and of columns
  double fps = 30;                  // where the data does not say it
  void read(OptionReader& option);  // declares "max_frames", "max_side" and "fps"
  // Throws Error(config) for x [C, F, H, W] that has more.
  void check(const std::string& model, const std::vector<int64_t>& x) const;
  Grid grid(int64_t patch) const { return {max_frames, max_side / patch, max_side / patch}; }
};

// Learned tables of frames, rows and columns, of which a token gets the sum of three (NeMo's
// FactorizedLearnable3DEmbedding). Parameters frames.table, rows.table and columns.table.
class DITTO_API FactorisedPositions : public Layer {
 public:
  FactorisedPositions(const Grid& most, int64_t width);
  ~FactorisedPositions() override;
  // -> [B, T, D]; throws Error(shape) for more than `most`.
  torch::Tensor forward(const Grid& grid, int64_t samples, Context& ctx);

 private:
  Grid most_;
  std::shared_ptr<Embedding> frames_, rows_, columns_;
};

// Sets text_BSE [B, S, E] and its mask from "text" and "text_mask" as they are. A text whose mask is false everywhere
// is the null condition: zeros, in all S places.
DITTO_API void set_plain_text(const Batch& batch, Conditioning& condition, Context& ctx);
DITTO_API TensorSpecs plain_text(int64_t text_width);  // what it takes

}  // namespace ditto
