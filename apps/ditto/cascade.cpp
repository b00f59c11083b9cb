#include "apps/ditto/cascade.h"

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>

#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/assembly/resume.h"
#include "core/cascade/cascade_folder.h"
#include "core/checkpoint/checkpoint.h"
#include "core/console/streams.h"
#include "core/plan/cascade_stages.h"
#include "core/plugin/trial.h"
#include "core/process/rank.h"
#include "core/ranks/stop.h"
#include "core/ranks/successor.h"

namespace ditto {

namespace {

Registry registry_of(const CommandLine& line) { return Registry(plugin_folders(line.plugin_path), try_new_plugins); }

// As its resume would, where a stage has been trained by another recipe: before anything is written of this one.
void require_unchanged(const CascadeStage& stage, const OpenedStage& opened, Registry& registry,
                       const std::vector<std::string>& allowed) {
  if (!checkpoint::is_of_a_run(stage.folder)) return;
  std::optional<checkpoint::Info> info;
  try {
    info = checkpoint::describe(checkpoint::newest(stage.folder));
  } catch (const Error&) {  // its training says what is wrong
    return;
  }
  const auto saved = formats::parse_toml(info->recipe_toml, info->path + "/recipe.toml");
  const auto now = opened.recipe.resolved();
  const auto effects = effects_of(opened.recipe, info->recipe_toml, registry);
  compare_recipes(saved, now, effects, allowed);
}

// On every rank, and written by the first.
void begin(const Cascade& cascade, std::optional<std::size_t> one, const RankInfo& info, const CascadeCall& call,
           const CommandLine& line) {
  auto registry = registry_of(line);
  const auto stages = open_stages(cascade, registry);
  if (info.rank > 0) return;
  if (checkpoint::is_of_a_run(cascade.output))
    throw Error(ErrorKind::config, "cascade.output", shown(cascade.output) + " is the folder of a run",
                "choose a folder of its own");
  for (std::size_t i = 0; call.skips_trained && i < stages.size(); ++i)
    if (!one || *one == i) require_unchanged(cascade.stages[i], stages[i], registry, call.allow_change);
  std::vector<formats::Table> recipes;
  for (const auto& stage : stages) recipes.push_back(stage.recipe.resolved());
  write_cascade_folder(cascade, recipes, one);
}

class CascadeTraining {
 public:
  CascadeTraining(const CascadeCall& call, const CommandLine& line)
      : call_(call),
        line_(line),
        successor_(line.arguments),
        info_(call.local_ranks > 0 ? RankInfo{} : rank_info()),
        cascade_(read_cascade(call.path, call.sets)) {
    if (!call.stage.empty()) one_ = cascade_.place_of(call.stage, "--stage");
  }

  int run() {
    answer_stop_signals(info_);
    const auto next = next_of_several();
    if (next > 0) {
      begin_as_successor();
    } else if (const int code = in_child([&] { return begin_all(); })) {
      return code;
    }
    const auto first = one_ ? *one_ : next, end = one_ ? first + 1 : cascade_.stages.size();
    for (auto stage = first; stage < end; ++stage) {
      if (is_trained(stage)) continue;
      // A process that has trained a stage trains no other: what it left behind in it would be the next one's, too.
      if (call_.local_ranks == 0 && stage > next && !one_) successor_.become(static_cast<int>(stage));
      if (const int code = train(stage)) return code;
      if (stage + 1 < end && stop_signal() != 0 && info_.world_size == 1) return stopped(stage);
    }
    if (!one_) say(fmt::format("{}: all {} stages are trained", shown(cascade_.output), end));
    return 0;
  }

 private:
  // Which of its stages this process has become; 0: it is the first.
  std::size_t next_of_several() const {
    const char* text = std::getenv(kNextVariable);
    const auto next = text ? static_cast<std::size_t>(std::atoi(text)) : 0;
    return one_ || call_.local_ranks > 0 || next >= cascade_.stages.size() ? 0 : next;
  }

  int begin_all() const {
    Rank rank(info_);
    return rank.run([&] {
      begin(cascade_, one_, info_, call_, line_);
      return 0;
    });
  }

  // Ranks on several machines need not see the same folder: each would decide by itself.
  bool is_trained(std::size_t stage) const {
    const auto& folder = cascade_.stages[stage].folder;
    if (!call_.skips_trained || info_.world_size > 1 || !checkpoint::is_of_a_run(folder)) return false;
    try {
      const auto whole = checkpoint::find((std::filesystem::path(folder) / "checkpoints").string());
      if (!whole.path) return false;
      const auto info = checkpoint::describe(*whole.path);
      if (Recipe::read(cascade_.stages[stage].recipe, cascade_.stages[stage].to_train()).run.steps != info.step)
        return false;
      say(fmt::format("{}: is trained, step {}: {}", title_of_stage(cascade_, stage), info.step, shown(folder)));
      return true;
    } catch (const Error&) {  // its training says what is wrong
      return false;
    }
  }

  int train(std::size_t stage) const {
    const auto& one = cascade_.stages[stage];
    say(fmt::format("{}: {} in {}", title_of_stage(cascade_, stage), shown(one.recipe), shown(one.folder)));
    if (call_.local_ranks == 0) return call_.train(one);
    return start_ranks(
        line_, call_.local_ranks, [&] { return call_.rehearse(one); }, call_.words(one));
  }

  int stopped(std::size_t stage) const {
    say(fmt::format("{} is trained; stopped by a signal before the next: the same command goes on",
                    title_of_stage(cascade_, stage)));
    return kStoppedBySignal;
  }

  void say(const std::string& text) const {
    if (info_.rank == 0) report::tell(text);
  }

  const CascadeCall& call_;
  const CommandLine& line_;
  const Successor successor_;
  const RankInfo info_;
  const Cascade cascade_;
  std::optional<std::size_t> one_;
};

}  // namespace

int train_cascade(const CascadeCall& call, const CommandLine& line) {
  std::optional<CascadeTraining> training;
  if (const int code = Rank(call.local_ranks > 0 ? RankInfo{} : rank_info()).run([&] {
        training.emplace(call, line);
        return 0;
      }))
    return code;
  return training->run();
}

int check_stages(const Cascade& cascade, const CommandLine& line) {
  return in_child([&] {
    auto registry = registry_of(line);
    open_stages(cascade, registry);
    return 0;
  });
}

int for_each_stage(const Cascade& cascade, const std::string& stage,
                   const std::function<int(const CascadeStage&)>& command) {
  const auto first = stage.empty() ? 0 : cascade.place_of(stage, "--stage");
  const auto end = stage.empty() ? cascade.stages.size() : first + 1;
  for (auto i = first; i < end; ++i) {
    std::cout << title_of_stage(cascade, i) << '\n' << std::flush;
    if (const int code = command(cascade.stages[i])) return code;
  }
  return 0;
}

std::string title_of_stage(const Cascade& cascade, std::size_t stage) {
  return fmt::format("stage {} of {}, {}", stage + 1, cascade.stages.size(), shown(cascade.stages.at(stage).name));
}

}  // namespace ditto
