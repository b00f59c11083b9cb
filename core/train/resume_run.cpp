#include "core/train/resume_run.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <ditto/text.h>

#include "core/assembly/memory_format.h"
#include "core/assembly/resume.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/manifest.h"
#include "core/components/bf16_ways.h"
#include "core/config/numerics.h"
#include "core/network/finite.h"

namespace ditto {

namespace fs = std::filesystem;

checkpoint::TrainState train_state(Training& training) {
  const auto& assembly = *training.assembly;
  const auto& step = *training.step;
  checkpoint::TrainState state;
  state.layout = &assembly.networks->learned();
  state.ema = training.ema->enabled() ? &training.ema->tensors() : nullptr;
  state.optimizer = training.optimizer.get();
  state.step = training.done;
  state.samples = step.samples;
  state.seed = static_cast<uint64_t>(training.recipe.run.seed);
  state.extra = machine_record(assembly.main->ctx->device);
  state.extra["updates"] = std::to_string(step.updates);
  state.extra["skipped_in_a_row"] = std::to_string(step.skipped_in_a_row);
  if (assembly.main->ctx->compute == torch::kHalf) {
    state.extra["loss_scale"] = fmt::format("{}", step.loss_scale);
    state.extra["steps_since_overflow"] = std::to_string(step.steps_since_overflow);
  }
  const auto& left_out = training.loader->left_out();
  if (!left_out.empty()) state.extra["left_out"] = fmt::format("{}", fmt::join(left_out, ","));
  state.extra["source"] = training.data;
  if (!training.held_out.empty()) state.extra["held_out"] = training.held_out;
  for (const auto& [name, fingerprint] : assembly.networks->fingerprints())
    state.extra["network." + name] = fingerprint;
  for (const auto& encoder : assembly.networks->encoders)
    if (!encoder->fingerprint().empty()) state.extra[encoder->section] = encoder->fingerprint();
  state.extra.insert(training.started_from.begin(), training.started_from.end());
  state.extra["shapes"] = to_text(assembly.networks->shapes());
  state.recipe_toml = formats::render_toml(training.recipe.resolved());
  return state;
}

Resume::Resume(Training& training, const TrainOptions& options, RunLog& log)
    : training_(training), options_(options), log_(log) {}

void Resume::find() {
  start_ = find_start(options_.resume, training_.checkpoints(), training_.mesh.world(),
                      [this](const std::string& line) { log_.say(line); });
  if (!start_) {
    training_.kept_before = options_.kept;
    return;
  }
  const auto info = checkpoint::describe(*start_);
  keep_ways(training_.recipe, training_.registry, info.recipe_toml);
  keep_memory_format(training_.recipe, info.recipe_toml);
  for (const auto& id : kernel_sets(training_.recipe)) {
    auto kept = kept_by(id, info.extra);
    if (kept.empty()) continue;
    if (allows("kernels." + id) || allows("kernels"))
      log_.say(fmt::format("equal bits end here: kernels '{}' choose anew the {} algorithms that the run had kept", id,
                           kept.size()));
    else
      training_.kept_before[id] = std::move(kept);
  }
}

void Resume::go_on() {
  if (!options_.replay) say_other_run();
  if (start_) {
    take_up(*start_);
  } else if (options_.resume == "never" && !options_.replay && log_.has_recipe()) {
    log_.say("starting over, as --resume never says: earlier checkpoints are set aside behind its first step");
  }
}

void Resume::begins(const std::optional<Receipt>& beginning) {
  beginning_ = beginning;
  if (!log_.has_recipe() && checkpoint::list(training_.checkpoints()).steps.empty()) leave_mark();  // of nobody
}

void Resume::take_place(const Group& ranks) {
  if (std::exchange(has_begun_, true)) return;
  if (options_.watch) options_.watch->begin("taking the place of the run before");
  ranks.barrier();  // all have made it
  leave_mark();
}

void Resume::leave_mark() {
  if (std::exchange(has_place_, true) || !log_.writes()) return;
  const auto last = start_ ? training_.done : -1;
  for (const auto& line : checkpoint::set_aside_later(training_.checkpoints(), last)) log_.say(line);
  log_.cut_back(last);
  if (auto* file = log_.receipts()) file->begin(*beginning_, [this](const std::string& line) { log_.say(line); });
  log_.record_run(*training_.assembly, training_.done);
}

// A recipe that lies in a run's folder is taken for that run, and what it says of folders may lead elsewhere.
void Resume::say_other_run() {
  const auto& recipe = training_.recipe;
  std::error_code ignored;
  const auto whole = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
  };
  const auto file = whole(recipe.name), own = whole(output_folder(recipe));
  auto run = file.parent_path();
  if (file.filename() == "recipe.toml" && fs::exists(run / checkpoint::kManifestFile, ignored))
    run = run.parent_path().parent_path();
  else if (file.filename() != "run.toml")
    return;
  if (run == own || !fs::is_directory(run / "checkpoints", ignored)) return;
  log_.say(
      fmt::format("warning: {} is of the run in {}, and this is another run: it {} in {}; to go on with that one: "
                  "--set run.output={}",
                  shown(recipe.name), shown(run.string()), start_ ? "goes on" : "begins anew", shown(own.string()),
                  shown(run.string())));
}

void Resume::take_up(const std::string& path) {
  options_.expect_same("checkpoint", facts_of_checkpoint(path), ErrorKind::checkpoint);
  auto now = train_state(training_);
  const auto info = checkpoint::describe(path);
  require_not_past(training_.recipe.run.steps, info.step, path);
  const RunNotes notes(info.extra, path);
  const auto saved = formats::parse_toml(info.recipe_toml, path + "/recipe.toml");
  say_changes(info, saved);
  require_same_parts(notes);
  checkpoint::load(path, now);
  if (const auto bad = not_finite(now, training_.mesh.world()); !bad.empty())
    throw Error(ErrorKind::checkpoint, path, bad + " holds numbers that are not finite",
                "go on from a step before with --resume CHECKPOINT, or start over with --resume never");
  training_.assembly->networks->parameters_changed();
  restore(now, notes, saved);
  log_.say(fmt::format("resumed from {} (step {}){}", path, training_.done,
                       options_.resume == "auto" ? ", the newest whole checkpoint" : ""));
}

void Resume::say_changes(const checkpoint::Info& info, const formats::Table& saved) {
  const auto& recipe = training_.recipe;
  const auto& assembly = *training_.assembly;
  const auto& allowed = options_.allow_change;
  const auto effects = effects_of(recipe, info.recipe_toml, training_.registry);
  for (const auto& word : unknown_words(allowed, saved, recipe.resolved(), effects))  // of a cascade another stage's
    log_.say("warning: --allow-change " + shown(word) + " names no option or section of this recipe");
  for (const auto& line : compare_recipes(saved, recipe.resolved(), effects, allowed))
    log_.say("changed since: " + line);
  for (const auto& line : compare_class_names(info.extra, info.path, assembly.train_data->makes(), allowed))
    log_.say("changed since: " + line);
  if (const auto then = info.extra.find("held_out");
      then != info.extra.end() && !training_.held_out.empty() && then->second != training_.held_out)
    log_.say("changed since: what is held out; validation losses of before were of other samples");
  compare_machines(info.extra, machine_record(assembly.main->ctx->device), is_one_number(recipe),
                   [this](const std::string& line) { log_.say(line); });
}

void Resume::require_same_parts(const RunNotes& notes) {
  const auto& networks = *training_.assembly->networks;
  if (!allows("data")) notes.require_data(training_.data, [this](const std::string& line) { log_.say(line); });
  for (const auto& [name, fingerprint] : networks.fingerprints())
    if (!allows("network." + name + ".weights")) notes.require_network(name, fingerprint);
  for (const auto& encoder : networks.encoders)
    if (!encoder->fingerprint().empty() && !allows(encoder->section + ".weights"))
      notes.require_weights(encoder->section, encoder->fingerprint());
  const auto strategies = networks.strategies();
  if (std::any_of(strategies.begin(), strategies.end(), [](const auto* one) { return one->remembers(); }))
    log_.say("equal bits end here: a strategy of [parallel] keeps numbers that no checkpoint has");
  notes.require_adapter_base(training_.started_from);
}

void Resume::restore(const checkpoint::TrainState& state, const RunNotes& notes, const formats::Table& saved) {
  auto& step = *training_.step;
  training_.done = state.step;
  step.samples = state.samples;
  step.updates = notes.whole("updates");
  step.skipped_in_a_row = notes.whole("skipped_in_a_row");
  if (notes.knows(training_.data))
    training_.loader->had_left_out(notes.numbers("left_out", training_.assembly->train_data->size()));
  const auto* scale_then = saved.find_path("run.loss_scale");
  const bool scale_is_new =
      scale_then && scale_then->as<double>() && *scale_then->as<double>() != training_.recipe.run.loss_scale;
  if (!state.extra.contains("loss_scale") || scale_is_new) return;
  step.loss_scale = notes.positive("loss_scale");
  step.steps_since_overflow = notes.whole("steps_since_overflow");
}

bool Resume::allows(const std::string& key) const {
  const auto& allowed = options_.allow_change;
  return std::find(allowed.begin(), allowed.end(), key) != allowed.end();
}

}  // namespace ditto
