// A transformer over the places of a map, between the residual blocks of a UNet. ditto.h does not include it.
//
// Legend: B samples, C channels, H rows, W columns, T = H W places, S tokens of text, E their width.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ditto/context.h>
#include <ditto/nn.h>
#include <ditto/nn/maps.h>

namespace ditto {

struct DITTO_API MapTransformerShape {
  int64_t channels, heads;  // C, and heads of every attention, which divide it
  int64_t layers, text;     // layers; E
  int64_t groups = 32;      // of the norm before them; divides C
  bool only_text = false;   // places see the text alone, in both attentions
  bool upcast = false;      // of a lower precision, attention is computed in fp32
};

// Norm, a map of places, layers, a map of places that is zero at first, beside a way past all of it. A layer is
// attention of places to one another, attention to the text and a gated perceptron of 4 C numbers, each of what a norm
// made and added to what it was of. Attentions are cut by heads along tensor, and perceptrons by their numbers.
// R. Rombach et al., 2021 (arXiv:2112.10752), section 3.3.
// Parameters norm, proj_in, proj_out, and of layerN: norm1, attn (qkv; or of only_text q, kv) with proj, norm2, cross
// (q, kv, proj), norm3, mlp (gate_up, down).
class DITTO_API MapTransformer : public Layer {
 public:
  explicit MapTransformer(const MapTransformerShape& shape);
  ~MapTransformer() override;
  // map [B, C, H, W] and the condition's text_BSE, under its mask where there is one -> [B, C, H, W]
  torch::Tensor forward(const torch::Tensor& map, const Conditioning& condition, Context& ctx);

 private:
  class OneLayer;
  std::shared_ptr<GroupNorm> norm_;
  Linear proj_in_, proj_out_;
  std::vector<std::shared_ptr<OneLayer>> layers_;
};

}  // namespace ditto
