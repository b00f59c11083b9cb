#include <ditto/nn/padded_text.h>

#include <algorithm>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/math/sizes.h>

namespace ditto {

using torch::Tensor;

namespace {

// x [B, S, …] with zeros, or false, after its last token.
Tensor to_length(const Tensor& x, int64_t tokens) {
  if (x.size(1) == tokens) return x;
  std::vector<int64_t> pad(static_cast<size_t>(2 * x.dim() - 2), 0);
  pad.back() = tokens - x.size(1);
  return torch::constant_pad_nd(x, pad);
}

// value [B, …] or zeros, where which_B says so.
Tensor replaced(const Tensor& x, const Tensor& which_B, const Tensor& value) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[0] = -1;
  return torch::where(which_B.view(shape), value.to(x.scalar_type()), x);
}

}  // namespace

void PaddedText::read(OptionReader& option) {
  option("text_tokens", tokens, "tokens that texts are padded to; 0: as many as a batch's longest text has")
      .between(0, most::kSide);
  option("text_mask", mask, "padding of a text is not seen; false: it is, as the published models see it");
  option("null_text", null,
         "what stands for a dropped text: \"zero\"; or \"empty\", the empty text, which comes as text_empty, "
         "text_empty_mask and, where texts are pooled, text_pooled_empty")
      .one_of({"zero", "empty"});
}

void PaddedText::check(const ModelNeeds& needs, const std::string& model) const {
  if (needs.width("text") == 0)
    throw Error(ErrorKind::config, "model \"" + model + "\"", "takes text, the data has none",
                "choose data with text, or a model without");
  if (!mask && tokens == 0 && needs.shape("text").at(0) < 0)
    throw Error(ErrorKind::config, "model.text_tokens",
                "= 0 pads texts to a batch's longest, and with model.text_mask = false padding is seen: what a sample "
                "is would depend on its neighbours",
                "say how many tokens texts have, or set model.text_mask = true");
}

TensorSpecs PaddedText::takes(const ModelNeeds& needs) const {
  const int64_t width = needs.width("text"), pooled = needs.width("text_pooled");
  TensorSpecs specs{{"text", torch::kFloat, {-1, width}, "embeddings of a text's tokens"}};
  if (mask) specs.push_back({"text_mask", torch::kBool, {-1}, "true where there is text"});
  if (pooled > 0) specs.push_back({"text_pooled", torch::kFloat, {pooled}, "one embedding of the whole text"});
  if (null != "empty") return specs;
  specs.push_back({"text_empty", torch::kFloat, {-1, width}, "embeddings of the empty text's tokens"});
  if (mask) specs.push_back({"text_empty_mask", torch::kBool, {-1}, "true where they are"});
  if (pooled > 0) specs.push_back({"text_pooled_empty", torch::kFloat, {pooled}, "one embedding of the empty text"});
  return specs;
}

Batch PaddedText::padded(Batch batch) const {
  if (tokens == 0) return batch;
  if (const int64_t found = batch.at("text").size(1); found > tokens)
    throw Error(ErrorKind::shape, "text",
                "has " + std::to_string(found) + " tokens, more than model.text_tokens = " + std::to_string(tokens),
                "cut texts to that length, or set model.text_tokens higher");
  batch["text"] = to_length(batch.at("text"), tokens);
  if (mask) batch["text_mask"] = to_length(batch.at("text_mask"), tokens);
  return batch;
}

Batch PaddedText::without_text(Batch batch, const Tensor& which_B) const {
  const auto zero = torch::zeros({1}, batch.at("text").options());
  if (null == "zero") {
    for (const char* name : {"text", "text_pooled"})
      if (batch.has(name)) batch[name] = replaced(batch.at(name), which_B, zero);
    // Nothing of it is seen, so that its length is not either.
    if (mask) batch["text_mask"] = batch.at("text_mask").logical_and(which_B.logical_not().unsqueeze(1));
    return batch;
  }
  const int64_t length = std::max(batch.at("text").size(1), batch.at("text_empty").size(1));
  const auto replace = [&](const char* name, const char* empty) {
    batch[name] = replaced(to_length(batch.at(name), length), which_B, to_length(batch.at(empty), length));
  };
  replace("text", "text_empty");
  if (mask) replace("text_mask", "text_empty_mask");
  if (batch.has("text_pooled"))
    batch["text_pooled"] = replaced(batch.at("text_pooled"), which_B, batch.at("text_pooled_empty"));
  return batch;
}

}  // namespace ditto
