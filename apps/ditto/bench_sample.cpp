// ditto bench sample RUN|CHECKPOINT
#include <algorithm>
#include <chrono>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <CLI/CLI.hpp>

#include <ditto/text.h>

#include "apps/ditto/bench.h"
#include "apps/ditto/sample_requests.h"
#include "core/assembly/run_notes.h"
#include "core/measure/median.h"
#include "core/ranks/launch.h"
#include "core/sample/clip.h"

namespace ditto {

namespace {

struct SampleBenchArguments : BenchArguments {
  SampleArguments sample;
  int64_t warmup = 2;
};

// Another sampler, whose steps are timed.
class TimedSampler final : public Sampler {
 public:
  TimedSampler(const Sampler& timed, int64_t warmup) : timed_(timed), warmup_(warmup) {}
  torch::Tensor sample(const SamplingRequest& request) const override {
    using Clock = std::chrono::steady_clock;
    auto last = Clock::now();
    auto watched = request;
    watched.progress = [&](int64_t step, int64_t) {
      const auto now = Clock::now();
      if (step > warmup_) seconds.push_back(std::chrono::duration<double>(now - last).count());
      last = now;
    };
    return timed_.sample(watched);
  }
  mutable std::vector<double> seconds;  // of each step of each batch, but for the first ones

 private:
  const Sampler& timed_;
  int64_t warmup_;
};

BenchReport bench_sample(Rank& rank, const SampleBenchArguments& a, const CommandLine& line) {
  auto saved = open_for_sampling(a.sample);
  rank.open(saved.recipe, line.plugin_path);
  rank.meet(saved.recipe);
  AssemblyParts parts;
  parts.sampler = parts.latents = true;
  parts.saved = saved.shapes;
  parts.weights = RunningModel::Weights::room;
  Assembly assembly(saved.recipe, rank.registry(), rank.mesh(), parts, {});
  refuse_other_encoders(saved, *assembly.networks);
  const auto& sampler = saved.recipe.sampler.plugin;
  if (assembly.sampler->adaptive())
    throw Error(ErrorKind::config, "sampler \"" + sampler + "\"", "has no steps alike: it chooses them by their errors",
                "name another with --sampler");
  GenerateOptions options;
  options.steps = saved.recipe.sampler_steps;
  options.clip = clip_of(saved.recipe);
  options.cache = assembly.cache.get();
  options.batch = a.sample.batch;
  if (options.steps <= a.warmup)
    throw Error(ErrorKind::config, "--warmup", fmt::format("leaves none of {} steps to be timed", options.steps),
                "give more --steps");
  const auto asked = read_requests(a.sample, assembly);
  if (!a.sample.noise.empty()) options.noise = read_noise(a.sample, asked.requests);
  assembly.networks->load(saved, a.sample.weights);
  const TimedSampler timed(*assembly.sampler, a.warmup);
  generate(*assembly.networks, timed, *assembly.guidance, asked.requests, options);

  const auto samples = static_cast<int64_t>(asked.requests.seeds.size());
  const auto batch = std::min(options.batch, samples);
  const double median = report::median(timed.seconds), a_sample = median / static_cast<double>(batch);
  const auto machine = machine_record(torch::Device(saved.recipe.run.device));
  const nlohmann::ordered_json json{{"from", saved.path},       {"precision", saved.recipe.run.precision},
                                    {"sampler", sampler},       {"guidance", saved.recipe.guidance.plugin},
                                    {"batch", batch},           {"threads", torch::get_num_threads()},
                                    {"steps_s", timed.seconds}, {"median_s", median},
                                    {"sample_s", a_sample},     {"machine", machine}};
  return {json, fmt::format("{}: {}, {}, guidance {}, {} at once, {} threads, {}\n"
                            "step {:.2f} ms median of {}, {:.2f} ms a sample\n",
                            shown(saved.path), saved.recipe.run.precision, sampler, saved.recipe.guidance.plugin, batch,
                            torch::get_num_threads(), machine.at(machine.count("gpu") ? "gpu" : "processor"),
                            1e3 * median, timed.seconds.size(), 1e3 * a_sample)};
}

}  // namespace

void add_bench_sample(CLI::App& bench, CommandLine& line) {
  auto* command = bench.add_subcommand("sample", "Time the steps of sampling from a trained model");
  auto a = std::make_shared<SampleBenchArguments>();
  command->add_option("from", a->sample.from, "a run's folder, or a checkpoint")->required();
  add_request_options(*command, a->sample);
  add_sampler_options(*command, a->sample);
  command->add_option("--warmup", a->warmup, "steps of each batch that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_plugin_path(*command, line);
  command->add_flag("--json", a->json, "for programs: seconds");
  command->footer(
      "Example: ditto bench sample runs/digits --seeds 0-3 --batch 4 --steps 12 --guidance 2\n"
      "A step is all between two of the sampler's times, guidance and cache too. Nothing is decoded, nor written.");
  command->callback([a, &line] {
    expect_one_rank("ditto bench sample");
    Rank rank({});
    line.exit_code = rank.run([&] {
      print_report(bench_sample(rank, *a, line), *a);
      return 0;
    });
  });
}

}  // namespace ditto
