// What transformers of video share whose blocks attend in space and in time apart, as NeMo's ST-DiT, Open-Sora's STDiT3
// and Latte do. ditto.h does not include it.
//
// Legend: B samples, F frames, T tokens here, D width.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ditto/model.h>
#include <ditto/nn/tables.h>
#include <ditto/nn/transformer.h>
#include <ditto/nn/transformer_size.h>
#include <ditto/nn/video.h>

namespace ditto {

// A block's parts, in their order. `cross` is to the text: x <- x + cross(x). The others are modulated:
// x <- x + gate * f(norm(x) * (1 + scale) + shift).
enum class Part { spatial, full, cross, temporal, mlp };
using Parts = std::vector<Part>;

// What recipes say of one.
struct DITTO_API SpaceTimeOptions : TransformerSize {
  std::string adaln = "zero", null_text = "learned";
  int64_t base_side = 0;
  // Of models that declare them:
  int64_t null_tokens = 0;  // TextEmbed's
  double fps = 0;           // FrameRateEmbed's; 0: there is none

  void read_parts(OptionReader& option);  // declares "adaln", "null_text" and "base_side"
  // Refuses a depth that is no multiple of 2, where blocks in space and in time alternate.
  void require_pairs(const OptionReader& option) const;
};

// Parameters modulation, and those of its parts by their names: spatial, full, cross, temporal, mlp.
class DITTO_API SpaceTimeBlock : public Layer {
 public:
  struct Form {
    AdaLn adaln;
    AttentionOptions attention, cross;
    int64_t hidden;     // of the MLP
    bool turns_places;  // Stream::rotary_TK turns queries and keys in space, too
  };
  SpaceTimeBlock(const Form& form, const Parts& parts);
  ~SpaceTimeBlock() override;
  torch::Tensor forward(const Stream& stream, Context& ctx);  // -> [B, T, D]

 private:
  torch::Tensor run(Part part, const torch::Tensor& h, const Stream& s, Context& ctx);

  Parts parts_;
  bool turns_places_;
  std::shared_ptr<Modulation> modulation_;
  std::shared_ptr<SelfAttention> spatial_, full_, temporal_;
  std::shared_ptr<CrossAttention> cross_;
  std::shared_ptr<Mlp> mlp_;
};

// A model of such blocks, whose tokens its class makes. Its conditions are time and text, or, where no block attends to
// text and the data has classes, time and label. With adaLN-single a block in time alone adds nothing at first, as in a
// model that was one of pictures. Parameters time, text or label, rate, modulation, blocks, final.
class DITTO_API SpaceTimeTransformer : public VideoTransformer {
 public:
  ~SpaceTimeTransformer() override;
  Conditioning condition(const Batch& in, Context& ctx) override;
  Stream run_block(int64_t i, Stream s, Context& ctx) override;
  torch::Tensor head(const Stream& s, Context& ctx) override;
  TensorSpecs takes() const override;
  Batch without_condition(Batch in, const torch::Tensor& which_B) const override;

 protected:
  struct Blocks {
    std::vector<Parts> parts;  // of each; as many that are modulated in each
    AttentionOptions cross;    // attention to text
    bool turns_places = false;
  };
  // `name`: the plugin's, for messages.
  SpaceTimeTransformer(const std::string& name, const SpaceTimeOptions& options, const Blocks& blocks,
                       const Needs& given);
  // x_BTD with fixed sine-cosine positions [T, D] of rows and columns, and of frames where they are asked for.
  void add_positions(Stream& s, bool of_frames, Context& ctx);
  torch::Tensor frames(const Grid& grid) const;  // [F, D], double

  Needs needs_;

 private:
  torch::Tensor places(const Grid& grid) const;  // [rows * columns, D], double

  int64_t width_, patch_, base_side_;
  GridTable positions_;
  std::shared_ptr<TimeEmbed> time_;
  std::shared_ptr<FrameRateEmbed> rate_;
  std::shared_ptr<LabelEmbed> label_;
  std::shared_ptr<TextEmbed> text_;
  std::shared_ptr<SharedModulation> modulation_;  // adaLN-single's
  std::vector<std::shared_ptr<SpaceTimeBlock>> blocks_;
  std::shared_ptr<FinalLayer> final_;
};

}  // namespace ditto
