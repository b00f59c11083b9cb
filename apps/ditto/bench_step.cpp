// ditto bench step RECIPE
#include <algorithm>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <CLI/CLI.hpp>

#include <ditto/text.h>

#include "apps/ditto/bench.h"
#include "core/assembly/run_notes.h"
#include "core/bench/bench_step.h"
#include "core/process/launch.h"
#include "core/profile/trace.h"
#include "core/ranks/launch.h"

namespace ditto {

namespace {

struct StepArguments : BenchArguments {
  StepBenchOptions options;
  int local_ranks = 0;
  std::string trace;
};

// Of a mean step, by phase and call, the longest first; calls that take less than a hundredth of it are summed.
std::string breakdown_text(const StepBreakdown::Found& found, double steps) {
  double whole = 0;
  for (const auto& [phase, seconds] : found.phases) whole += seconds;
  const auto line = [&](const std::string& name, double seconds, const std::string& more) {
    return fmt::format("{:44} {:8.2f} ms {:5.1f} %{}\n", name, 1e3 * seconds / steps, 100 * seconds / whole, more);
  };
  std::string text = "mean of the timed steps, on the thread that runs them:\n";
  for (const auto& [phase, seconds] : found.phases) {
    text += line(phase, seconds, "");
    std::vector<std::pair<std::string, StepBreakdown::Calls>> calls;
    StepBreakdown::Calls small;
    double between = seconds;
    for (const auto& [call, took] : found.calls) {
      if (call.phase != phase) continue;
      between -= took.seconds;
      if (took.seconds >= whole / 100)
        calls.emplace_back(call.name + (call.variant.empty() ? "" : ", " + call.variant), took);
      else
        small.calls += took.calls, small.seconds += took.seconds;
    }
    std::sort(calls.begin(), calls.end(),
              [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    if (small.calls > 0) calls.emplace_back("smaller ones", small);
    for (const auto& [name, call] : calls)
      text += line("  " + name, call.seconds, fmt::format(" {:8.1f} calls", static_cast<double>(call.calls) / steps));
    text += line("  between calls", between, "");
  }
  return text;
}

nlohmann::ordered_json breakdown_json(const StepBreakdown::Found& found) {
  nlohmann::ordered_json phases, calls = nlohmann::ordered_json::array();
  for (const auto& [phase, seconds] : found.phases) phases[phase] = seconds;
  for (const auto& [call, took] : found.calls) {
    calls.push_back({{"phase", call.phase}, {"call", call.name}, {"calls", took.calls}, {"seconds", took.seconds}});
    if (!call.variant.empty()) calls.back()["variant"] = call.variant;
  }
  return {{"phases_s", phases}, {"calls", calls}};
}

nlohmann::ordered_json bench_json(const StepBench& bench, const Recipe& recipe) {
  const auto known = [&](double number) { return bench.flops ? nlohmann::ordered_json(number) : nullptr; };
  nlohmann::ordered_json json{{"recipe", recipe.name},
                              {"precision", recipe.run.precision},
                              {"batch", bench.batch},
                              {"parameters", bench.parameters},
                              {"threads", torch::get_num_threads()},
                              {"median_s", bench.median()},
                              {"min_s", bench.fastest()},
                              {"steps_s", bench.seconds},
                              {"samples_per_s", bench.learned / bench.median()},
                              {"flops", known(bench.flops.value_or(0))},
                              {"tflops", known(bench.flops.value_or(0) / bench.median() / 1e12)},
                              {"matmul_tflops", bench.matmul_flops / 1e12},
                              {"share", known(bench.share())},
                              {"peak_bytes", bench.peak_bytes},
                              {"loss", bench.loss},
                              {"machine", machine_record(torch::Device(recipe.run.device))}};
  if (bench.free_median) json["free_median_s"] = *bench.free_median;
  if (bench.breakdown) json["breakdown"] = breakdown_json(*bench.breakdown);
  return json;
}

std::string bench_text(const StepBench& bench, const Recipe& recipe, int ranks) {
  const auto machine = machine_record(torch::Device(recipe.run.device));
  auto text = fmt::format("{}: {} parameters, {}, batch {}, {} rank{} of {} thread{}, {}\n", shown(recipe.name),
                          bench.parameters, recipe.run.precision, bench.batch, ranks, ranks == 1 ? "" : "s",
                          torch::get_num_threads(), torch::get_num_threads() == 1 ? "" : "s",
                          machine.at(machine.count("gpu") ? "gpu" : "processor"));
  text += fmt::format("step            {:.2f} ms median of {}, {:.2f} ms fastest\n", 1e3 * bench.median(),
                      bench.seconds.size(), 1e3 * bench.fastest());
  if (bench.free_median)
    text += fmt::format("same bits again {:+.1f} %: {:.2f} ms median with run.deterministic = false\n",
                        100 * (bench.median() / *bench.free_median - 1), 1e3 * *bench.free_median);
  text += fmt::format(
      "throughput      {:.1f} img/s, {} TFLOP/s of the model's own operations\n", bench.learned / bench.median(),
      bench.flops ? fmt::format("{:.3f}", *bench.flops / bench.median() / 1e12) : "an unknown number of");
  text += fmt::format("matrix multiply {:.3f} TFLOP/s in this process", bench.matmul_flops / 1e12);
  text += bench.flops ? fmt::format("; share reached: {:.1f} %\n", 100 * bench.share()) : "\n";
  text += fmt::format("memory          {:.1f} MB of a rank's tensors at the peak\n",
                      static_cast<double>(bench.peak_bytes) / 1e6);
  if (bench.breakdown) text += breakdown_text(*bench.breakdown, static_cast<double>(bench.seconds.size()));
  return text;
}

Recipe open_recipe(Rank& rank, const StepArguments& a, const CommandLine& line) {
  Recipe recipe = Recipe::read(a.recipe, a.sets);
  rank.open(recipe, line.plugin_path);
  declare_components(recipe, rank.registry());
  return recipe;
}

int rehearse(const StepArguments& a, const CommandLine& line) {
  Rank rank{RankInfo{}};
  return rank.run([&] {
    trace_file(a.trace);
    complete_degrees(degrees(open_recipe(rank, a, line)), a.local_ranks);
    return 0;
  });
}

int bench_step(const StepArguments& a, const CommandLine& line) {
  if (a.local_ranks > 0) return start_ranks(line, a.local_ranks, [&] { return rehearse(a, line); });
  Rank rank(rank_info());
  return rank.run([&] {
    auto options = a.options;
    options.trace = trace_file(a.trace);
    Recipe recipe = open_recipe(rank, a, line);
    rank.meet(recipe);
    options.watch = &rank.watch();
    const auto& mesh = rank.mesh();
    const auto bench = ditto::bench_step(recipe, rank.registry(), mesh, options);
    if (mesh.rank() == 0) print_report({bench_json(bench, recipe), bench_text(bench, recipe, mesh.world_size())}, a);
    return 0;
  });
}

}  // namespace

void add_bench_step(CLI::App& bench, CommandLine& line) {
  auto a = std::make_shared<StepArguments>();
  auto* command = add_bench(bench, line, *a, "step",
                            "Time whole training steps: data, forward, backward, optimizer, EMA", "run.batch=16");
  command->add_option("--steps", a->options.steps, "timed steps")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--warmup", a->options.warmup, "steps before them that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--local-ranks", a->local_ranks, "start this many ranks on this machine")
      ->check(CLI::PositiveNumber);
  command->add_flag("--breakdown", a->options.breakdown,
                    "where the time goes: phases of a step, and the calls of each, by the kernels that compute them");
  command->add_option(
      "--trace", a->trace,
      "FILE.json: a Chrome trace (chrome://tracing, Perfetto) of one step more: phases, ops and calls, by "
      "rank and thread");
  command->footer(
      "Example: ditto bench step configs/digits.toml --steps 20 --set run.precision=bf16\n"
      "Writes no run's folder. Close what else runs on the machine.");
  command->callback([a, &line] { line.exit_code = bench_step(*a, line); });
}

}  // namespace ditto
