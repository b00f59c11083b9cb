// What a training goes on from, and what it keeps for that.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <ditto/text.h>

#include "core/assembly/resume.h"
#include "core/assembly/run_notes.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/manifest.h"
#include "core/config/numerics.h"
#include "core/network/finite.h"
#include "core/train/trainer.h"

namespace ditto {

namespace fs = std::filesystem;

void Trainer::resume() {
  if (!options_.replay) say_other_run();
  if (start_) {
    take_up(*start_);
  } else if (writes() && options_.resume == "never" && !options_.replay && folder_->has_recipe()) {
    say("starting over, as --resume never says: earlier checkpoints are set aside");
  }
  if (!writes()) return;
  for (const auto& line : checkpoint::set_aside_later(checkpoints(), start_ ? step_ : -1)) say(line);
  metrics_->cut_back(start_ ? step_ : -1);
}

// A recipe that lies in a run's folder is taken for that run, and what it says of folders may lead elsewhere.
void Trainer::say_other_run() {
  std::error_code ignored;
  const auto whole = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
  };
  const auto recipe = whole(recipe_.name), own = whole(output_folder(recipe_));
  auto run = recipe.parent_path();
  if (recipe.filename() == "recipe.toml" && fs::exists(run / checkpoint::kManifestFile, ignored))
    run = run.parent_path().parent_path();
  else if (recipe.filename() != "run.toml")
    return;
  if (run == own || !fs::is_directory(run / "checkpoints", ignored)) return;
  say(
      fmt::format("warning: {} is of the run in {}, and this is another run: it {} in {}; to go on with that one: "
                  "--set run.output={}",
                  shown(recipe_.name), shown(run.string()), start_ ? "goes on" : "begins anew", shown(own.string()),
                  shown(run.string())));
}

void Trainer::take_up(const std::string& path) {
  expect_same("checkpoint", facts_of_checkpoint(path), ErrorKind::checkpoint);
  auto now = state();
  const auto info = checkpoint::describe(path);
  require_not_past(recipe_.run.steps, info.step, path);
  const RunNotes notes(info.extra, path);
  const auto saved = formats::parse_toml(info.recipe_toml, path + "/recipe.toml");
  const auto effects = effects_of(recipe_, info.recipe_toml, assembly_->components.registry);
  for (const auto& line : compare_recipes(saved, recipe_.resolved(), effects, options_.allow_change))
    say("changed since: " + line);
  for (const auto& line : compare_class_names(info.extra, path, assembly_->train_data->makes(), options_.allow_change))
    say("changed since: " + line);
  if (const auto then = info.extra.find("held_out");
      then != info.extra.end() && !held_out_.empty() && then->second != held_out_)
    say("changed since: what is held out; validation losses of before were of other samples");
  const auto said = [this](const std::string& line) { say(line); };
  compare_machines(info.extra, machine_record(assembly_->main->ctx->device), is_one_number(recipe_), said);
  const auto& allowed = options_.allow_change;
  if (std::find(allowed.begin(), allowed.end(), "data") == allowed.end()) notes.require_data(data_, said);
  for (const auto& [name, fingerprint] : assembly_->networks->fingerprints())
    if (std::find(allowed.begin(), allowed.end(), "network." + name + ".weights") == allowed.end())
      notes.require_network(name, fingerprint);
  for (const auto& encoder : assembly_->networks->encoders)
    if (!encoder->fingerprint().empty() &&
        std::find(allowed.begin(), allowed.end(), encoder->section + ".weights") == allowed.end())
      notes.require_weights(encoder->section, encoder->fingerprint());
  const auto strategies = assembly_->networks->strategies();
  if (std::any_of(strategies.begin(), strategies.end(), [](const auto* one) { return one->remembers(); }))
    say("equal bits end here: a strategy of [parallel] keeps numbers that no checkpoint has");
  notes.require_adapter_base(started_from_);
  checkpoint::load(path, now);
  if (const auto bad = not_finite(now, mesh_.world()); !bad.empty())
    throw Error(ErrorKind::checkpoint, path, bad + " holds numbers that are not finite",
                "go on from a step before with --resume CHECKPOINT, or start over with --resume never");
  assembly_->networks->parameters_changed();
  step_ = now.step;
  saved_step_ = step_;
  training_->samples = now.samples;
  training_->updates = notes.whole("updates");
  training_->skipped_in_a_row = notes.whole("skipped_in_a_row");
  if (notes.knows(data_)) loader_->had_left_out(notes.numbers("left_out", assembly_->train_data->size()));
  const auto* scale_then = saved.find_path("run.loss_scale");
  const bool scale_is_new =
      scale_then && scale_then->as<double>() && *scale_then->as<double>() != recipe_.run.loss_scale;
  if (now.extra.contains("loss_scale") && !scale_is_new) {
    training_->loss_scale = notes.positive("loss_scale");
    training_->steps_since_overflow = notes.whole("steps_since_overflow");
  }
  say(fmt::format("resumed from {} (step {}){}", path, step_,
                  options_.resume == "auto" ? ", the newest whole checkpoint" : ""));
}

checkpoint::TrainState Trainer::state() {
  checkpoint::TrainState state;
  state.layout = &assembly_->networks->learned();
  state.ema = ema_->enabled() ? &ema_->tensors() : nullptr;
  state.optimizer = optimizer_.get();
  state.step = step_;
  state.samples = training_->samples;
  state.seed = static_cast<uint64_t>(recipe_.run.seed);
  state.extra = machine_record(assembly_->main->ctx->device);
  state.extra["updates"] = std::to_string(training_->updates);
  state.extra["skipped_in_a_row"] = std::to_string(training_->skipped_in_a_row);
  if (assembly_->main->ctx->compute == torch::kHalf) {
    state.extra["loss_scale"] = fmt::format("{}", training_->loss_scale);
    state.extra["steps_since_overflow"] = std::to_string(training_->steps_since_overflow);
  }
  if (!loader_->left_out().empty()) state.extra["left_out"] = fmt::format("{}", fmt::join(loader_->left_out(), ","));
  state.extra["source"] = data_;
  if (!held_out_.empty()) state.extra["held_out"] = held_out_;
  for (const auto& [name, fingerprint] : assembly_->networks->fingerprints())
    state.extra["network." + name] = fingerprint;
  for (const auto& encoder : assembly_->networks->encoders)
    if (!encoder->fingerprint().empty()) state.extra[encoder->section] = encoder->fingerprint();
  state.extra.insert(started_from_.begin(), started_from_.end());
  state.extra["shapes"] = to_text(assembly_->networks->shapes());
  state.recipe_toml = formats::render_toml(recipe_.resolved());
  return state;
}

}  // namespace ditto
