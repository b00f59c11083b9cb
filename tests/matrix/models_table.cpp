#include "tests/matrix/models_table.h"

#include <string>
#include <utility>

#include "tests/matrix/layouts.h"

namespace ditto::matrix {

std::string refusal(const std::string& model, const std::string& layout) {
  const auto has = [&](const char* word) { return layout.find(word) != layout.npos; };
  if (model == "wan" && has("context_plugin=fastseq")) return "a norm over all heads of a token";
  // One map of class and picture, or of text and picture.
  if ((model == "jit" || model == "flux") && (has("sequence=true") || has("context_plugin=fastseq")))
    return "maps those of several side by side";
  return "";
}

std::vector<Case> model_cases() {
  std::vector<Case> cases;
  for (const char* model : kMoreModels)
    for (const auto& layout : kEvery) {
      cases.emplace_back();
      cases.back().model = model;
      cases.back().layout = layout;
      cases.back().refused = refusal(model, layout);
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
  return cases;
}

}  // namespace ditto::matrix
