#include "core/config/run_options.h"

#include <algorithm>
#include <numeric>

#include <ditto/math/sizes.h>

namespace ditto {

namespace {

// Slips of the finger, refused before memory and threads are asked for; far above what anybody runs.
constexpr int64_t kMostThreads = 4096;
constexpr int64_t kMostSamples = int64_t{1} << 24;  // of a step, or a validation
constexpr int64_t kMostTokens = int64_t{1} << 24;   // of a leaf
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr int64_t kMostPictures = 4096;  // of a sheet
constexpr double kMostSeconds = 1e8;     // in nanoseconds, too, a number of 64 bits

// What a step's results are, and what they do.
void read_results_of(RunOptions& run, OptionReader& option) {
  option("deterministic", run.deterministic, "sum gradients in the order of the micro-batches, whatever the ranks")
      .changes(Effect::bits);
  option("clip_norm", run.clip_norm, "largest norm of the gradient; 0: not clipped")
      .at_least(0)
      .changes(Effect::course);
  option("non_finite", run.non_finite, "what a loss or gradient that is not finite does")
      .one_of({"stop", "skip"})
      .changes(Effect::course);
  option(
      "read_results", run.read_results,
      "when the host reads a step's losses and norm: at_once, before it asks for the update; late, while the next step "
      "is computed, and the device decides by itself what is skipped: the same numbers. auto: late on CUDA")
      .one_of({"auto", "at_once", "late"})
      .changes(Effect::nothing)
      .noted_if_given();
  option("max_skipped", run.max_skipped, "with non_finite = \"skip\": steps in a row that may be skipped")
      .at_least(1)
      .changes(Effect::course);
  option("audit", run.audit,
         "share of the micro-batches that another data rank computes again, to be compared bit for bit; 0: none")
      .between(0, 1)
      .changes(Effect::nothing);
  option("audit_policy", run.audit_policy,
         "what another result of an audited micro-batch does: stop; or redo: what most agree on is computed again")
      .one_of({"stop", "redo"})
      .changes(Effect::nothing);
  option.only_if(run.audit > 0, {"audit_policy"}, "says what to do about what an audit finds, and run.audit is 0");
}

}  // namespace

void RunOptions::read(OptionReader& option) {
  option("name", name, "name of the run").changes(Effect::nothing);
  if (name.empty()) option.reject("name", "is empty", "name the run, or leave it out");
  if (name == "." || name == "..")  // of runs/NAME
    option.reject("name", "is the name of a folder that others are in", "give the run a name of its own");
  option("output", output, "folder of the run; default runs/NAME").changes(Effect::nothing).place();
  option("folder", folder, "relative paths in the recipe are relative to this folder; default: the recipe's own")
      .changes(Effect::nothing)
      .place();
  option("steps", steps, "training steps").at_least(0).changes(Effect::course);
  option("seed", seed, "seed of everything random").at_least(0);
  option("threads", threads,
         "threads a rank computes with; 0: OMP_NUM_THREADS, or the cores, shared among the ranks on this machine")
      .between(0, kMostThreads)
      .changes(Effect::bits);
  option("device", device, "where to compute; on CUDA rank r of a machine takes its GPU number r")
      .one_of({"cpu", "cuda"})
      .changes(Effect::bits);
  option("transport", transport,
         "plugin that carries tensors between ranks; empty: nccl on CUDA, and on the CPU the host's own, shared memory "
         "and Gloo")
      .changes(Effect::bits)
      .noted_if_given();
  option("precision", precision, "what layers multiply in, over fp32 weights; fp64 is for proofs (fp64 weights too)")
      .one_of({"fp32", "bf16", "fp16", "fp64"})
      .changes(Effect::bits);
  option(
      "numerics", numerics,
      "fast: the fastest kernels; one: bits of fp32 (with precision = \"bf16\", of products of numbers rounded to it) "
      "that follow from the recipe alone, whatever the layout, threads, micro-batches and instructions")
      .one_of({"fast", "one"})
      .changes(Effect::bits);
  option("token_leaf", token_leaf,
         "with numerics = \"one\": a sum over a sample's tokens, or keys, is a tree over leaves of so many; another "
         "number "
         "gives other bits, and ranks that share tokens share leaves")
      .between(1, kMostTokens)
      .changes(Effect::course);
  option.only_if(numerics == "one", {"token_leaf"}, "says in what leaves to sum under run.numerics = \"one\"");
  option(
      "bf16_in_fp32", bf16_in_fp32,
      "ops whose calls in bf16 are computed in fp32, and rounded; auto: those that this processor is faster at so, by "
      "rates that are measured once, and on a resume those of the run")
      .changes(Effect::bits);
  const bool is_one_word = bf16_in_fp32 == std::vector<std::string>{kMeasured};
  if (!is_one_word && std::find(bf16_in_fp32.begin(), bf16_in_fp32.end(), kMeasured) != bf16_in_fp32.end())
    option.reject("bf16_in_fp32", "has \"auto\" beside ops", "give it alone, or ops alone");
  option("memory_format", memory_format,
         "how a UNet's maps lie, which says what convolutions and norms compute with; auto: what this machine is "
         "faster at, by rates that are measured once, and on a resume as in the run")
      .one_of({kMeasured, kChannelsFirst, kChannelsLast})
      .changes(Effect::bits)
      .noted_if_given();
  option("batch", batch, "samples a step, over all ranks").between(1, kMostSamples);
  option("micro_batch", micro_batch, "samples a forward; 0: the batch, divided by the data ranks")
      .between(0, kMostSamples)
      .changes(Effect::bits);
  // Each halving from a larger one is a step left out.
  option("loss_scale", loss_scale, "fp16: the first loss scale; halved at an overflow")
      .between(1, 4294967296.0)
      .changes(Effect::course);
  option("loss_scale_every", loss_scale_every, "fp16: steps without overflow after which the loss scale is doubled")
      .at_least(1)
      .changes(Effect::course);
  option.only_if(precision == "fp16", {"loss_scale", "loss_scale_every"}, "is of precision = \"fp16\"");
  read_results_of(*this, option);
  read_start(option);
}

void RunOptions::read_start(OptionReader& option) {
  option("init_from", init_from, "checkpoint or run whose weights to start from").changes(Effect::nothing).place();
  option("init_weights", init_weights, "which weights init_from takes")
      .one_of({"ema", "weights"})
      .changes(Effect::nothing);
  const auto unlike = [&](const char* name, std::string& value, const char* help, std::vector<std::string> allowed) {
    option(name, value, help).one_of(allowed).changes(Effect::nothing);
  };
  unlike("init_missing", init_missing, "tensors that init_from lacks: they keep their new values", {"refuse", "new"});
  unlike("init_extra", init_extra, "tensors of init_from that this model lacks: they are left out", {"refuse", "skip"});
  unlike("init_other_shape", init_other_shape,
         "tensors of another shape there: they keep their new values, or learned tables of positions are interpolated",
         {"refuse", "skip", "positions"});
  option.only_if(!init_from.empty(), {"init_weights", "init_missing", "init_extra", "init_other_shape"},
                 "says what to make of other weights, and run.init_from names none");
}

void LrScheduleOptions::read(OptionReader& option) {
  option("kind", kind, "shape after the warm-up").one_of({"constant", "linear", "cosine"});
  option("lr", lr, "learning rate after the warm-up").at_least(0);
  option("warmup", warmup, "steps of linear rise from 0").at_least(0);
  option("final_share", final_share, "linear and cosine: share of lr that is left at the last step").between(0, 1);
  option.only_if(kind != "constant", {"final_share"}, "is of a falling rate, kind = \"cosine\" or \"linear\"");
}

void EmaOptions::read(OptionReader& option) {
  option("enabled", enabled, "keep an exponential moving average of the weights");
  option("decay", decay, "share of the average kept each step").between(0, 1);
  option("warmup", warmup, "use min(decay, (1 + n) / (10 + n)) after n steps");
  option.only_if(enabled, {"decay", "warmup"}, "is of an average, and ema.enabled is false");
  if (enabled && !warmup && decay == 1)
    option.reject("decay", "is 1 without warmup, and the average would stay the weights of the start",
                  "set it below 1");
}

void AdapterOptions::read(OptionReader& option) {
  constexpr int64_t kMostRank = 1 << 16;
  option("rank", rank, "numbers between the two maps of a layer's term; 0: as many as the weights have, else 8")
      .between(0, kMostRank);
  option("alpha", alpha, "the term's factor is alpha / rank; 0: that of the weights, else 1").at_least(0);
  option("layers", layers,
         "patterns of layers' names, as a shell's (blocks.*.qkv, or * for all that have a place for a term); none: "
         "those of the weights");
  // As of run.init_from: what it starts from its checkpoints do not need.
  option("weights", weights, "an adapter to start from: a run or checkpoint of one, or a folder of peft's")
      .changes(Effect::nothing)
      .place();
  option("format", format,
         "how peft's folder names the layers: diffusers, facebook-dit, …; empty: as the file notes, else as the model")
      .changes(Effect::nothing);
  option.only_if(!weights.empty(), {"format"}, "is of weights, and none are named");
}

void TreadOptions::read(OptionReader& option) {
  option("ratio", ratio, "share of each sample's tokens that go around the blocks, drawn anew each time")
      .between(0.0, 1.0);
  if (ratio == 1) option.reject("ratio", "= 1 leaves no token to the blocks", "use a share below 1, as 0.5");
  option("start", start, "the first block that they go around; negative: counted from behind the last");
  option("end", end, "the first block that has all tokens again; negative: counted from behind the last");
}

namespace {

// Options that name a strategy by being something else than "none", in the order of sharding.
constexpr struct {
  std::string_view id;
  std::string ParallelOptions::*option;
} kNamedByOption[] = {{kRecompute, &ParallelOptions::recompute}, {kOffload, &ParallelOptions::offload}};

}  // namespace

void ParallelOptions::read(OptionReader& option) {
  const auto degree = [&](const char* name, int64_t& value, const char* help, Effect effect) {
    option(name, value, help).between(1, kMostRanks).changes(effect);
  };
  degree("tensor", tensor, "ranks that share each layer", Effect::bits);
  degree("context", context, "ranks that share a sample's tokens", Effect::bits);
  degree("pipeline", pipeline, "ranks that share the blocks", Effect::speed);
  degree("expert", expert, "ranks that share the experts", Effect::bits);
  degree("shard", shard, "data ranks that share weights and optimizer states", Effect::speed);
  option("replicate", replicate, "data ranks with whole copies; 0: what is left of the world size")
      .between(0, kMostRanks)
      .changes(Effect::speed);
  option("replicate_plugin", replicate_plugin, "strategy of the replicate axis").changes(Effect::bits);
  option("tensor_plugin", tensor_plugin, "strategy of the tensor axis").changes(Effect::bits);
  option("context_plugin", context_plugin, "strategy of the context axis").changes(Effect::bits);
  option("pipeline_plugin", pipeline_plugin, "strategy of the pipeline axis").changes(Effect::bits);
  option("expert_plugin", expert_plugin, "strategy of the expert axis").changes(Effect::bits);
  option("shard_plugin", shard_plugin, "strategy of the shard axis").changes(Effect::speed);
  option(kRecompute, recompute, "what backward computes again instead of keeping it")
      .one_of({"none", "blocks", "attention"})
      .changes(Effect::speed);
  option(kOffload, offload, "what lies in the host's memory: optimizer states and fp32 weights, with their update")
      .one_of({"none", "optimizer"})
      .changes(Effect::speed);
  option("strategies", strategies,
         "more strategies that serve no axis, in the order in which they wrap and shard; their options are of "
         "[parallel] too")
      .changes(Effect::bits)
      .noted_if_given();
  for (auto it = strategies.begin(); it != strategies.end(); ++it) {
    if (std::any_of(std::begin(kNamedByOption), std::end(kNamedByOption),
                    [&](const auto& one) { return one.id == *it; }))
      option.reject("strategies", "names \"" + *it + "\", which has an option of its own",
                    "set parallel." + *it + " instead");
    if (std::find(strategies.begin(), it, *it) != it)
      option.reject("strategies", "names \"" + *it + "\" twice", "name each once");
  }
  option("timeout_s", timeout_s, "seconds to wait for another rank")
      .above(0)
      .between(0, kMostSeconds)
      .changes(Effect::nothing);
  option("hang_s", hang_s, "seconds that a rank may stand still in a step, after its first; 0: for ever")
      .between(0, kMostSeconds)
      .changes(Effect::nothing);
}

std::vector<std::string> ParallelOptions::without_axis() const {
  std::vector<std::string> ids;
  for (const auto& [id, option] : kNamedByOption)
    if (this->*option != "none") ids.emplace_back(id);
  ids.insert(ids.end(), strategies.begin(), strategies.end());
  return ids;
}

void CheckpointOptions::read(OptionReader& option) {
  option("every", every, "steps between checkpoints; the last step always makes one; 0: only the last").at_least(0);
  option("keep", keep, "newest checkpoints kept").at_least(1);
  option("keep_every", keep_every, "keep every checkpoint whose step is a multiple of this; 0: none").at_least(0);
}

int64_t CheckpointOptions::most_kept(int64_t steps) const {
  const auto saves = [steps](int64_t at) { return at > 0 ? steps / at : 0; };
  const int64_t all = saves(every) + (every == 0 || steps == 0 || steps % every != 0 ? 1 : 0);
  // Of those for ever the last step may be one without being a multiple of `every`.
  const int64_t for_ever = keep_every == 0 ? 0
                           : every == 0
                               ? (steps % keep_every == 0 ? 1 : 0)
                               : saves(every <= steps && keep_every <= steps ? std::lcm(every, keep_every) : 0) +
                                     (steps % every != 0 && steps % keep_every == 0 ? 1 : 0);
  return std::min(all, std::min(all, keep) + for_ever);
}

void ValidateOptions::read(OptionReader& option) {
  option("every", every, "steps between validations on held-out data; 0: never").at_least(0);
  option("samples", samples, "held-out samples, at fixed times and noise").between(1, kMostSamples);
  option("batch", batch, "samples a forward; 0: as in training").between(0, kMostSamples);
  option("strata", strata,
         "levels of noise that a held-out sample is seen at: one of the eight, or each; auto: each where there are "
         "fewer than eight samples a level")
      .one_of({"auto", "one", "each"})
      .noted_if_given();
  option("grid_every", grid_every, "steps between sample grids from fixed noise; 0: never").at_least(0);
  option("grid", grid, "pictures in a grid, made up to whole rows where a column is a class").between(1, kMostPictures);
  option.only_if(every > 0, {"samples", "batch", "strata"}, "is of a validation, and validate.every is 0");
  option.only_if(grid_every > 0, {"grid"}, "is of a sheet, and validate.grid_every is 0");
}

void SheetPicture::read(OptionReader& option) {
  option("seed", seed, "the noise that it starts from; not given: its place in the list, from 0")
      .at_least(0)
      .noted_if_given();
  option("class", of_class, "its class, by name or number; empty: each class in its turn").noted_if_given();
  option("prompt", prompt, "its text, for a model of texts with an encoder of them").noted_if_given();
  option("condition", condition, "a safetensors file of what the model takes, of one row").place().noted_if_given();
  option("guidance", guidance, "guidance.scale; not given: the recipe's own").noted_if_given();
  has_guidance = option.declared().back().given;
  option("size", size, "HEIGHTxWIDTH, of videos FRAMESxHEIGHTxWIDTH; empty: the model's own").noted_if_given();
  option("steps", steps, "steps from noise to data; 0: sampler.steps").between(0, most::kTimes).noted_if_given();
}

void RecordOptions::read(OptionReader& option) {
  option("receipts", receipts,
         "write receipts.jsonl: of each step the hashes of its samples, gradient and weights, which `ditto replay` "
         "computes again");
  option("average_every", average_every,
         "steps between hashes of the average; that of a step with a checkpoint has one too")
      .at_least(1);
  option.only_if(receipts, {"average_every"}, "says when receipts have the average's hash, and there are none");
}

void PluginOptions::read(OptionReader& option) {
  option("kernels", kernels, "kernel plugins whose variants may be chosen").changes(Effect::bits);
}

}  // namespace ditto
