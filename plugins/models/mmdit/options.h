// What a recipe says of an mmdit.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <ditto/padded_text.h>
#include <ditto/positions.h>
#include <ditto/sizes.h>
#include <ditto/transformer_size.h>

namespace mmdit {

struct MmDitOptions : ditto::TransformerSize {
  int64_t single_depth = 0, dual_attention = 0, position_side = 192, position_base = 64;
  std::vector<int64_t> rotary;
  bool guidance_embed = false;
  double guidance = 3.5;
  ditto::PaddedText text;

  void read(ditto::OptionReader& option) {
    read_size(option,
              {{"SD3-medium", 24, 1536, 24},
               {"SD3.5-medium", 24, 1536, 24},
               {"SD3.5-large", 38, 38 * 64, 38},
               {"Flux.1-dev", 19, 3072, 24},
               {"Flux.1-schnell", 19, 3072, 24}},
              "a published size; the options below override its parts. depth: blocks in which text and picture have "
              "weights of their own");
    set_preset();
    option("single_depth", single_depth, "blocks after them with one set of weights").between(0, ditto::most::kBlocks);
    option("dual_attention", dual_attention, "first blocks that have an attention of the picture alone, too")
        .between(0, ditto::most::kBlocks);
    option("qk_norm", qk_norm, "RMS norm of each head's queries and keys");
    option("position_side", position_side,
           "patches along a side of the table of positions, of which pictures have the middle")
        .between(1, ditto::most::kSide);
    option("position_base", position_base, "patches along a side of the pictures that the table's spacing is made for")
        .between(1, ditto::most::kSide);
    option("rotary", rotary,
           "instead of the table: numbers of a head that turn with nothing, the row and the column, as [16, 56, 56]");
    option("guidance_embed", guidance_embed, "the model is told a guidance scale, as one distilled from guidance is");
    option("guidance", guidance, "that scale");
    text.read(option);
    if (dual_attention > depth) option.reject("dual_attention", "is above model.depth", "use at most as many");
    if (rotary.empty() ? width % 4 != 0 : !turns_heads())
      option.reject(
          rotary.empty() ? "width" : "rotary",
          rotary.empty() ? "is not a multiple of 4" : "is not three even numbers that add up to a head's width",
          "the positions need it");
  }
  bool is_flux() const { return !rotary.empty(); }
  int64_t blocks() const { return depth + single_depth; }
  // The sine-cosine table of a picture's patches.
  torch::Tensor positions(const ditto::Grid& grid) const {
    return ditto::centred_sincos_positions(grid, position_side, position_base, width);
  }

 private:
  bool turns_heads() const {
    return rotary.size() == 3 && std::accumulate(rotary.begin(), rotary.end(), int64_t{0}) == head_width() &&
           std::none_of(rotary.begin(), rotary.end(), [](int64_t n) { return n < 0 || n % 2 != 0; });
  }
  void set_preset() {
    if (preset.empty()) return;
    text.mask = false, qk_norm = preset != "SD3-medium";
    if (preset == "SD3.5-medium") dual_attention = 13, position_side = 384;
    if (preset.starts_with("Flux")) single_depth = 38, rotary = {16, 56, 56}, guidance_embed = preset == "Flux.1-dev";
  }
};

}  // namespace mmdit
