// Texts of models that are trained on so many tokens of text, whatever its length.
//
// Legend: B samples, S tokens of text, E their width, P width of the pooled text.
#pragma once

#include <string>

#include <ditto/model.h>

namespace ditto {

// What such a model reads of a batch: "text" [B, S, E], "text_mask" bool [B, S], and, where there is one, "text_pooled"
// [B, P]; of the empty text, where that stands for a dropped one, "text_empty", "text_empty_mask" and
// "text_pooled_empty".
struct DITTO_API PaddedText {
  int64_t tokens = 0;         // that texts are padded to, with zeros; 0: as they come
  bool mask = true;           // false: padding is seen as text is, as the published models see it
  std::string null = "zero";  // what stands for a dropped text: zeros, or the "empty" text

  void read(OptionReader& option);  // declares "text_tokens", "text_mask" and "null_text"
  // Throws Error(config) where there is no text, and where padding that depends on a sample's neighbours would be seen.
  void check(const ModelNeeds& needs, const std::string& model) const;
  TensorSpecs takes(const ModelNeeds& needs) const;
  // With the text and its mask padded. Throws Error(shape) for a text that is longer.
  Batch padded(Batch batch) const;
  // What Model::without_condition is to do.
  Batch without_text(Batch batch, const torch::Tensor& which_B) const;
};

}  // namespace ditto
