// What the two UNets of Imagen have in common: C. Saharia et al., "Photorealistic text-to-image diffusion models with
// deep language understanding", 2022 (arXiv:2205.11487), as NeMo has them. ditto.h does not include it.
//
// Legend: B samples, C channels, H rows, W columns, D width of the conditioning, S places of text, E their width.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ditto/exchange/foreign.h>
#include <ditto/model.h>
#include <ditto/nn/imagen_layers.h>
#include <ditto/nn/unet.h>

namespace ditto {

// The options of both, spelled as NeMo's fields.
struct DITTO_API ImagenOptions {
  std::string preset;
  int64_t embed_dim = 128;
  std::vector<int64_t> channel_mult{1, 2, 3, 4};
  int64_t num_attn_heads = 4, per_head_channels = 64;
  std::string attention_type = "fused", feature_pooling_type = "attention";
  int64_t learned_sinu_pos_emb_dim = 16;
  bool use_null_token = false;
  int64_t init_conv_kernel_size = 3;
  bool scale_shift_norm = true;
  bool low_res_cond = false, noise_cond_aug = false;
  int64_t token_length = 128;

  // Declares all of them but the preset and low_res_cond, which are read before.
  void read(OptionReader& option);

  size_t levels() const { return channel_mult.size(); }
  int64_t channels(size_t level) const { return embed_dim * channel_mult.at(level); }
  int64_t width() const { return 4 * embed_dim; }  // D
  int64_t heads(int64_t channels) const {
    return per_head_channels == -1 ? num_attn_heads : channels / per_head_channels;
  }
};

// A block of such a model: a residual block, attention behind it where there is one, and what changes the sides behind
// that. NeMo's names of its parts are `theirs`.
struct DITTO_API ImagenBlockShape {
  ResidualShape residual;
  std::optional<ImagenAttentionShape> attention = {};
  // Skips, by name: that which is put beside the map, or added to it, before all; and those that are left before and
  // after the sides change. Empty: none.
  std::string takes = {}, leaves = {}, leaves_after = {};
  bool adds = false;
  // What changes the sides: one of these, or none.
  std::optional<ConvShape> down = {}, up = {};  // a convolution, or a transposed one
  std::optional<ResidualShape> resized = {};
  bool mean = false;

  struct Names {
    std::string residual = {}, attention = {}, sides = {};
  } theirs = {};
};

class DITTO_API ImagenBlock : public Layer {
 public:
  explicit ImagenBlock(const ImagenBlockShape& shape);
  ~ImagenBlock() override;
  Stream forward(Stream s, Context& ctx);

 private:
  ImagenBlockShape shape_;
  std::shared_ptr<MapResidual> residual_, resized_;
  std::shared_ptr<ImagenAttention> attention_;
  std::shared_ptr<Conv2d> down_;
  std::shared_ptr<ConvTransposed2d> up_;
};

// A model of pictures "x", times "t" and texts; with low_res_cond of a small picture "low" [C, h, w] too, which is
// enlarged to x's sides and put beside it, and with noise_cond_aug of that one's time "low_t". Parameters time,
// low_time, text, in, and what the plugin adds.
class DITTO_API ImagenUNet : public Model {
 public:
  ~ImagenUNet() override;
  Conditioning condition(const Batch& in, Context& ctx) override;
  Stream tokens(const Batch& in, Context& ctx) override;
  int64_t depth() const override { return static_cast<int64_t>(blocks_.size()); }
  Stream run_block(int64_t index, Stream s, Context& ctx) override;
  TensorSpecs takes() const override;
  // A dropped text is zeros, of as many places as it had.
  Batch without_condition(Batch in, const torch::Tensor& which_B) const override;
  std::vector<std::string> foreign_formats() const override;
  ForeignFormat foreign(const std::string& format) const override;

  // What the names of a unet's tensors begin with in a file of NeMo's.
  static constexpr const char *kNemo = "model.model.unet.", *kNemoCompiled = "model.model.unet._orig_mod.";

 protected:
  struct Text {
    int64_t context;  // the width that it is mapped to
    bool is_seen;     // by a map's places; else it conditions as one vector alone
  };
  // `name`: the plugin's.
  ImagenUNet(const std::string& name, const ImagenOptions& options, const Text& text, const Needs& needs);
  void add_shape(const ImagenBlockShape& shape);
  // Throws Error(shape) for sides that the way down and up does not give back.
  virtual void check_sides(const std::vector<int64_t>& sides) const = 0;
  void check_known_sides() const;
  // What blocks begin with, of the map behind the first convolution; skips that they take of it are left in `s`.
  virtual torch::Tensor entered(const torch::Tensor& map, Stream& s, Context& ctx) const = 0;
  // NeMo's names of what only this model has outside of blocks, and of a residual block's layers.
  virtual std::string their_ends() const = 0;
  virtual std::string their_residual() const = 0;
  // Of the first convolution: another name that it has there too; empty: none.
  virtual std::string their_copy() const { return {}; }
  // Name of a skip.
  static std::string skip(size_t number);
  ResidualShape residual(int64_t in, int64_t out) const;
  ImagenAttentionShape attention(int64_t channels) const;

  const Needs& needs() const { return needs_; }
  const std::vector<int64_t>& x() const { return x_; }

 private:
  std::string not_theirs() const;

  std::string name_;
  ImagenOptions options_;
  Text seen_;
  Needs needs_;
  std::vector<int64_t> x_;  // [C, H, W]
  std::shared_ptr<ImagenTime> time_, low_time_;
  std::shared_ptr<ImagenText> text_;
  std::shared_ptr<Conv2d> in_;
  std::vector<std::shared_ptr<ImagenBlock>> blocks_;
  std::vector<ImagenBlockShape::Names> theirs_;  // of each block
};

// Of a file of NeMo's unet: its tensors by their names without what all begin with.
DITTO_API ForeignShapes nemo_unet(const ForeignShapes& file);
// Throws Error(checkpoint) for weights without `tensor`, which all of this model have: they are the other's.
DITTO_API void require_nemo_unet(const ForeignShapes& unet, const std::string& tensor, const std::string& model,
                                 const std::string& other);
// What a model of such a file needs, of pictures of so many channels.
DITTO_API ModelNeeds nemo_unet_needs(const ForeignShapes& unet, const ImagenOptions& options, int64_t channels);
// What such a file says of the options that both have.
DITTO_API void read_nemo_unet(const ForeignShapes& unet, ImagenOptions& options);
// Of what no tensor tells and every shape fits, so that another value is another function: throws Error(config) where
// the recipe says neither the option nor a preset. names: of options.
DITTO_API void require_said(const OptionReader& reader, const ForeignShapes& file,
                            const std::vector<const char*>& names);

}  // namespace ditto
