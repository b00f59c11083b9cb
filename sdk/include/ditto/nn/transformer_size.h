// Sizes of a transformer over patches, as recipes and papers name them. ditto.h does not include it.
//
// Legend: D width of a token, N heads, P side and Q frames of a patch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ditto/nn/transformer.h>
#include <ditto/options.h>

namespace ditto {

// What a model's Options derive from.
struct DITTO_API TransformerSize {
  std::string preset;                          // a published size's name; empty: none
  int64_t depth = 12, width = 384, heads = 6;  // blocks, D, N
  int64_t patch = 2, patch_frames = 1;         // P, Q
  int64_t mlp_ratio = 4;                       // hidden width of the MLP over D
  int64_t kv_heads = 0;                        // and qk_norm: as AttentionOptions has them
  bool qk_norm = false;

  // Declares "preset", one of `published`, whose parts the options after it override: "depth", "width", "heads",
  // "patch" and "mlp_ratio". Refuses heads that do not divide the width, and a width that is no multiple of 4.
  void read(OptionReader& option, const std::vector<TransformerSize>& published, const char* help);
  // The same without "mlp_ratio", for MLPs of another kind, and of any width.
  void read_size(OptionReader& option, const std::vector<TransformerSize>& published, const char* help);
  // Declares "patch_frames", for models of video.
  void read_frames(OptionReader& option);
  // Declares "kv_heads" and "qk_norm", for models of SelfAttention.
  void read_keys(OptionReader& option);
  AttentionOptions attention() const;
  int64_t head_width() const { return width / heads; }
};

// S, B, L and XL with patches of /2, /4 and /8: W. Peebles and S. Xie, 2023 (arXiv:2212.09748), table 1.
DITTO_API std::vector<TransformerSize> dit_sizes();

}  // namespace ditto
