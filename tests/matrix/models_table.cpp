#include "tests/matrix/models_table.h"

#include <string>
#include <utility>

#include "tests/matrix/layouts.h"

namespace ditto::matrix {

namespace {

const Layouts kEvery{
    "recompute=attention",
    "replicate=2",
    "shard=2 shard_plugin=zero1",
    "shard=2 shard_plugin=zero2",
    "shard=2 shard_plugin=fsdp",
    "shard=4 shard_plugin=fsdp recompute=blocks",
    "tensor=2",
    "tensor=4",
    "tensor=2 sequence=true",
    "tensor=2 sequence=true recompute=attention",
    "context=2 context_plugin=ring",
    "context=2 context_plugin=ulysses",
    "context=2 context_plugin=fastseq",
    "context=4 context_plugin=ring recompute=blocks",
    "pipeline=2 pipeline_plugin=pipeline",
    "pipeline=4 pipeline_plugin=pipeline",
    "pipeline=2 pipeline_plugin=pipeline virtual_stages=2",
    "pipeline=2 pipeline_plugin=pipeline virtual_stages=2 pipeline_conditioning=replicated",
    "recompute=blocks",
    "offload=optimizer",
    "replicate=2 shard=2 shard_plugin=fsdp",
    "tensor=2 shard=2 shard_plugin=fsdp",
    "context=2 context_plugin=ring tensor=2 sequence=true",
    "context=2 context_plugin=ring tensor=2",
    "context=2 context_plugin=ulysses tensor=2",
    "context=2 context_plugin=ulysses shard=2 shard_plugin=fsdp",
    "pipeline=2 pipeline_plugin=pipeline tensor=2",
    "pipeline=2 pipeline_plugin=pipeline context=2 context_plugin=ring recompute=blocks",
};

}  // namespace

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
           {"nemo_dit", regions + " " + fsdp},
           {"moviegen", pipeline + " " + ring}}) {
    one.model = model;
    one.layout = layout + " model.depth=2";
    cases.push_back(one);
  }
  return cases;
}

}  // namespace ditto::matrix
