#include <ditto/nn/conditions.h>

#include <torch/types.h>

namespace ditto {

using torch::Tensor;

TensorSpecs takes_offered(const ModelNeeds& needs, const std::vector<std::string>& names) {
  TensorSpecs specs;
  for (const auto& name : names)
    if (const auto* offered = find(needs.inputs, name)) {
      specs.push_back({name, offered->dtype, offered->shape, offered->range, offered->values});
      if (name == "x") specs.back().range = offered->shape.size() == 4 ? "noisy video" : "noisy picture";
      if (name == "t") specs.back().range = "time, in the scheduler's units";
      if (name == "label")
        specs.back().range = "0 to " + std::to_string(offered->values) + ", the last is the null class";
    }
  return specs;
}

Batch without_class_and_text(Batch batch, const Tensor& which_B, const ModelNeeds& needs) {
  if (const int64_t classes = needs.values("label"); classes > 0) {
    const auto label_B = batch.at("label");
    batch["label"] = torch::where(which_B, torch::full_like(label_B, classes), label_B);
  }
  if (needs.width("text_pooled") == 0) return batch;
  const auto text_BE = batch.at("text_pooled");
  const auto empty_BE =
      needs.width("text_pooled_empty") > 0 ? batch.at("text_pooled_empty") : torch::zeros_like(text_BE);
  batch["text_pooled"] = torch::where(which_B.unsqueeze(1), empty_BE, text_BE);
  return batch;
}

int64_t require_text(const std::string& model, const ModelNeeds& needs) {
  if (const int64_t width = needs.width("text")) return width;
  throw Error(ErrorKind::config, "model \"" + model + "\"", "takes text, the data has none",
              "choose data with text, or a model without");
}

void offer_text(ModelNeeds& needs, int64_t width, bool and_empty) {
  for (const std::string name : {"text", "text_empty"}) {
    if (name == "text_empty" && !and_empty) continue;
    needs.inputs.push_back({name, torch::kFloat, {-1, width}, ""});
    needs.inputs.push_back({name + "_mask", torch::kBool, {-1}, ""});
  }
}

void read_null_text(OptionReader& option, std::string& null_text) {
  option("null_text", null_text,
         "what stands for a dropped text: \"learned\", an embedding; \"zero\"; or \"empty\", the empty text's "
         "embedding, which comes as text_empty and text_empty_mask")
      .one_of({"learned", "zero", "empty"});
}

}  // namespace ditto
