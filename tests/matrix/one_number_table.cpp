#include "tests/matrix/one_number_table.h"

#include <algorithm>
#include <string>

#include "tests/matrix/layouts.h"

namespace ditto::matrix {

namespace {

// What the refusal of a layout says; empty: it has one number.
std::string refusal(const std::string& model, const std::string& layout) {
  const auto has = [&](const char* word) { return layout.find(word) != std::string::npos; };
  if (has("pipeline_conditioning=replicated")) return "parallel.pipeline_conditioning";
  if (has("run.deterministic=false")) return "run.deterministic";
  if (model == "st_dit" && has("context_plugin=ring")) return "frames that lie on several ranks";
  return "";
}

void add(std::vector<Case>& cases, const std::string& model, const Layouts& layouts) {
  Case one;
  one.model = model;
  one.precision = "fp32";
  one.bits = one.one_number = true;
  one.steps = 2;
  for (const auto& layout : layouts) {
    one.layout = layout;
    one.refused = refusal(model, layout);
    cases.push_back(one);
  }
}

const std::string kExpert = "expert=2 expert_plugin=expert";

}  // namespace

std::vector<Case> one_number_cases() {
  std::vector<Case> cases;
  for (const char* model : kModels) {
    auto layouts = layouts_for(model);
    // A refusal in the midst of a forward is that of the ranks of a sample: beside other axes others wait for them.
    std::erase_if(layouts, [&](const std::string& layout) {
      return !refusal(model, layout).empty() && std::find(kAlone.begin(), kAlone.end(), layout) == kAlone.end();
    });
    add(cases, model, layouts);
  }
  add(cases, "dit", kVariants);
  add(cases, "dit", routed(kAlone));
  add(cases, "dit_moe",
      {kExpert + " tensor=2", kExpert + " tensor=2 sequence=true", kExpert + " context=2 context_plugin=ring",
       kExpert + " shard=2 shard_plugin=fsdp", kExpert + " replicate=2", kExpert + " offload=optimizer",
       kExpert + " " + kInterleaved});
  return cases;
}

std::vector<Case> few_one_number_cases() {
  std::vector<Case> cases;
  add(cases, "dit",
      {"shard=2 shard_plugin=fsdp", "tensor=2 sequence=true", "context=2 context_plugin=fastseq",
       "context=2 context_plugin=fastseq tensor=2", kInterleaved + " pipeline_conditioning=replicated"});
  add(cases, "dit", routed({"context=2 context_plugin=ulysses", "tensor=2 sequence=true"}));
  add(cases, "dit_moe", {"tensor=2", kExpert, "context=2 context_plugin=ring tensor=2 sequence=true " + kExpert});
  return cases;
}

}  // namespace ditto::matrix
