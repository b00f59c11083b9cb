#include "tests/matrix/models_table.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "tests/matrix/layouts.h"

namespace ditto::matrix {

std::string refusal(const std::string& model, const std::string& layout) {
  const auto has = [&](const char* word) { return layout.find(word) != layout.npos; };
  if (std::find(std::begin(kUnets), std::end(kUnets), model) != std::end(kUnets)) {
    if (has("expert=2")) return "the model has no experts";
    return has("sequence=true") || has("context=2") ? "cuts tokens, and this model does not say" : "";
  }
  if (model == "wan" && has("context_plugin=fastseq")) return "a norm over all heads of a token";
  // One map of class and picture, or of text and picture.
  if ((model == "jit" || model == "flux") && (has("sequence=true") || has("context_plugin=fastseq")))
    return "maps those of several side by side";
  return "";
}

std::vector<Case> model_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& model, const Layouts& layouts) {
    for (const auto& layout : layouts) {
      cases.emplace_back();
      cases.back().model = model;
      cases.back().layout = layout;
      cases.back().refused = refusal(model, layout);
    }
  };
  for (const char* model : kMoreModels) add(model, kEvery);
  add("dit_joins", kOfJoined);
  for (const char* model : kUnets) {
    add(model, kOfMaps);
    if (drops(model)) add(model, kDropped);
    add(model, kOfTokens);
  }
  return cases;
}

std::vector<Case> few_model_cases() {
  const std::string regions = "tensor=2 sequence=true", pipeline = "pipeline=2 pipeline_plugin=pipeline",
                    ring = "context=2 context_plugin=ring", fsdp = "shard=2 shard_plugin=fsdp";
  std::vector<Case> cases;
  Case one;
  one.steps = one.micro_batches = 2;
  one.batch = 4;
  for (const auto& [model, layout] : std::vector<std::pair<std::string, std::string>>{
           {"dit_text", regions + " " + fsdp},
           {"st_dit", pipeline + " context=2 context_plugin=spatiotemporal"},
           {"pixart", pipeline + " " + regions},
           {"uvit", pipeline + " " + regions},
           {"dit_joins", ring + " tensor=2"},
           {"jit", ring + " tensor=2"},
           {"mmdit", "context=2 context_plugin=ulysses tensor=2"},
           {"flux", pipeline + " tensor=2"},
           {"wan", ring + " " + regions},
           {"latte", pipeline + " context=2 context_plugin=ulysses"},
           {"nemo_dit", regions + " " + fsdp},
           {"moviegen", pipeline + " " + ring}}) {
    one.model = model;
    one.layout = layout + " model.depth=2";
    cases.push_back(one);
  }
  for (const auto& [model, layout] :
       std::vector<std::pair<std::string, std::string>>{{"unet_sd", "tensor=2 " + fsdp},
                                                        {"imagen_unet", "tensor=2 recompute=blocks model.dropout=0.1"},
                                                        {"imagen_efficient_unet", pipeline}}) {
    one.model = model;
    one.layout = layout;
    cases.push_back(one);
  }
  return cases;
}

}  // namespace ditto::matrix
