#include "tests/matrix/faults.h"

#include <torch/types.h>

#include "tests/matrix/unet_forms.h"

namespace ditto::matrix {

using torch::Tensor;

namespace {

// A strategy that does nothing but what a fault tells it to.
struct Saboteur final : ParallelStrategy {
  std::optional<Axis> axis() const override { return std::nullopt; }
  bool train_step(const std::vector<Batch>&, Program& program, const StepPlan&) override {
    if (change_program) change_program(program);
    return false;
  }
  void end_accumulation(int64_t accumulation, const StepPlan&) override {
    if (after_accumulation) after_accumulation(accumulation);
  }
  void sync_gradients() override {
    if (before_sums) before_sums();
  }
  void parameters_changed() override {
    if (after_update) after_update();
  }
  AxisSet sums(const LayoutEntry& entry, const StepPlan&) const override { return claims ? claims(entry) : AxisSet(); }
  std::function<AxisSet(const LayoutEntry&)> claims;
  std::function<void(Program&)> change_program;
  std::function<void(int64_t)> after_accumulation;
  std::function<void()> before_sums, after_update;
};

std::shared_ptr<Saboteur> plant(Assembly& assembly) {
  auto saboteur = std::make_shared<Saboteur>();
  assembly.main->strategies.insert(assembly.main->strategies.begin(), saboteur);
  return saboteur;
}

LayoutEntry& entry_of(Assembly& assembly, const std::string& name) {
  for (auto& entry : assembly.main->layout.entries)
    if (entry.name == name) return entry;
  throw Error(ErrorKind::config, "--fault", "this rank holds no \"" + name + "\"", "choose another layout");
}

bool is_second(const Assembly& assembly, Axis axis) { return assembly.mesh.index(axis) == 1; }

using Attend = std::function<void(AttentionPart&)>;
void change_attention(Assembly& assembly, Attend change) {
  const auto inner = assembly.main->ctx->attention_op.run;
  assembly.main->ctx->attention_op.run = [inner, change](AttentionCall call) {
    if (call.pattern != Pattern::cross) change(call.parts.at(0));
    return inner(call);
  };
}

// The second half of one rank's keys and values is the first once more: one block dropped, another seen twice.
void drop_key_block(Assembly& assembly, FaultHooks&) {
  if (!is_second(assembly, Axis::context)) return;
  change_attention(assembly, [](AttentionPart& part) {
    for (Tensor* x : {&part.k, &part.v}) {
      const auto first_half = x->narrow(1, 0, x->size(1) / 2);
      *x = torch::cat({first_half, first_half}, 1);
    }
  });
}

void swap_heads(Assembly& assembly, FaultHooks&) {
  if (!is_second(assembly, Axis::tensor)) return;
  change_attention(assembly, [](AttentionPart& part) { part.k = part.k.flip(2), part.v = part.v.flip(2); });
}

constexpr const char* kCopied = "patches.map.weight";  // a copy along every axis but fsdp's

void leave_out_sum(Assembly& assembly, FaultHooks&) {
  entry_of(assembly, kCopied);
  plant(assembly)->claims = [](const LayoutEntry& entry) {
    return entry.name == kCopied ? AxisSet{Axis::tensor} : AxisSet();
  };
}

void sum_twice(Assembly& assembly, FaultHooks&) {
  plant(assembly)->before_sums = [&assembly] {
    auto& grad = entry_of(assembly, kCopied).tensor.mutable_grad();
    grad = assembly.mesh.group(Axis::tensor).all_reduce(grad.clone());
  };
}

void draw_noise_by_rank(Assembly& assembly, FaultHooks&) {
  assembly.main->ctx->random = Random(assembly.main->ctx->random.seed() + static_cast<uint64_t>(assembly.mesh.rank()));
}

void forget_loss_share(Assembly& assembly, FaultHooks&) {
  plant(assembly)->change_program = [&assembly](Program& program) {
    program.loss = [inner = program.loss, n = assembly.mesh.size(Axis::tensor)](
                       const Stream& stream, const Outputs& outputs, const Batch& batch) {
      return inner(stream, outputs, batch) * n;
    };
  };
}

// One layer of one rank computes with the numbers of the first step for ever.
void keep_stale_weights(Assembly& assembly, FaultHooks&) {
  if (!is_second(assembly, Axis::shard)) return;
  auto& entry = entry_of(assembly, "blocks.1.up.weight");
  entry.layer->before = [inner = entry.layer->before, parameter = entry.parameter, ctx = assembly.main->ctx.get(),
                         stale = Tensor()](const Tensor& x) mutable {
    const torch::NoGradGuard no_grad;
    const auto weight = parameter(*ctx);
    if (stale.defined())
      weight.copy_(stale);
    else
      stale = weight.clone();
    return inner ? inner(x) : x;
  };
}

using ChangeStream = std::function<void(Stream&)>;
void change_stream(Assembly& assembly, ChangeStream change) {
  plant(assembly)->change_program = [change](Program& program) {
    program.begin = [inner = program.begin, change](const Batch& batch) {
      auto stream = inner(batch);
      change(stream);
      return stream;
    };
  };
}

void shift_rotary(Assembly& assembly, FaultHooks&) {
  if (is_second(assembly, Axis::context))
    change_stream(assembly, [](Stream& stream) { stream.rotary_TK = stream.rotary_TK.roll(1, 0); });
}

void lose_condition_gradient(Assembly& assembly, FaultHooks&) {
  if (is_second(assembly, Axis::context))
    change_stream(assembly, [](Stream& stream) { stream.condition.cond_BD = stream.condition.cond_BD.detach(); });
}

void count_auxiliary_twice(Assembly& assembly, FaultHooks&) {
  if (!is_second(assembly, Axis::expert)) return;
  plant(assembly)->change_program = [](Program& program) {
    program.loss = [inner = program.loss](Stream stream, const Outputs& outputs, const Batch& batch) {
      for (auto& [name, loss] : stream.auxiliary_losses) loss = loss * 2;
      return inner(stream, outputs, batch);
    };
  };
}

// The sum is right; for the norm alone the copy looks like a piece.
void count_copy_in_norm(Assembly& assembly, FaultHooks& hooks) {
  plant(assembly)->before_sums = [&assembly] {
    auto& entry = entry_of(assembly, kCopied);
    auto& grad = entry.tensor.mutable_grad();
    grad = assembly.mesh.group(Axis::tensor).all_reduce(grad.clone());
    entry.cuts[Axis::tensor] = Cut{0, {entry.full_shape[0]}, 0, 1};
  };
  hooks.before_optimizer = [&assembly] { entry_of(assembly, kCopied).cuts.erase(Axis::tensor); };
}

void lose_micro_batch(Assembly& assembly, FaultHooks&) {
  if (assembly.mesh.data_rank() != 1) return;
  plant(assembly)->after_accumulation = [&assembly](int64_t accumulation) {
    for (auto& entry : assembly.main->layout.entries)
      if (accumulation == 0 && entry.tensor.grad().defined()) entry.tensor.mutable_grad().zero_();
  };
}

void lose_update(Assembly& assembly, FaultHooks&) {
  if (!is_second(assembly, Axis::replicate)) return;
  const auto before = entry_of(assembly, kCopied).tensor.detach().clone();
  plant(assembly)->after_update = [&assembly, before] { entry_of(assembly, kCopied).tensor.detach().copy_(before); };
}

using RunBlocks = std::function<void(int64_t first, int64_t last, Stream&)>;
void change_blocks(Assembly& assembly, const std::function<void(const RunBlocks&, int64_t, int64_t, Stream&)>& change) {
  plant(assembly)->change_program = [change](Program& program) {
    program.blocks = [inner = program.blocks, change](int64_t first, int64_t last, Stream& stream) {
      change(inner, first, last, stream);
    };
  };
}

// As many groups of the channels that are here as there are of all.
void norm_channels_here(Assembly& assembly, FaultHooks&) {
  for (auto& entry : assembly.main->layout.entries) {
    const auto* cut = entry.declared(Axis::tensor);
    if (!cut || !entry.name.ends_with(".norm2.weight")) continue;
    const auto name = entry.name.substr(0, entry.name.rfind('.')) + ".bias";
    const auto given = std::make_shared<Tensor>();
    entry.layer->before = [given](const Tensor& x) { return *given = x; };
    entry.layer->after = [given, groups = entry.full_shape[0] / cut->unit, weight = entry.parameter,
                          bias = entry_of(assembly, name).parameter, ctx = assembly.main->ctx.get()](const Tensor&) {
      return torch::group_norm(std::exchange(*given, Tensor()), groups, weight(*ctx), bias(*ctx));
    };
  }
}

// The last one that a stage before has left.
void add_skip_twice(Assembly& assembly, FaultHooks&) {
  if (!is_second(assembly, Axis::pipeline)) return;
  change_blocks(assembly, [](const RunBlocks& run, int64_t first, int64_t last, Stream& stream) {
    Tensor* skip = nullptr;
    for (auto& [name, field] : stream.extra)
      if (name.starts_with("skip.")) skip = &field.tensor;
    if (!skip) throw Error(ErrorKind::config, "--fault", "no skip has come here", "choose another layout");
    *skip = *skip + *skip;
    run(first, last, stream);
  });
}

void draw_dropout_by_rank(Assembly& assembly, FaultHooks&) {
  auto& random = assembly.main->ctx->random;
  const Random own(random.seed() + static_cast<uint64_t>(assembly.mesh.rank()));
  change_blocks(assembly, [&random, own](const RunBlocks& run, int64_t first, int64_t last, Stream& stream) {
    const auto of_all = std::exchange(random, own);
    run(first, last, stream);
    random = of_all;
  });
}

struct Fault {
  const char* name;
  const char* what;
  const char* model;
  const char* layout;
  const char* place;  // where `ditto diff` has to find it
  void (*tamper)(Assembly&, FaultHooks&);
};

const std::vector<Fault>& faults() {
  static const std::vector<Fault> kFaults{
      {"key_block_dropped", "a rank sees half of its keys twice and the rest never", "dit",
       "context=2 context_plugin=ring", "block 0, attention: k", drop_key_block},
      {"gradient_not_summed", "a copy's gradient is not summed over the tensor axis", "dit", "tensor=2",
       "sums the gradient: patches.map.weight", leave_out_sum},
      {"gradient_summed_twice", "a copy's gradient is summed over the tensor axis twice", "dit", "tensor=2",
       "sums the gradient: patches.map.weight", sum_twice},
      {"heads_swapped", "one rank's key and value heads are in the wrong order", "dit", "tensor=2",
       "block 0, attention: k", swap_heads},
      {"noise_by_rank", "ranks that share samples draw other noise", "dit", "tensor=2",
       "forward, batch, makes: ", draw_noise_by_rank},
      {"loss_share_missing", "the loss is not divided among the ranks that compute it", "dit", "tensor=2",
       "objective, makes: gradient of loss.", forget_loss_share},
      {"stale_gather", "a rank computes one layer with the weights of the first step", "dit",
       "shard=2 shard_plugin=fsdp", "step 2, forward, block 1, uses: blocks.1.up.weight", keep_stale_weights},
      {"rotary_offset", "one rank's rotary angles are off by one token", "dit_text", "context=2 context_plugin=ulysses",
       "block 0, reads: rotary", shift_rotary},
      {"auxiliary_loss_twice", "one rank counts the experts' auxiliary loss twice", "dit_moe",
       "expert=2 expert_plugin=expert", "losses, makes: auxiliary.", count_auxiliary_twice},
      {"norm_counts_copy", "the clip norm counts a replicated parameter twice", "dit", "tensor=2",
       "run, makes: gradient norm", count_copy_in_norm},
      {"condition_gradient_lost", "one rank sends no gradient into the conditioning", "dit",
       "context=2 context_plugin=ulysses", "silu: gradient of result", lose_condition_gradient},
      {"micro_batch_lost", "the gradients of one micro-batch are lost", "dit", "replicate=2", "step 1, update, ",
       lose_micro_batch},
      {"update_lost", "a copy misses the updates of one parameter", "dit", "replicate=2", "updates: patches.map.weight",
       lose_update},
      {"norm_of_own_channels", "a norm has its groups of the channels that its rank has", "unet_sd", "tensor=2",
       "forward, block 0, ", norm_channels_here},
      {"skip_twice", "a skip that came from the stage before is added twice", "imagen_efficient_unet",
       "pipeline=2 pipeline_plugin=pipeline", "reads: extra.skip.", add_skip_twice},
      {"dropout_by_rank", "ranks that share channels drop other numbers", "imagen_unet", "tensor=2 model.dropout=0.1",
       "forward, block 0, ", draw_dropout_by_rank},
  };
  return kFaults;
}

}  // namespace

std::vector<PlantedFault> planted_faults() {
  std::vector<PlantedFault> list;
  for (const auto& one : faults()) {
    Case in;
    in.model = one.model;
    in.layout = one.layout;
    in.fault = one.name;
    in.steps = 3;
    if (unet_of(one.model)) in.batch = 4;
    list.push_back({one.name, one.what, in});
  }
  return list;
}

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const auto& one : faults()) names.emplace_back(one.name);
  return names;
}

std::string place_of_fault(const std::string& name) {
  for (const auto& one : faults())
    if (name == one.name) return one.place;
  return "";
}

Tamper fault(const std::string& name) {
  if (name.empty()) return {};
  for (const auto& one : faults())
    if (name == one.name) return one.tamper;
  throw Error(ErrorKind::config, "--fault", "there is no fault \"" + name + "\"", "");
}

}  // namespace ditto::matrix
