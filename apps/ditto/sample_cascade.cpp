#include "apps/ditto/sample_cascade.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/text.h>

#include "apps/ditto/cascade.h"
#include "apps/ditto/sampling.h"
#include "core/console/streams.h"
#include "core/data/names.h"
#include "core/formats/tensor/safetensors.h"
#include "core/ranks/launch.h"
#include "core/sample/prompts.h"
#include "core/sample/sample_folder.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

// In --out: what stages pass on, and the texts that they share.
constexpr const char *kPassed = ".cascade", *kSharedTexts = "texts";

class CascadeSampling {
 public:
  explicit CascadeSampling(const SampleArguments& a) : a_(a), cascade_(read_cascade(a.from, a.sets)) {
    refuse_arguments();
    require_one_each("--steps", a.steps.size());
    require_one_each("--guidance", a.guidance.size());
    find_stages();
    if (!a.condition.empty()) find_first();
  }

  // What the first stage's work would be lost for.
  int check_later_stages(const CommandLine& line) const {
    const auto info = a_.local_ranks > 0 ? RankInfo{} : rank_info();
    const int ranks = a_.local_ranks > 0 ? a_.local_ranks : info.world_size;
    return in_child([&] {
      Rank rank(info);
      return rank.run([&] {
        for (size_t stage = first_ + 1; stage <= last_; ++stage) {
          try {
            check_for_sampling(of_stage(stage), line, ranks);
          } catch (const Error& error) {
            throw error.within(name_of_stage(cascade_, stage));
          }
        }
        return 0;
      });
    });
  }

  // Memory is one stage's: each has a process of its own.
  int one_after_another(const std::function<int(const SampleArguments&)>& run) const {
    for (size_t stage = first_; stage <= last_; ++stage) {
      tell_title(stage);
      const int code = in_child([&] {
        if (a_.json && stage < last_)
          ::dup2(STDERR_FILENO, STDOUT_FILENO);  // standard output has the last one's object
        // A launcher's ranks meet anew, and not who is still at the stage before.
        if (a_.local_ranks == 0 && stage > 0) ::setenv(kNextVariable, std::to_string(stage).c_str(), 1);
        make_folder();
        return run(of_stage(stage));
      });
      if (code != 0) return code;
    }
    tell_what_is_left();
    return 0;
  }

  // All stages in this process.
  int all_at_once(const CommandLine& line) const {
    make_folder();
    std::vector<Sampling*> stages;
    const int code = with_stages(first_, line, stages);
    if (code == 0) tell_what_is_left();
    return code;
  }

 private:
  void make_folder() const {
    if (leads_) fs::create_directories(fs::path(a_.out) / kPassed);
  }

  // By another request, as its stages are not this one's.
  void tell_what_is_left() const {
    for (size_t stage = 0; a_.all && leads_ && stage < cascade_.stages.size(); ++stage) {
      const auto list = fs::path(folder_of(stage)) / SampleFolder::kList;
      if ((stage < first_ || stage > last_) && fs::exists(list))
        report::tell("warning: " + shown(folder_of(stage)) + " is of another request, and is left as it is");
    }
  }

  void tell_title(size_t stage) const {
    if (leads_) report::tell(title_of_stage(cascade_, stage));
  }

  // Those from `stage` on, beside `stages`.
  int with_stages(size_t stage, const CommandLine& line, std::vector<Sampling*>& stages) const {
    if (stage > last_) return in_turns(stages);
    auto info = rank_info();
    if (stage > first_) {  // its ranks meet where the first one's have
      info.store_is_launchers = true;
      info.attempt += "." + std::to_string(stage);
    }
    Rank rank(info);
    return rank.run([&] {
      auto own = of_stage(stage);
      if (stage < last_) own.progress = "none";  // the last one's is that of all
      Sampling sampling(rank, own, line);
      stages.push_back(&sampling);
      return with_stages(stage + 1, line, stages);
    });
  }

  int in_turns(const std::vector<Sampling*>& stages) const {
    int64_t together = 1;
    for (size_t i = 0; i < stages.size(); ++i) {
      tell_title(first_ + i);
      std::optional<HandedOn> before;
      if (i > 0) before = stages[i - 1]->handed_on();
      stages[i]->prepare(before ? &*before : nullptr);
      together = std::max(together, stages[i]->at_once());
    }
    for (auto* stage : stages) stage->begin();
    const int64_t count = stages.back()->count();
    for (int64_t first = 0; first < count; first += together)
      for (auto* stage : stages) stage->make_until(std::min(first + together, count));
    for (auto* stage : stages) stage->finish(a_.json && stage != stages.back() ? std::cerr : std::cout);
    return 0;
  }

  void refuse_arguments() const {
    const auto refuse = [&](const std::string& option, const std::string& why) {
      throw Error(ErrorKind::config, option, "is of one run, and " + shown(a_.from) + " is a cascade" + why,
                  "sample from a stage's run: " + shown(cascade_.stages.front().folder));
    };
    if (a_.out.empty())
      throw Error(ErrorKind::config, "sample", "a cascade's stages have nowhere to pass their pictures on",
                  "add --out FOLDER");
    refuse_same_places(a_);
    const auto refuse_folder = [&](const std::string& folder, const char* what) {
      std::error_code ignored;
      if (fs::equivalent(a_.out, folder, ignored))
        throw Error(ErrorKind::config, "--out " + shown(a_.out), what, "choose another one");
    };
    refuse_folder(cascade_.output, "is the cascade's own folder");
    for (const auto& stage : cascade_.stages) refuse_folder(stage.folder, "is the folder of a stage's run");
    const std::pair<const char*, bool> of_one_run[] = {
        {"--negative", !a_.negative.empty()}, {"--noise", !a_.noise.empty()}, {"--network", !a_.network.empty()},
        {"--adapter", !a_.adapter.empty()},   {"--pass", !a_.pass.empty()},   {"--series", a_.series > 0}};
    for (const auto& [option, is_given] : of_one_run)
      if (is_given) refuse(option, "");
    const auto prompts = a_.prompts.empty() ? std::vector<Prompt>() : read_prompts(a_.prompts);
    const bool has_sizes =
        std::any_of(prompts.begin(), prompts.end(), [](const auto& one) { return one.size.has_value(); });
    if (!a_.size.empty() || has_sizes)
      refuse(has_sizes ? "\"size\" in " + shown(a_.prompts) : "--size", ", whose stages make what the next one takes");
  }

  void require_one_each(const std::string& option, size_t count) const {
    if (count == 0 || count == cascade_.stages.size()) return;
    throw Error(ErrorKind::config, option,
                fmt::format("has {} value{}, and the cascade has {} stages", count, count == 1 ? "" : "s",
                            cascade_.stages.size()),
                "give one for each, in their order, with commas: " + cascade_.names());
  }

  // By what the data of its recipe were.
  std::string size_of(size_t stage) const {
    const auto saved = open_saved(checkpoints_[stage], {}, {});
    const auto* image = find(saved.shapes.data, names::kImage);
    const auto shape = image ? image->shape : saved.shapes.model.shape(names::kInput);
    std::string text;
    for (size_t d = 1; d < shape.size(); ++d) text += (d == 1 ? "" : "x") + std::to_string(shape[d]);
    return text;
  }

  // Those behind the last that is asked for need not be trained.
  void find_stages() {
    std::string all;
    for (size_t stage = 0; stage < cascade_.stages.size(); ++stage) {
      checkpoints_.push_back(checkpoint_of_stage(cascade_, stage));
      last_ = stage;
      if (a_.until.empty()) continue;
      const auto own = size_of(stage);
      if (own == a_.until || own == a_.until + "x" + a_.until) return;
      all += (stage == 0 ? "" : ", ") + own;
    }
    if (!a_.until.empty())
      throw Error(ErrorKind::config, "--until " + shown(a_.until),
                  "no stage of " + shown(cascade_.name) + " makes that size", "they make " + all);
  }

  // A picture of --condition stands for those of the stages before the one that takes it.
  void find_first() {
    const auto file = formats::SafetensorsReader::open(a_.condition, ErrorKind::data);
    const auto* low = file.find(cascade_.passes);
    if (!low) return;
    std::string given, all;
    for (size_t d = 2; d < low->shape.size(); ++d) given += (d == 2 ? "" : "x") + std::to_string(low->shape[d]);
    for (size_t stage = 1; stage <= last_; ++stage) {
      const auto takes = size_of(stage - 1);
      if (takes == given && first_ == 0) first_ = stage;
      all += (stage == 1 ? "" : ", ") + takes;
    }
    if (first_ > 0) return;
    throw Error(ErrorKind::data, a_.condition,
                fmt::format("has \"{}\" of {}, which no stage of {} takes{}", cascade_.passes,
                            given.empty() ? "no height and width" : given, shown(cascade_.name),
                            a_.until.empty() ? "" : " until " + shown(a_.until)),
                last_ == 0 ? "leave it, or --until, out" : "give one of " + all + ", or none");
  }

  std::string folder_of(size_t stage) const {
    if (a_.all) return (fs::path(a_.out) / cascade_.stages[stage].name).string();
    return stage == last_ ? a_.out : std::string();
  }
  std::string passed(size_t stage) const {
    return (fs::path(a_.out) / kPassed / (cascade_.stages[stage].name + ".safetensors")).string();
  }

  SampleArguments of_stage(size_t stage) const {
    auto own = a_;
    own.from = checkpoints_[stage];
    own.sets = cascade_.stages[stage].sets;
    own.out = folder_of(stage);
    own.until.clear();
    own.all = own.keep = false;
    own.series = static_cast<int64_t>(stage);
    own.is_later_stage = stage > first_;
    own.kept_texts = (fs::path(a_.out) / kPassed / kSharedTexts).string();
    if (!a_.steps.empty()) own.steps = {a_.steps[stage]};
    if (!a_.guidance.empty()) own.guidance = {a_.guidance[stage]};
    if (stage > first_) own.condition_of_all = std::exchange(own.condition, passed(stage - 1));
    if (stage < last_) {
      own.pass = {cascade_.passes, passed(stage)};
      own.save_latents.clear(), own.npz.clear(), own.npz_channels.reset(), own.json = false;
    }
    if (own.out.empty()) own.name.clear();
    return own;
  }

  const SampleArguments& a_;
  const Cascade cascade_;
  const bool leads_ = a_.local_ranks > 0 || rank_info().rank == 0;
  std::vector<std::string> checkpoints_;
  size_t first_ = 0, last_ = 0;
};

}  // namespace

int sample_cascade(const SampleArguments& arguments, const CommandLine& line,
                   const std::function<int(const SampleArguments&)>& run) {
  const CascadeSampling cascade(arguments);
  if (const int code = cascade.check_later_stages(line)) return code;
  if (!arguments.keep) return cascade.one_after_another(run);
  say_that_it_goes_on(arguments.local_ranks > 0 ? RankInfo{} : rank_info());
  if (arguments.local_ranks > 0) return start_ranks(line, arguments.local_ranks, {}, words_of(arguments, line));
  return cascade.all_at_once(line);
}

std::vector<std::string> words_of(const SampleArguments& a, const CommandLine& line) {
  std::vector<std::string> words{"sample", a.from};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  const std::pair<const char*, const std::string*> texts[] = {{"--out", &a.out},
                                                              {"--classes", &a.classes},
                                                              {"--seeds", &a.seeds},
                                                              {"--size", &a.size},
                                                              {"--noise", &a.noise},
                                                              {"--condition", &a.condition},
                                                              {"--sampler", &a.sampler},
                                                              {"--negative", &a.negative},
                                                              {"--cache", &a.cache},
                                                              {"--prompts", &a.prompts},
                                                              {"--npz", &a.npz},
                                                              {"--network", &a.network},
                                                              {"--name", &a.name},
                                                              {"--adapter", &a.adapter},
                                                              {"--weights", &a.weights},
                                                              {"--save-latents", &a.save_latents},
                                                              {"--progress", &a.progress},
                                                              {"--guidance-channels", &a.guidance_channels},
                                                              {"--kept-texts", &a.kept_texts},
                                                              {"--condition-of-all", &a.condition_of_all},
                                                              {"--until", &a.until}};
  for (const auto& [option, value] : texts) add(option, *value);
  if (a.negative_prompt) words.insert(words.end(), {"--negative-prompt", *a.negative_prompt});
  for (const auto steps : a.steps) add("--steps", std::to_string(steps));
  for (const auto scale : a.guidance) add("--guidance", fmt::format("{}", scale));
  if (a.fps) add("--fps", fmt::format("{}", *a.fps));
  if (a.npz_channels) add("--npz-channels", std::to_string(*a.npz_channels));
  if (!a.pass.empty()) add("--pass", a.pass.name + "=" + a.pass.file);
  add("--batch", std::to_string(a.batch));
  add("--series", std::to_string(a.series));
  for (const auto& [flag, is_set] :
       {std::pair("--json", a.json), std::pair("--cache-error", a.cache_error), std::pair("--overwrite", a.overwrite),
        std::pair("--all", a.all), std::pair("--keep", a.keep), std::pair("--later-stage", a.is_later_stage)})
    if (is_set) words.emplace_back(flag);
  for (const auto& set : a.sets) words.insert(words.end(), {"--set", set});
  for (const auto& folder : line.plugin_path) words.insert(words.end(), {"--plugin-path", folder});
  return words;
}

}  // namespace ditto
