// Attention of a text encoder's tokens among themselves.
//
// Legend: B samples, S tokens of text, D width, N heads, K head width, which need not be D / N.
#pragma once

#include <cstdint>
#include <optional>

#include <torch/types.h>

#include <ditto/nn/layer.h>

namespace ditto {

// What tokens see of one another.
struct TokensSeen {
  torch::Tensor mask_BS = {};        // bool, true where a token counts; undefined: all do
  torch::Tensor bias = {};           // added to the scores: [1, N, S, S], of the heads that are here
  bool causal = false;               // none behind their own place
  std::optional<double> scale = {};  // of the scores; none: 1 / sqrt(K)
};

// Parameters qkv and proj.
class DITTO_API TextAttention : public Layer {
 public:
  struct Shape {
    int64_t width, heads, head_width;
    bool bias;  // of both maps
  };
  explicit TextAttention(const Shape& shape);
  ~TextAttention() override;
  torch::Tensor forward(const torch::Tensor& x_BSD, const TokensSeen& seen, Context& ctx);  // -> [B, S, D]

 private:
  int64_t head_width_;
  Linear qkv_, proj_;
};

}  // namespace ditto
