#include "tests/matrix/table.h"

#include <map>

#include "tests/matrix/faults.h"
#include "tests/matrix/layouts.h"
#include "tests/matrix/models_table.h"
#include "tests/matrix/one_number_table.h"

namespace ditto::matrix {

namespace {

// The same micro-batches, and so the same bits.
Layouts same_bits(int64_t m) {
  const auto n = std::to_string(m);
  Layouts list{"recompute=blocks",
               "replicate=" + n,
               "shard=" + n + " shard_plugin=zero1",
               "shard=" + n + " shard_plugin=zero2",
               "shard=" + n + " shard_plugin=fsdp",
               "pipeline=2 pipeline_plugin=pipeline",
               "pipeline=2 pipeline_plugin=pipeline shard=2 shard_plugin=fsdp",
               "offload=optimizer"};
  for (size_t i = 1; i < 7; ++i) list.push_back(list[i] + " recompute=blocks");
  if (m == 4) list.push_back("replicate=2 shard=2 shard_plugin=fsdp");
  if (m == 4) list.push_back("pipeline=4 pipeline_plugin=pipeline");
  return list;
}

class Table {
 public:
  Case pattern;  // of what is added
  void add(const Layouts& layouts) {
    for (const auto& layout : layouts) {
      cases.push_back(pattern);
      cases.back().layout = layout;
    }
  }
  void append(const std::vector<Case>& more) { cases.insert(cases.end(), more.begin(), more.end()); }
  std::vector<Case> cases;
};

// Conditioning made by every rank of an interleaved pipeline, alone and beside each other axis.
void add_replicated(Table& table) {
  const std::string layout = kInterleaved + " pipeline_conditioning=replicated";
  const std::map<std::string, Layouts> beside{
      {"dit",
       {"shard=2 shard_plugin=zero1", "shard=2 shard_plugin=zero2", "shard=2 shard_plugin=fsdp recompute=blocks",
        "context=2 context_plugin=ring"}},
      {"dit_text", {"tensor=2 sequence=true"}},
      {"st_dit", {"context=2 context_plugin=spatiotemporal"}},
      {"dit_moe", {"expert=2 expert_plugin=expert"}}};
  for (const auto& [model, others] : beside) {
    table.pattern = Case();
    table.pattern.model = model;
    table.add({layout});
    for (const auto& other : others) table.add({layout + " " + other});
  }
}

// A last accumulation in which some data ranks have no micro-batch, blocks that do not come out even, fewer
// micro-batches than stages.
void add_uneven(Table& table) {
  const std::string experts = kInterleaved + " expert=2 expert_plugin=expert";
  table.pattern = Case();
  table.pattern.model = "dit_moe";
  table.pattern.micro_batches = 3;
  table.pattern.batch = 6;
  table.add({experts, experts + " model.router=expert_choice recompute=blocks"});
  table.pattern.micro_batches = 5;
  table.pattern.batch = 10;
  table.add({experts + " shard=2 shard_plugin=fsdp", experts + " shard=2 shard_plugin=zero1 recompute=attention"});
  table.pattern = Case();
  table.pattern.precision = "fp32";
  table.pattern.bits = true;
  table.pattern.steps = 20;
  table.pattern.micro_batches = 3;
  table.pattern.batch = 6;
  table.add({kInterleaved + " model.depth=7 replicate=4", kInterleaved + " shard=2 shard_plugin=fsdp",
             kInterleaved + " shard=2 shard_plugin=zero1 recompute=attention",
             "pipeline=4 pipeline_plugin=pipeline virtual_stages=2 model.depth=9"});
}

// Token routing: a model with a table of rotary angles, one whose text runs all blocks, one with long skips, and
// others.
void add_routed(Table& table) {
  table.pattern = Case();
  for (const char* model : {"dit", "mmdit", "uvit"}) {
    table.pattern.model = model;
    table.add(routed(kEvery));
  }
  for (const char* model : {"dit_text", "pixart", "nemo_dit", "moviegen", "wan", "dit_moe"}) {
    table.pattern.model = model;
    table.add(routed({"tensor=2 sequence=true", "context=2 context_plugin=ring recompute=blocks",
                      "context=2 context_plugin=ulysses", kInterleaved}));
  }
  table.pattern.model = "nemo_dit";
  table.add(routed(kVideo));
  table.pattern = Case();
  table.pattern.packed = true;
  table.add(routed({"context=2 context_plugin=ring", "tensor=2 sequence=true", kInterleaved}));
  for (const char* precision : {"fp32", "bf16"}) {
    table.pattern = Case();
    table.pattern.precision = precision;
    table.add(routed({"tensor=2 sequence=true", "context=2 context_plugin=ring", kInterleaved}));
  }
}

void add_bits(Table& table, const std::string& model) {
  table.pattern = Case();
  table.pattern.model = model;
  table.pattern.precision = "fp32";
  table.pattern.bits = true;
  table.pattern.steps = 20;
  for (const int64_t m : {2, 4}) {
    table.pattern.micro_batches = m;
    table.add(same_bits(m));
  }
}

std::vector<Case> all() {
  Table table;
  for (const char* model : kModels) {
    for (const char* precision : {"fp64", "fp32", "bf16"}) {
      table.pattern = Case();
      table.pattern.model = model;
      table.pattern.precision = precision;
      table.pattern.replay = precision != std::string("fp64") && model == std::string("dit_moe");
      table.add(layouts_for(model));
    }
    table.pattern = Case();
    table.pattern.model = model;
    table.pattern.real_init = true;
    table.add({"shard=2 shard_plugin=fsdp", "tensor=2 sequence=true", "context=2 context_plugin=ring",
               "pipeline=2 pipeline_plugin=pipeline"});
    add_bits(table, model);
  }
  table.pattern = Case();
  table.pattern.packed = true;
  table.add(kPacked);
  table.add({kInterleaved, kInterleaved + " pipeline_conditioning=replicated context=2 context_plugin=ring"});
  table.pattern.model = "dit_text";  // every sample of a pack sees its own text
  table.add({"context=2 context_plugin=ring", "tensor=2 sequence=true"});
  table.pattern = Case();
  table.add(kVariants);
  table.pattern.model = "dit_text";
  table.add({"model.kv_heads=2 tensor=2 sequence=true", "model.kv_heads=2 context=2 context_plugin=ulysses",
             "model.kv_heads=2 context=2 context_plugin=ring"});
  table.pattern = Case();
  table.pattern.model = "st_dit";
  table.add({"model.arrangement=alternating model.full=false context=2 context_plugin=spatiotemporal"});
  table.pattern.model = "dit_moe";
  table.add({"model.router=expert_choice expert=2 expert_plugin=expert",
             "model.router=expert_choice context=2 context_plugin=ring"});
  add_replicated(table);
  add_uneven(table);
  add_routed(table);
  for (const char* optimizer : {"sgd", "lion", "muon", "adamw8bit"}) {
    table.pattern = Case();
    table.pattern.optimizer = optimizer;
    table.add({"replicate=2", "shard=2 shard_plugin=zero1", "shard=2 shard_plugin=fsdp", "tensor=2",
               "pipeline=2 pipeline_plugin=pipeline", "tensor=2 shard=2 shard_plugin=fsdp"});
  }
  table.append(model_cases());
  table.append(one_number_cases());
  return table.cases;
}

// Degrees of 3 and 6, micro-batches whose last is short (against one rank that sees the batch at once), matrices that
// are large enough for states of 8 bits.
void add_odd(Table& table) {
  table.pattern = Case();
  table.pattern.steps = 3;
  table.pattern.batch = table.pattern.micro_batches = 6;
  table.add({"replicate=3 shard=2 shard_plugin=fsdp", "shard=3 shard_plugin=zero1", "context=3 context_plugin=ring",
             "tensor=3 sequence=true model.width=48 model.heads=6", "pipeline=3 pipeline_plugin=pipeline",
             "context=3 context_plugin=ring tensor=2"});
  table.pattern.batch = 7;
  table.pattern.micro_batches = 1;
  table.pattern.whole = true;
  table.add({"run.micro_batch=3", "shard=2 shard_plugin=fsdp run.micro_batch=2"});
  table.pattern = Case();
  table.pattern.steps = 3;
  table.pattern.optimizer = "adamw8bit";
  table.add({"shard=2 shard_plugin=zero1 model.width=128 model.depth=2", "tensor=2 model.width=128 model.depth=2"});
}

std::vector<Case> core() {
  Table table;
  table.pattern.steps = 4;
  table.add({"replicate=2", "shard=2 shard_plugin=zero1", "shard=2 shard_plugin=zero2", "shard=2 shard_plugin=fsdp",
             "tensor=2", "tensor=2 sequence=true", "context=2 context_plugin=ring", "context=2 context_plugin=ulysses",
             "context=2 context_plugin=fastseq", "pipeline=2 pipeline_plugin=pipeline",
             "pipeline=2 pipeline_plugin=pipeline virtual_stages=2", "recompute=blocks", "offload=optimizer",
             "replicate=2 shard=2 shard_plugin=fsdp", "context=2 context_plugin=ring tensor=2 sequence=true"});
  table.add(routed({"context=2 context_plugin=ring", "tensor=2 sequence=true", kInterleaved}));
  table.pattern.model = "dit_moe";
  table.add({"expert=2 expert_plugin=expert", "context=2 context_plugin=ring",
             "model.router=expert_choice context=2 context_plugin=ring"});
  table.pattern.micro_batches = 3;
  table.pattern.batch = 6;
  table.add({kInterleaved + " expert=2 expert_plugin=expert"});
  add_odd(table);
  table.pattern = Case();
  table.pattern.precision = "fp32";
  table.pattern.bits = true;
  table.pattern.steps = 6;
  table.pattern.micro_batches = 2;
  table.add({"replicate=2", "shard=2 shard_plugin=zero2", "shard=2 shard_plugin=fsdp recompute=blocks",
             "pipeline=2 pipeline_plugin=pipeline"});
  table.append(few_model_cases());
  table.append(few_one_number_cases());
  return table.cases;
}

// What one device can run: no other ranks, or strategies whose groups have one member, whose calls go through the
// transport all the same.
const Layouts kAloneOnADevice{
    "",
    "recompute=blocks",
    "recompute=attention",
    "offload=optimizer",
    "offload=optimizer offload_bytes=100000",
    "shard=1 shard_plugin=zero1",
    "shard=1 shard_plugin=zero2",
    "shard=1 shard_plugin=fsdp",
    "shard=1 shard_plugin=fsdp prefetch=false",
    "shard=1 shard_plugin=fsdp recompute=blocks",
    "shard=1 shard_plugin=fsdp offload=optimizer",
    "tensor=1",
    "tensor=1 sequence=true",
    "context=1 context_plugin=ring",
    "context=1 context_plugin=ulysses",
    "pipeline=1 pipeline_plugin=pipeline",
    "context=1 context_plugin=ring tensor=1 sequence=true shard=1 shard_plugin=fsdp",
};

std::vector<Case> one_device() {
  Table table;
  table.add(kAloneOnADevice);
  table.pattern.micro_batches = 1;
  table.add({"replicate=1", "replicate=1 run.deterministic=false", "replicate=1 recompute=blocks"});
  table.pattern.micro_batches = 0;
  const Layouts few{"", "shard=1 shard_plugin=fsdp recompute=blocks", "tensor=1 sequence=true offload=optimizer"};
  for (const char* model : {"dit_text", "st_dit", "dit_moe"}) {
    table.pattern.model = model;
    table.add(few);
  }
  table.add({"expert=1 expert_plugin=expert", "expert=1 expert_plugin=expert model.router=expert_choice"});
  table.pattern.model = "st_dit";
  table.add({"context=1 context_plugin=ring", "context=1 context_plugin=spatiotemporal"});
  table.pattern = Case();
  table.pattern.packed = true;
  table.add({"", "context=1 context_plugin=ring"});
  for (const char* optimizer : {"sgd", "lion", "muon", "adamw8bit"}) {
    table.pattern = Case();
    table.pattern.optimizer = optimizer;
    table.add({"", "shard=1 shard_plugin=fsdp", "offload=optimizer offload_bytes=100000"});
  }
  table.pattern = Case();
  table.pattern.steps = 4;
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    table.pattern.precision = precision;
    table.add({"", "recompute=blocks", "offload=optimizer", "shard=1 shard_plugin=fsdp", "tensor=1 sequence=true"});
  }
  return table.cases;
}

std::vector<Case> faulty() {
  std::vector<Case> cases;
  for (const char* precision : {"fp64", "fp32", "bf16"})
    for (const auto& planted : planted_faults()) {
      cases.push_back(planted.in);
      cases.back().precision = precision;
      cases.back().replay = precision != std::string("fp64") && planted.in.model == "dit_moe";
    }
  return cases;
}

// Saved by each, and loaded by the others in turn.
std::vector<Case> checkpoints() {
  const Layouts layouts{"",
                        "replicate=2",
                        "shard=2 shard_plugin=zero1",
                        "shard=4 shard_plugin=zero2",
                        "shard=2 shard_plugin=fsdp",
                        "tensor=2",
                        "tensor=2 sequence=true shard=2 shard_plugin=fsdp",
                        "context=2 context_plugin=ring",
                        "pipeline=2 pipeline_plugin=pipeline",
                        "pipeline=2 pipeline_plugin=pipeline shard=2 shard_plugin=fsdp",
                        "offload=optimizer",
                        "replicate=2 shard=2 shard_plugin=fsdp"};
  std::vector<Case> cases;
  Case pattern;
  pattern.steps = 5;
  const auto name = [](size_t i) { return "checkpoint" + std::to_string(i); };
  for (size_t i = 0; i < layouts.size(); ++i) {
    cases.push_back(pattern);
    cases.back().layout = layouts[i];
    cases.back().save_to = name(i);
  }
  pattern.resumed = 5;
  for (size_t i = 0; i < layouts.size(); ++i)
    for (const size_t away : {size_t{1}, size_t{4}}) {
      cases.push_back(pattern);
      cases.back().layout = layouts[i];
      cases.back().load_from = name((i + away) % layouts.size());
    }
  return cases;
}

std::vector<Case> counts() {
  Table table;
  table.pattern.counts = true;
  table.pattern.steps = 2;
  const Layouts everywhere{"tensor=2",
                           "tensor=4",
                           "tensor=2 sequence=true",
                           "tensor=4 sequence=true",
                           "context=2 context_plugin=ring",
                           "context=4 context_plugin=ring",
                           "context=2 context_plugin=ulysses",
                           "context=4 context_plugin=ulysses",
                           "context=2 context_plugin=fastseq",
                           "context=4 context_plugin=fastseq",
                           "shard=2 shard_plugin=zero1",
                           "shard=2 shard_plugin=zero2",
                           "shard=2 shard_plugin=fsdp",
                           "replicate=2",
                           "tensor=2 recompute=blocks",
                           "tensor=2 sequence=true recompute=blocks",
                           "context=2 context_plugin=ring recompute=blocks",
                           "shard=2 shard_plugin=fsdp recompute=blocks"};
  table.add(everywhere);
  table.add({"shard=4 shard_plugin=fsdp", "replicate=4", "replicate=2 shard=2 shard_plugin=fsdp",
             "pipeline=2 pipeline_plugin=pipeline", "pipeline=4 pipeline_plugin=pipeline",
             "context=2 context_plugin=ring tensor=2 sequence=true", "context=2 context_plugin=ulysses tensor=2",
             "context=2 context_plugin=fastseq tensor=2", "tensor=2 shard=2 shard_plugin=fsdp",
             "pipeline=2 pipeline_plugin=pipeline tensor=2 sequence=true",
             "context=2 context_plugin=ring tensor=2 sequence=true shard=2 shard_plugin=fsdp"});
  for (const char* model : {"dit_text", "st_dit"}) {
    table.pattern.model = model;
    table.add(everywhere);
  }
  table.add(kVideo);
  table.pattern.model = "dit_moe";
  table.add(kExperts);
  for (const char* model : kUnets) {
    table.pattern.model = model;
    table.add({"tensor=2", "tensor=4", "tensor=2 recompute=blocks", "pipeline=2 pipeline_plugin=pipeline",
               "pipeline=3 pipeline_plugin=pipeline", "pipeline=2 pipeline_plugin=pipeline tensor=2",
               "shard=2 shard_plugin=fsdp"});
  }
  table.pattern.model = "dit";
  table.pattern.precision = "bf16";
  table.add({"tensor=2 sequence=true", "context=2 context_plugin=ring", "shard=2 shard_plugin=fsdp"});
  return table.cases;
}

const std::map<std::string, std::vector<Case> (*)()> kTables{
    {"core", core},         {"all", all},       {"models", model_cases}, {"one", one_number_cases},
    {"device", one_device}, {"faults", faulty}, {"counts", counts},      {"checkpoints", checkpoints}};

}  // namespace

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kTables) names.push_back(name);
  return names;
}

std::vector<Case> table(const std::string& name) { return kTables.at(name)(); }

}  // namespace ditto::matrix
