// Layers of Imagen's UNets: attention of a map's places to one another and to text, and what conditions them. ditto.h
// does not include it.
//
// Legend: B samples, C channels, T places of a map, S of a text, E width of its embeddings, D of the conditioning, N
// heads, K a head's width.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ditto/batch.h>
#include <ditto/nn/maps.h>
#include <ditto/nn/transformer.h>
#include <ditto/stream.h>

namespace ditto {

// Groups of every norm, of maps and of text.
inline constexpr int64_t kImagenGroups = 32;

// "self": places attend to one another. "cross": to the text. "fused": to both in one softmax. "stacked": to one
// another, then to the text, then GEGLU (N. Shazeer, 2020, arXiv:2002.05202), all between two maps of places.
struct DITTO_API ImagenAttentionShape {
  std::string type;
  int64_t channels, heads;
  int64_t context;  // width of the text
};

// x + what it attends to. Norms are of 32 groups, the text's too: it is of all places that it has, padding among them,
// and so of how many there are. Along tensor it is cut by heads.
class DITTO_API ImagenAttention : public Layer {
 public:
  explicit ImagenAttention(const ImagenAttentionShape& shape);
  ~ImagenAttention() override;
  // x [B, C, H, W]; of `text` the tokens and their mask. A text of which nothing counts adds nothing but biases.
  torch::Tensor forward(const torch::Tensor& x, const Conditioning& text, Context& ctx);

 private:
  struct Keys;
  torch::Tensor attend(const torch::Tensor& x, const Conditioning& text, Context& ctx);
  torch::Tensor stacked(const torch::Tensor& x, const Conditioning& text, Context& ctx);
  Keys of_text(const Conditioning& text, Context& ctx);

  ImagenAttentionShape shape_;
  std::shared_ptr<GroupNorm> norm_, norm_self_, norm_text_, ff_norm_;
  Linear qkv_, q_, kv_self_, kv_text_, proj_;
  std::shared_ptr<Conv2d> in_, out_;
  std::shared_ptr<ImagenAttention> self_, cross_;
  std::shared_ptr<GeGlu> ff_;
};

// A time to a vector [B, D] by an MLP with SiLU, of cosines and sines, or of the time itself, sines and cosines of
// learned frequencies (weights [dim / 2], in turns a unit of time).
class DITTO_API ImagenTime : public Layer {
 public:
  // learned: dim, so many sines and cosines; 0: `features` that are not learned.
  ImagenTime(int64_t learned, int64_t features, int64_t width);
  ~ImagenTime() override;
  torch::Tensor forward(const torch::Tensor& t_B, Context& ctx);

 private:
  int64_t features_;
  Parameter weights_;
  Linear in_, out_;
};

// Texts as tokens to attend to, and as a vector of each, of all of its places, padding too: their mean, or by attention
// pooling (arXiv:2008.01077).
class DITTO_API ImagenText : public Layer {
 public:
  struct Shape {
    int64_t text, context, width;  // E, what tokens are mapped to, D
    bool attention_pooling;        // else their mean
    bool is_seen;                  // by a map's places; else the vector is all
    bool null_token;
  };
  explicit ImagenText(const Shape& shape);
  ~ImagenText() override;
  // text_BSE and its mask, of as many places as the model is trained on. Where it is seen, sets the condition's, with
  // the null token behind them where there is one. -> [B, D]
  torch::Tensor forward(const torch::Tensor& text_BSE, const torch::Tensor& mask_BS, Conditioning& condition,
                        Context& ctx);

 private:
  torch::Tensor pooled(const torch::Tensor& text_BSE, Context& ctx);
  Shape shape_;
  Linear pool_, pool_out_, to_context_, in_, out_;
  std::shared_ptr<LayerNorm> pool_norm_, norm_;
  Parameter null_;  // [context]
};

}  // namespace ditto
