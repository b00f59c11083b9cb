// The options of unet_sd, spelled as diffusers' UNet2DConditionModel has them, and its blocks in order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ditto/nn/padded_text.h>
#include <ditto/options.h>

namespace unet_sd {

// Numbers of time_ids that say a picture whole: its sides, where it was cut, and its sides then.
inline constexpr int64_t kWholePicture = 6;

// Lists are one number for each level of sides, that of the picture first; or one for all of them.
struct Options {
  std::string preset;
  std::vector<int64_t> block_out_channels{320, 640, 1280, 1280};
  std::vector<std::string> down_block_types{kDownText, kDownText, kDownText, kDown};
  std::vector<std::string> up_block_types{kUp, kUpText, kUpText, kUpText};
  std::vector<int64_t> layers_per_block{2}, attention_head_dim{8}, transformer_layers_per_block{1};
  std::vector<int64_t> only_cross_attention{0};
  bool use_linear_projection = false, upcast_attention = false;
  int64_t norm_num_groups = 32;
  double norm_eps = 1e-5;
  bool flip_sin_to_cos = true;
  int64_t freq_shift = 0;
  std::string resnet_time_scale_shift = kDefault, class_embed_type = kNone, addition_embed_type = kNone;
  int64_t num_class_embeds = 0, projection_class_embeddings_input_dim = 0, addition_time_embed_dim = 256;
  double dropout = 0;
  int64_t pixels = 8;  // this and the text's are no options of theirs
  ditto::PaddedText text{.tokens = 77, .mask = false};

  static constexpr const char *kDown = "DownBlock2D", *kDownText = "CrossAttnDownBlock2D", *kUp = "UpBlock2D",
                              *kUpText = "CrossAttnUpBlock2D", *kNone = "none", *kDefault = "default",
                              *kScaleShift = "scale_shift", *kTimestep = "timestep", *kIdentity = "identity",
                              *kProjection = "projection", *kTextTime = "text_time";

  void read(ditto::OptionReader& option);

  int64_t levels() const { return static_cast<int64_t>(block_out_channels.size()); }
  int64_t factor() const { return int64_t{1} << (levels() - 1); }  // that divides the sides of a picture
  int64_t channels(int64_t level) const { return block_out_channels[static_cast<size_t>(level)]; }
  int64_t time_width() const { return 4 * channels(0); }
  bool has_text_time() const { return addition_embed_type == kTextTime; }
  bool has_classes() const { return num_class_embeds > 0 || class_embed_type != kNone; }
  static int64_t at(const std::vector<int64_t>& list, int64_t level) {
    return list[list.size() == 1 ? 0 : static_cast<size_t>(level)];
  }

 private:
  void check_levels(const ditto::OptionReader& option) const;
  void check_heads(const ditto::OptionReader& option) const;
};

// Lists of one number where all are alike: as published configurations have them.
std::vector<int64_t> shortest(std::vector<int64_t> list);

// One residual block, with a transformer behind it where it has heads, and with what halves or doubles the sides.
// Maps that are left for the way up are numbered in their order, the one before the first block 0; a block that halves
// leaves two, the second of them halved.
struct Place {
  enum class Way { down, middle, up } way;
  int64_t stage, layer;             // of its way, as theirs are numbered
  int64_t in, out;                  // channels; in: with those of what it takes
  int64_t leaves = -1, takes = -1;  // the map's number; -1: none
  int64_t heads = 0, layers = 0;    // 0: no transformer
  bool only_text = false, halves = false, doubles = false;
};
std::vector<Place> places_of(const Options& options);

}  // namespace unet_sd
