// Lists of layouts, by what they have in common.
#pragma once

#include <string>
#include <vector>

namespace ditto::matrix {

using Layouts = std::vector<std::string>;

// Every strategy alone.
inline const Layouts kAlone{
    "replicate=2",
    "replicate=4",
    "shard=2 shard_plugin=zero1",
    "shard=4 shard_plugin=zero1",
    "shard=2 shard_plugin=zero2",
    "shard=4 shard_plugin=zero2",
    "shard=2 shard_plugin=fsdp",
    "shard=4 shard_plugin=fsdp",
    "replicate=2 shard=2 shard_plugin=fsdp",
    "tensor=2",
    "tensor=4",
    "tensor=2 sequence=true",
    "tensor=4 sequence=true",
    "context=2 context_plugin=ring",
    "context=4 context_plugin=ring",
    "context=2 context_plugin=ulysses",
    "context=4 context_plugin=ulysses",
    "context=2 context_plugin=fastseq",
    "context=4 context_plugin=fastseq",
    "pipeline=2 pipeline_plugin=pipeline",
    "pipeline=4 pipeline_plugin=pipeline",
    "pipeline=2 pipeline_plugin=pipeline virtual_stages=2",
};
inline const Layouts kVideo{"context=2 context_plugin=spatiotemporal", "context=4 context_plugin=spatiotemporal"};
inline const Layouts kExperts{"expert=2 expert_plugin=expert", "expert=4 expert_plugin=expert"};

inline const Layouts kRecomputed{
    "recompute=blocks",
    "replicate=2 recompute=blocks",
    "shard=2 shard_plugin=zero2 recompute=blocks",
    "shard=2 shard_plugin=fsdp recompute=blocks",
    "tensor=2 sequence=true recompute=blocks",
    "tensor=2 recompute=attention",
    "context=2 context_plugin=ring recompute=blocks",
    "context=2 context_plugin=ulysses recompute=attention",
    "context=2 context_plugin=fastseq recompute=blocks",
    "pipeline=2 pipeline_plugin=pipeline recompute=blocks",
};
inline const Layouts kOffloaded{
    "offload=optimizer",
    "replicate=2 offload=optimizer",
    "shard=2 shard_plugin=zero1 offload=optimizer",
    "shard=2 shard_plugin=fsdp offload=optimizer",
    "tensor=2 offload=optimizer",
};

// Options of strategies that the others leave as they are.
inline const Layouts kVariants{
    "recompute=blocks recompute_every=2",
    "offload=optimizer offload_bytes=100000",
    "shard=2 shard_plugin=fsdp prefetch=false",
    "pipeline=2 pipeline_plugin=pipeline pipeline_conditioning=replicated",
    "pipeline=2 pipeline_plugin=pipeline virtual_stages=2 shard=2 shard_plugin=fsdp",
    "replicate=2 run.deterministic=false",
    "shard=2 shard_plugin=zero1 run.deterministic=false",
    "tensor=2 replicate=2 run.deterministic=false",
};
inline const Layouts kPacked{"context=2 context_plugin=ring",
                             "context=4 context_plugin=ring",
                             "context=2 context_plugin=ulysses",
                             "context=4 context_plugin=ulysses",
                             "context=2 context_plugin=fastseq",
                             "pipeline=2 pipeline_plugin=pipeline",
                             "tensor=2 sequence=true",
                             "shard=2 shard_plugin=fsdp",
                             "pipeline=2 pipeline_plugin=pipeline context=2 context_plugin=ring"};

// Two or three axes on four or eight ranks.
inline const Layouts kComposed{
    "tensor=2 shard=2 shard_plugin=fsdp",
    "tensor=2 replicate=2",
    "context=2 context_plugin=ring shard=2 shard_plugin=fsdp",
    "context=2 context_plugin=ulysses tensor=2",
    "context=2 context_plugin=ring tensor=2 sequence=true",
    "context=2 context_plugin=fastseq tensor=2",
    "pipeline=2 pipeline_plugin=pipeline tensor=2",
    "pipeline=2 pipeline_plugin=pipeline shard=2 shard_plugin=fsdp",
    "pipeline=2 pipeline_plugin=pipeline shard=2 shard_plugin=zero1",
    "pipeline=2 pipeline_plugin=pipeline context=2 context_plugin=ring",
};

// What NeMo lists as supported: FSDP, TP, SP, CP, PP, EP and the distributed optimizer together.
inline const Layouts kNemo{
    "shard=8 shard_plugin=fsdp",
    "context=2 context_plugin=ring tensor=2 sequence=true shard=2 shard_plugin=fsdp",
    "context=2 context_plugin=ring tensor=2 sequence=true shard=2 shard_plugin=zero1",
    "context=2 context_plugin=ulysses tensor=2 sequence=true shard=2 shard_plugin=zero2",
    "pipeline=2 pipeline_plugin=pipeline context=2 context_plugin=ring tensor=2 sequence=true shard=2 "
    "shard_plugin=zero1",
    "pipeline=2 pipeline_plugin=pipeline context=2 context_plugin=ring tensor=2 sequence=true shard=2 "
    "shard_plugin=fsdp",
};
inline const Layouts kNemoExperts{
    "context=2 context_plugin=ring tensor=2 sequence=true expert=2 expert_plugin=expert",
    "context=2 context_plugin=ring tensor=2 sequence=true shard=2 shard_plugin=zero1 expert=2 expert_plugin=expert",
    "context=2 context_plugin=ring tensor=2 sequence=true shard=2 shard_plugin=fsdp expert=2 expert_plugin=expert",
};

// Of UNets: what needs no tokens.
inline const Layouts kOfMaps{
    "replicate=2",
    "shard=2 shard_plugin=zero1",
    "shard=2 shard_plugin=zero2",
    "shard=2 shard_plugin=fsdp",
    "replicate=2 shard=2 shard_plugin=fsdp",
    "tensor=2",
    "tensor=4",
    "pipeline=2 pipeline_plugin=pipeline",
    "pipeline=3 pipeline_plugin=pipeline",
    "pipeline=2 pipeline_plugin=pipeline virtual_stages=2 shard=2 shard_plugin=fsdp",
    "recompute=blocks",
    "offload=optimizer",
    "tensor=2 shard=2 shard_plugin=fsdp",
    "pipeline=2 pipeline_plugin=pipeline tensor=2 recompute=blocks",
};
inline const Layouts kDropped{
    "replicate=2 model.dropout=0.1",
    "tensor=2 model.dropout=0.1",
    "pipeline=2 pipeline_plugin=pipeline tensor=2 recompute=blocks model.dropout=0.1",
};
// What cuts tokens, and what deals out experts.
inline const Layouts kOfTokens{
    "tensor=2 sequence=true",           "context=2 context_plugin=ring",           "context=2 context_plugin=ulysses",
    "context=2 context_plugin=fastseq", "context=2 context_plugin=spatiotemporal", "expert=2 expert_plugin=expert",
};

inline const std::string kInterleaved = "pipeline=2 pipeline_plugin=pipeline virtual_stages=2";

// Each axis and its strategies, recomputed, and put together.
inline const Layouts kEvery{
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

// Tokens go around blocks 1 and 2 of 4: a pipeline's stages begin and end inside of the route. Of 64 tokens 39 are
// left.
inline Layouts routed(const Layouts& layouts) {
  Layouts list;
  for (const auto& layout : layouts) list.push_back("tread.ratio=0.4 tread.start=1 tread.end=-1 " + layout);
  return list;
}

// Trained on every layout, in every precision; and the others (models_table.h).
inline const char* const kModels[] = {"dit", "dit_text", "st_dit", "dit_moe"};
inline const char* const kMoreModels[] = {"pixart", "uvit",  "jit",      "mmdit",   "flux",
                                          "wan",    "latte", "nemo_dit", "moviegen"};

// `dit` that sees a smaller picture beside x (model.joins).
inline const Layouts kOfJoined{"shard=2 shard_plugin=fsdp",           "tensor=2 sequence=true recompute=blocks",
                               "context=2 context_plugin=ring",       "context=2 context_plugin=ulysses",
                               "pipeline=2 pipeline_plugin=pipeline", "pipeline=2 pipeline_plugin=pipeline tensor=2"};

inline const char* const kUnets[] = {"unet_sd", "imagen_unet", "imagen_efficient_unet"};
// NVIDIA's efficient one has no such option.
inline bool drops(const std::string& unet) { return unet != "imagen_efficient_unet"; }

// What each model of the matrix is trained on, in every precision.
inline Layouts layouts_for(const std::string& model) {
  Layouts list = kAlone;
  const auto append = [&](const Layouts& more) { list.insert(list.end(), more.begin(), more.end()); };
  if (model == "st_dit") append(kVideo);
  if (model == "dit_moe") append(kExperts);
  append(kRecomputed);
  append(kOffloaded);
  append(kComposed);
  append(kNemo);
  if (model == "dit_moe") append(kNemoExperts);
  return list;
}

}  // namespace ditto::matrix
