// What models say of what they take: a class, a text's tokens, the embedding of a whole text. ditto.h does not include
// it.
//
// Legend: B samples, S tokens of text, E width of their embeddings, or of a whole text's.
#pragma once

#include <string>
#include <vector>

#include <ditto/model.h>

namespace ditto {

// For takes(): of these names those that are offered. "label" is a class, or the null class, which is one more.
// "text_pooled" [E] is the embedding of a whole text, as CLIP makes one, "text_pooled_empty" that of the empty text.
DITTO_API TensorSpecs takes_offered(const ModelNeeds& needs, const std::vector<std::string>& names);

// For without_condition(), of a model that takes both where they are offered: where `which_B` the class is the null
// class, and the text the empty one, or, where that is not offered, zeros.
DITTO_API Batch without_class_and_text(Batch batch, const torch::Tensor& which_B, const ModelNeeds& needs);

// Width of the text's tokens, "text" [S, E]. Throws Error(config) for data without text.
DITTO_API int64_t require_text(const std::string& model, const ModelNeeds& needs);
// What TextEmbed takes of tokens of this width, and of the empty text's, too.
DITTO_API void offer_text(ModelNeeds& needs, int64_t width, bool and_empty);
// Declares "null_text", which ditto::null_text understands.
DITTO_API void read_null_text(OptionReader& option, std::string& null_text);

}  // namespace ditto
