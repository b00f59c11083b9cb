#include "tests/matrix/one_number_table.h"

#include <algorithm>
#include <string>

#include "tests/matrix/layouts.h"
#include "tests/matrix/models_table.h"

namespace ditto::matrix {

namespace {

// What the refusal of a layout says; empty: it has one number.
std::string refusal_of_one(const std::string& model, const std::string& layout) {
  const auto has = [&](const char* word) { return layout.find(word) != std::string::npos; };
  if (has("pipeline_conditioning=replicated")) return "parallel.pipeline_conditioning";
  if (has("run.deterministic=false")) return "run.deterministic";
  if ((model == "st_dit" || model == "latte") && has("context_plugin=ring")) return "frames that lie on several ranks";
  if (model == "wan" && has("tensor=2")) return "parallel.tensor";  // norms over all heads
  const bool attends_to_several = model == "mmdit" || model == "flux";
  if (attends_to_several && has("context_plugin=ring")) return "attention of several sequences";
  if ((model == "flux" || model == "jit") && has("context=2")) return "side by side";
  return refusal(model, layout);
}

void add(std::vector<Case>& cases, const std::string& model, const Layouts& layouts) {
  Case one;
  one.model = model;
  one.precision = "fp32";
  one.bits = one.one_number = true;
  one.steps = 2;
  for (const auto& layout : layouts) {
    one.layout = layout;
    one.refused = refusal_of_one(model, layout);
    cases.push_back(one);
  }
}

// Of models that are tried on some layouts alone.
const Layouts kSome{
    "shard=2 shard_plugin=fsdp",
    "tensor=2",
    "tensor=2 sequence=true",
    "context=2 context_plugin=ring",
    "context=2 context_plugin=ulysses",
    "context=2 context_plugin=fastseq",
    "pipeline=2 pipeline_plugin=pipeline",
    "pipeline=2 pipeline_plugin=pipeline tensor=2",
    "pipeline=2 pipeline_plugin=pipeline context=2 context_plugin=ulysses recompute=blocks",
    "shard=2 shard_plugin=fsdp tensor=2",
    "replicate=2",
};

// UNets' ten layouts, and one rank by other micro-batches, threads and instructions.
Layouts of_unet(const std::string& model) {
  Layouts layouts{
      "replicate=2",
      "shard=2 shard_plugin=zero1",
      "shard=2 shard_plugin=zero2",
      "shard=2 shard_plugin=fsdp",
      "replicate=2 shard=2 shard_plugin=fsdp",
      "tensor=2",
      "tensor=4",
      "pipeline=2 pipeline_plugin=pipeline",
      "pipeline=2 pipeline_plugin=pipeline tensor=2 recompute=blocks",
      "offload=optimizer",
      "run.micro_batch=1",
      "run.micro_batch=8 run.threads=2",
      "kernels.*=exact_plain",
  };
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) layouts.emplace_back("kernels.*=exact_avx2");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    layouts.emplace_back("kernels.*=exact_avx512");
#endif
  if (drops(model)) layouts.emplace_back("tensor=2 run.micro_batch=1 model.dropout=0.1");
  return layouts;
}

const std::string kExpert = "expert=2 expert_plugin=expert";

}  // namespace

std::vector<Case> one_number_cases() {
  std::vector<Case> cases;
  // A refusal in the midst of a forward is that of the ranks of a sample: beside other axes others wait for them.
  const auto add_but = [&](const char* model, Layouts layouts, const auto& others_wait) {
    std::erase_if(layouts, [&](const std::string& layout) {
      return !refusal_of_one(model, layout).empty() && others_wait(layout);
    });
    add(cases, model, layouts);
  };
  for (const char* model : kModels)
    add_but(model, layouts_for(model),
            [](const auto& layout) { return std::find(kAlone.begin(), kAlone.end(), layout) == kAlone.end(); });
  const auto pipelines = [](const auto& layout) { return layout.find("pipeline=") != layout.npos; };
  for (const char* model : kMoreModels) add_but(model, kSome, pipelines);
  add(cases, "dit_joins", kOfJoined);
  for (const char* model : kUnets) add(cases, model, of_unet(model));
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
  for (const char* model : kMoreModels) add(cases, model, {kSome.back()});  // does it depend on micro-batches?
  for (const char* model : kUnets) add(cases, model, {"tensor=2"});
  return cases;
}

}  // namespace ditto::matrix
