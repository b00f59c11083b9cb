#include "core/bench/bench_step.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/assembly/run_notes.h"
#include "core/console/streams.h"
#include "core/measure/median.h"
#include "core/measure/memory.h"
#include "core/measure/roofline.h"
#include "core/process/device.h"
#include "core/profile/chrome_trace.h"
#include "core/train/step.h"

namespace ditto {

double StepBench::median() const { return report::median(seconds); }

double StepBench::fastest() const { return *std::min_element(seconds.begin(), seconds.end()); }

namespace {

StepBench measured(Recipe recipe, Registry& registry, const Mesh& mesh, const StepBenchOptions& options) {
  report::MemoryMeter memory{torch::Device(recipe.run.device)};
  const report::MemoryMeter::Watch counts_memory(memory);
  recipe.validate.every = recipe.validate.grid_every = 0;
  // Data is read ahead up to the recipe's last step only.
  recipe.run.steps = std::max(recipe.run.steps, options.warmup + options.steps + (options.trace.empty() ? 0 : 1));
  if (!options.trace.empty() && mesh.rank() == 0) ChromeTrace::require_writable(options.trace);
  AssemblyParts parts;
  parts.data = parts.objective = parts.measures = true;
  Assembly assembly(recipe, registry, mesh, parts, {});
  const auto warn = [](const std::string& line) { report::tell(line); };
  Loader loader(assembly.train_data, recipe.loader, static_cast<uint64_t>(recipe.run.seed), warn);
  const auto optimizer = assembly.make_optimizer();
  Ema ema(assembly.networks->learned(), recipe.ema);
  TrainingStep training(assembly, loader, *optimizer, ema);
  training.expect(0);
  std::optional<StepBreakdown> breakdown;
  if (options.breakdown) training.observers.push_back(&breakdown.emplace());

  StepBench bench;
  const auto take = [&](const std::vector<StepResult>& results) {
    for (const auto& result : results) {
      bench.loss = result.loss;
      if (result.step > options.warmup && !result.skipped)
        bench.learned += result.samples / static_cast<double>(options.steps);
    }
  };
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    if (options.watch) options.watch->begin_step();
    if (step == options.warmup) memory.reset_peak();
    if (step == options.warmup && breakdown) breakdown->begin();
    const auto began = std::chrono::steady_clock::now();
    training.make(step);
    take(training.results());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (step >= options.warmup) bench.seconds.push_back(took.count());
  }
  training.settle();
  take(training.results());
  if (breakdown) bench.breakdown = breakdown->take();
  bench.peak_bytes = memory.peak();
  if (!options.trace.empty()) {
    if (options.watch) options.watch->begin_step();
    if (!breakdown) training.observers.push_back(&breakdown.emplace());
    ChromeTrace trace;
    breakdown->begin();
    training.run(options.warmup + options.steps);
    breakdown->take();
    if (options.watch) options.watch->begin("writing a trace");
    trace.write(options.trace, mesh);
  }
  for (auto& entry : assembly.networks->learned().entries)  // who counts memory counts the step's
    if (entry.tensor.requires_grad()) entry.tensor.mutable_grad() = torch::Tensor();
  if (options.watch) options.watch->begin("multiplying matrices");
  if (training.flops) bench.flops = *training.flops * mesh.data_ranks();
  bench.matmul_flops =
      1e9 * report::matmul_gflops(assembly.main->ctx->compute, assembly.main->ctx->device) * mesh.world_size();
  bench.batch = recipe.run.batch;
  bench.parameters = assembly.networks->parameters();
  return bench;
}

double median_of_free_kernels(Recipe recipe, Registry& registry, const Mesh& mesh, StepBenchOptions options) {
  struct Chosen {
    Chosen() { choose_kernels(false); }
    ~Chosen() { choose_kernels(true); }
  } chosen;
  recipe.run.deterministic = options.breakdown = false;
  options.trace.clear();
  return measured(std::move(recipe), registry, mesh, options).median();
}

}  // namespace

StepBench bench_step(Recipe recipe, Registry& registry, const Mesh& mesh, const StepBenchOptions& options) {
  auto bench = measured(recipe, registry, mesh, options);
  if (recipe.run.deterministic && !torch::Device(recipe.run.device).is_cpu())
    bench.free_median = median_of_free_kernels(recipe, registry, mesh, options);
  return bench;
}

}  // namespace ditto
