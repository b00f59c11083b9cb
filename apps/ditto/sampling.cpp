#include "apps/ditto/sampling.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>

#include "apps/ditto/interrupt.h"
#include "apps/ditto/sample_outputs.h"
#include "core/assembly/one_number_guard.h"
#include "core/checkpoint/tensor_file.h"
#include "core/components/components.h"
#include "core/components/strategies.h"
#include "core/config/numerics.h"
#include "core/console/progress.h"
#include "core/console/streams.h"
#include "core/formats/text/toml.h"
#include "core/mesh/gloo_mesh.h"
#include "core/plugin/trial.h"
#include "core/process/launch.h"
#include "core/sample/clip.h"

namespace ditto {

namespace {

// The command line's words as the recipe's.
std::vector<std::string> sets_of(const SampleArguments& a) {
  std::vector<std::string> sets;
  if (!a.sampler.empty()) sets.push_back("sampler.plugin=" + a.sampler);
  if (!a.cache.empty()) sets.push_back("cache.plugin=" + a.cache);
  if (!a.steps.empty()) sets.push_back(fmt::format("sampler.steps={}", a.steps.front()));
  if (!a.adapter.empty()) sets.push_back("adapter.weights=" + formats::render_toml_value({a.adapter, {}}));
  sets.insert(sets.end(), a.sets.begin(), a.sets.end());
  return sets;
}

template <class Number>
void require_one(const std::vector<Number>& numbers, const std::string& option) {
  if (numbers.size() > 1)
    throw Error(ErrorKind::config, option, fmt::format("has {} values, and a run takes one", numbers.size()),
                "give one; several are of a cascade's stages");
}

// Of a recipe without guidance: classifier-free.
void set_guidance(Recipe& recipe, const std::string& option, const OptionValue& value, const std::string& where) {
  auto& guidance = recipe.guidance;
  if (guidance.plugin == "none") guidance.plugin = kScaleGuidance;
  guidance.options.given[option] = {value, where};
}

}  // namespace

SavedModel open_for_sampling(const SampleArguments& a) {
  require_one(a.steps, "--steps");
  require_one(a.guidance, "--guidance");
  auto saved = open_saved(a.from, sets_of(a), a.network);
  if (!a.guidance.empty())
    set_guidance(saved.recipe, "scale", a.guidance.front(), fmt::format("--guidance {}", a.guidance.front()));
  if (!a.guidance_channels.empty())
    set_guidance(saved.recipe, "channels", a.guidance_channels, "--guidance-channels " + a.guidance_channels);
  return saved;
}

void refuse_other_encoders(const SavedModel& saved, const Networks& networks) {
  for (const auto& encoder : networks.encoders) {
    const auto noted = saved.notes.find(encoder->section);
    if (noted == saved.notes.end() || noted->second == encoder->fingerprint()) continue;
    throw Error(ErrorKind::checkpoint, saved.path,
                "was trained with other weights than [" + encoder->section + "] has now",
                "name the same ones: --set " + encoder->section + ".weights=FILE");
  }
}

namespace {

void require_sampler(const SavedModel& saved) {
  if (!saved.recipe.sampler)
    throw Error(ErrorKind::config, saved.path, "was trained by a recipe that says no sampler",
                "choose one: --sampler NAME (`ditto plugins list sampler`)");
}

report::ProgressOptions progress_look(const SampleArguments& a) {
  report::ProgressOptions look;
  look.style = report::progress_style(a.progress);
  look.unit = "sample";
  look.rate = "/s";
  return look;
}

void require_finite(const MadeBatch& made, const std::vector<int64_t>& seeds) {
  const auto is_finite = made.samples.flatten(1).isfinite().all(1).cpu();
  for (int64_t i = 0; i < is_finite.numel(); ++i)
    if (!is_finite[i].item<bool>())
      throw Error(ErrorKind::numeric, fmt::format("the sample of seed {}", seeds[static_cast<size_t>(made.first + i)]),
                  "holds numbers that are not finite, and is not written",
                  "sample with --set run.precision=bf16 or fp32, with less guidance, or from an earlier checkpoint");
}

// Guidance that is asked for here acts, or is refused; of the run's own it is said.
void check_guidance(const SampleArguments& a, const SavedModel& saved, const Assembly& assembly,
                    const SampleRequests& requests) {
  std::string asked;
  for (const auto& set : a.sets)
    if (set.starts_with("guidance.")) asked = "--set " + set;
  if (!a.guidance_channels.empty()) asked = "--guidance-channels " + a.guidance_channels;
  if (!a.guidance.empty()) asked = fmt::format("--guidance {}", a.guidance.front());
  const auto tell = [&](const std::string& line) {
    if (assembly.mesh.rank() == 0) report::tell("warning: " + line);
  };
  if (const auto idle = idle_guidance(*assembly.networks, *assembly.guidance, requests); !idle.empty()) {
    if (!asked.empty()) throw Error(ErrorKind::config, asked, "guidance would have no effect: " + idle, "leave it out");
    return tell("guidance has no effect: " + idle);
  }
  const bool has_negative = requests.negative || !requests.negative_prompts.empty();
  if (const auto null = unlearned_null(saved.recipe, *assembly.guidance); !null.empty() && !has_negative)
    tell(null + (saved.began_with_others ? ", unless what its training began with has learned it" : ""));
}

}  // namespace

// How far rank 0 is; of the others' batches it takes the time of its own.
class Sampling::Progress {
 public:
  Progress(const SampleArguments& a, int64_t count, int64_t to_make, int64_t ranks)
      : to_make_(to_make), there_(count - to_make), ranks_(ranks), bar_(count, progress_look(a), at(0)) {}
  // Of the samples that are made now.
  void update(int64_t done_here) {
    const auto done = std::min(before_ + done_here * ranks_, to_make_);
    bar_.update(at(done));
    if (std::exchange(is_first_, false) && done < to_make_) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
      const auto left = took.count() * static_cast<double>(to_make_ - done) / static_cast<double>(done);
      bar_.message(fmt::format("the first {} took {}; at that rate the other {} take {}", done,
                               report::duration_text(took.count()), to_make_ - done, report::duration_text(left)));
    }
  }
  void are_made(int64_t samples) { before_ += samples; }
  void finish() { bar_.finish(); }

 private:
  report::ProgressState at(int64_t done) const {
    report::ProgressState state;
    state.done = there_ + done;
    return state;
  }
  const int64_t to_make_, there_, ranks_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  int64_t before_ = 0;  // made by earlier calls
  bool is_first_ = true;
  report::Progress bar_;
};

Sampling::Sampling(Rank& rank, const SampleArguments& arguments, const CommandLine& line)
    : rank_(rank), a_(arguments), saved_(open_for_sampling(arguments)) {
  if (a_.cache_error && !saved_.recipe.cache)
    throw Error(ErrorKind::config, "--cache-error", "there is no cache", "add --cache first_block, or leave it out");
  require_sampler(saved_);
  rank.open(saved_.recipe, line.plugin_path);
  rank.meet(saved_.recipe);
}

void Sampling::prepare(const HandedOn* from) {
  rank_.go_on(saved_.recipe);
  AssemblyParts parts;
  parts.sampler = true;
  parts.latents = true;  // the outputs say whether pictures are needed
  parts.saved = saved_.shapes;
  parts.weights = RunningModel::Weights::room;
  assembly_.emplace(saved_.recipe, rank_.registry(), rank_.mesh(), parts, Log());
  auto& networks = *assembly_->networks;
  refuse_other_encoders(saved_, networks);
  asked_ = read_requests(a_, *assembly_, from);
  check_guidance(a_, saved_, *assembly_, asked_.requests);

  if (!a_.noise.empty()) options_.noise = read_noise(a_, asked_.requests);
  outputs_ = std::make_unique<SampleOutputs>(a_, asked_, saved_, networks, options_.noise);
  options_.steps = saved_.recipe.sampler_steps;
  options_.series = a_.series;
  options_.clip = clip_of(saved_.recipe);
  options_.cache = assembly_->cache.get();
  options_.batch = a_.batch;
  options_.watch = &rank_.watch();
  options_.in_step = outputs_->decodes() && networks.decodes_together();
  batches_ = outputs_->prepare(batch_size(*assembly_->sampler, options_));
  if (rank_.mesh().rank() == 0) report::tell(outputs_->plan());
}

Sampling::~Sampling() = default;

int64_t Sampling::count() const { return static_cast<int64_t>(asked_.requests.seeds.size()); }
int64_t Sampling::at_once() const { return a_.batch * rank_.mesh().data_ranks(); }

void Sampling::begin() {
  if (batches_.empty()) return;
  assembly_->networks->load(saved_, a_.weights);
  if (rank_.mesh().rank() != 0) return;
  const auto of_batch = batch_size(*assembly_->sampler, options_);
  int64_t to_make = 0;
  for (const auto batch : batches_) to_make += std::min(of_batch, count() - batch * of_batch);
  progress_ = std::make_unique<Progress>(a_, count(), to_make, rank_.mesh().data_ranks());
}

void Sampling::make_until(int64_t end) {
  const auto of_batch = batch_size(*assembly_->sampler, options_);
  const auto later = std::find_if(batches_.begin(), batches_.end(), [&](int64_t one) { return one * of_batch >= end; });
  const std::vector<int64_t> now(batches_.begin(), later);
  batches_.erase(batches_.begin(), later);
  if (now.empty()) return;
  rank_.go_on(saved_.recipe);
  make(now);
  if (!progress_) return;
  int64_t made = 0;
  for (const auto batch : now) made += std::min(of_batch, count() - batch * of_batch);
  progress_->are_made(made);
}

void Sampling::make(const std::vector<int64_t>& batches) {
  auto& assembly = *assembly_;
  const auto& mesh = rank_.mesh();
  const auto generate_these = [&](const GenerateOptions& options, const std::vector<int64_t>& these,
                                  const std::function<void(const MadeBatch&)>& take) {
    generate(*assembly.networks, *assembly.sampler, *assembly.guidance, asked_.requests, options, these, take);
  };
  std::map<std::string, double> decisions;
  auto options = options_;
  options.decisions = &decisions;
  options.progress = [&](int64_t done) {
    if (progress_) progress_->update(done);
  };
  // Of this rank's first batch: what it computes later it computes by the same calls.
  std::optional<OneNumberGuard> guard;
  if (is_one_number(assembly.recipe) && !is_watched_) guard.emplace();
  auto uncached = options_;
  uncached.cache = nullptr;
  const auto again = [&](const MadeBatch& made) {  // each rank its own
    const auto batch = made.first / batch_size(*assembly.sampler, options_);
    generate_these(uncached, std::vector<int64_t>(static_cast<size_t>(mesh.data_ranks()), batch),
                   [&](const MadeBatch& whole) { outputs_->compare(made.samples, whole.samples); });
  };
  generate_these(options, batches, [&](const MadeBatch& made) {
    if (guard) guard->check();
    guard.reset();
    is_watched_ = true;
    if (made.is_own) require_finite(made, asked_.requests.seeds);
    if (a_.cache_error) again(made);
    rank_.watch().begin("writing samples");
    outputs_->take(made);
  });
  for (const auto& [what, number] : decisions) outputs_->decisions[what] += number;
  if (a_.pass.empty() || mesh.world_size() == 1) return;
  outputs_->settle();
  mesh.world().barrier();  // no rank reads before
}

void Sampling::finish(std::ostream& out) {
  if (progress_) progress_->finish();
  outputs_->finish();
  if (rank_.mesh().rank() != 0) return;
  outputs_->report(out);
  if (const auto& kept = asked_.requests.kept; kept && kept->encoded + kept->found > 0)
    report::tell(fmt::format("texts: {} encoded, {} found encoded", kept->encoded, kept->found));
}

void check_for_sampling(const SampleArguments& arguments, const CommandLine& line, int ranks) {
  auto saved = open_for_sampling(arguments);
  auto& recipe = saved.recipe;
  require_sampler(saved);
  Registry registry(plugin_folders(line.plugin_path), try_new_plugins);
  registry.try_out(plugins_of(recipe));
  declare_components(recipe, registry);
  complete_degrees(degrees(recipe), ranks);
  Components components(recipe, registry);
  require(recipe, recipe.scheduler, "scheduler");
  refuse_pair(recipe, *components.make<Sampler>("sampler", recipe.sampler, {}),
              *components.make<Scheduler>("scheduler", recipe.scheduler, {}));
}

void say_that_it_goes_on(const RankInfo& info) {
  if (info.rank == 0 && info.launcher != "local ranks")
    say_when_interrupted("SIGINT: ends at once; the same command goes on with what is not written yet\n");
}

HandedOn Sampling::handed_on() {
  const auto dtype = assembly_->main->ctx->compute == torch::kDouble ? torch::kDouble : torch::kFloat;
  auto& file = outputs_->passed();
  const auto rows = [&file, dtype, shape = outputs_->decoded()](int64_t first, int64_t count) {
    auto whole = shape;
    whole.insert(whole.begin(), count);
    auto made = torch::empty(whole, dtype);
    for (int64_t i = 0; i < count; ++i) {
      auto row = made[i];
      file.read(first + i, writable_bytes_of(row));
    }
    return made;
  };
  return {{a_.pass.name, dtype, outputs_->decoded(), {}}, count(), file.request(), rows};
}

}  // namespace ditto
