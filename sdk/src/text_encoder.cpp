#include <ditto/text_encoder.h>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr const char *kMask = "_mask", *kPooled = "_pooled";

}  // namespace

void TextNames::read(OptionReader& option) {
  option("takes", takes, "the text that is encoded, by its name in the data");
  option("name", name, "of what it makes: NAME, NAME_mask and, where texts are pooled, NAME_pooled");
  if (name.empty()) option.reject("name", "is empty", "name what it makes, as \"text\"");
}

TensorSpec TextNames::taken(const TensorSpecs& inputs) const {
  if (const auto* found = find(inputs, takes); found && is_text(*found)) return *found;
  std::string there;
  for (const auto& input : inputs) there += (there.empty() ? "" : ", ") + to_text(input);
  throw Error(ErrorKind::config, "takes = \"" + takes + "\"",
              "there is no such text, only: " + (there.empty() ? "nothing" : there),
              "name a text of the data, or choose data with texts");
}

TensorSpecs TextNames::made(int64_t tokens, int64_t width, int64_t pooled) const {
  TensorSpecs specs{{name, at::kFloat, {tokens, width}, "embeddings of a text's tokens"},
                    {name + kMask, at::kBool, {tokens}, "true where there is text"}};
  if (pooled > 0) specs.push_back({name + kPooled, at::kFloat, {pooled}, "one embedding of the whole text"});
  return specs;
}

std::vector<std::string> TextNames::texts(const Batch& batch) const { return texts_of(batch.at(takes)); }

void TextNames::put(Batch& batch, const Tensor& text_BSE, std::vector<int64_t> lengths, const Tensor& pooled_BP) const {
  batch[name] = text_BSE;
  batch[name + kMask] = mask_of(lengths, text_BSE.size(1), text_BSE.device());
  batch.lengths[name] = std::move(lengths);
  if (pooled_BP.defined()) batch[name + kPooled] = pooled_BP;
}

Tensor mask_of(const std::vector<int64_t>& lengths, int64_t places, torch::Device device) {
  const auto places_S = torch::arange(places, at::kLong);
  return places_S.unsqueeze(0).lt(torch::tensor(lengths, at::kLong).unsqueeze(1)).to(device);
}

}  // namespace ditto
