// ditto bench step | loader | optimizer RECIPE
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "core/dist/launch.h"
#include "core/dist/local_ranks.h"
#include "core/formats/json.h"
#include "core/train/bench_loader.h"
#include "core/train/bench_optimizer.h"
#include "core/train/bench_step.h"
#include "core/train/launch.h"
#include "core/train/rank.h"
#include "core/train/record.h"

namespace ditto {

namespace {

struct Arguments {
  std::string recipe;
  std::vector<std::string> sets;
  StepBenchOptions options;
  int local_ranks = 0;
  bool json = false;
};

// Of a mean step, by phase and call, the longest first; calls that take less than a hundredth of it are summed.
std::string breakdown_text(const StepBench& bench) {
  const auto steps = static_cast<double>(bench.seconds.size());
  double whole = 0;
  for (const auto& [phase, seconds] : bench.phases) whole += seconds;
  const auto line = [&](const std::string& name, double seconds, const std::string& more) {
    return fmt::format("{:44} {:8.2f} ms {:5.1f} %{}\n", name, 1e3 * seconds / steps, 100 * seconds / whole, more);
  };
  std::string text = "mean of the timed steps, on the thread that runs them:\n";
  for (const auto& [phase, seconds] : bench.phases) {
    text += line(phase, seconds, "");
    std::vector<std::pair<std::string, StepBreakdown::Calls>> calls;
    StepBreakdown::Calls small;
    double between = seconds;
    for (const auto& [of, call] : bench.ops) {
      if (of.first != phase) continue;
      between -= call.seconds;
      if (call.seconds >= whole / 100)
        calls.emplace_back(of.second, call);
      else
        small.calls += call.calls, small.seconds += call.seconds;
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

nlohmann::ordered_json breakdown_json(const StepBench& bench) {
  nlohmann::ordered_json phases, calls = nlohmann::ordered_json::array();
  for (const auto& [phase, seconds] : bench.phases) phases[phase] = seconds;
  for (const auto& [of, call] : bench.ops)
    calls.push_back({{"phase", of.first}, {"call", of.second}, {"calls", call.calls}, {"seconds", call.seconds}});
  return {{"phases_s", phases}, {"calls", calls}};
}

nlohmann::ordered_json to_json(const StepBench& bench, const Recipe& recipe) {
  const auto known = [&](double number) { return bench.flops ? nlohmann::ordered_json(number) : nullptr; };
  return {{"recipe", recipe.name},
          {"precision", recipe.run.precision},
          {"batch", bench.batch},
          {"parameters", bench.parameters},
          {"threads", torch::get_num_threads()},
          {"median_s", bench.median()},
          {"min_s", bench.fastest()},
          {"steps_s", bench.seconds},
          {"samples_per_s", static_cast<double>(bench.batch) / bench.median()},
          {"flops", known(bench.flops.value_or(0))},
          {"tflops", known(bench.flops.value_or(0) / bench.median() / 1e12)},
          {"matmul_tflops", bench.matmul_flops / 1e12},
          {"share", known(bench.share())},
          {"peak_bytes", bench.peak_bytes},
          {"loss", bench.loss},
          {"machine", machine_record(torch::Device(recipe.run.device))}};
}

std::string to_text(const StepBench& bench, const Recipe& recipe, int ranks) {
  const auto machine = machine_record(torch::Device(recipe.run.device));
  auto text = fmt::format("{}: {} parameters, {}, batch {}, {} rank{} of {} thread{}, {}\n", shown(recipe.name),
                          bench.parameters, recipe.run.precision, bench.batch, ranks, ranks == 1 ? "" : "s",
                          torch::get_num_threads(), torch::get_num_threads() == 1 ? "" : "s",
                          machine.at(machine.count("gpu") ? "gpu" : "processor"));
  text += fmt::format("step            {:.2f} ms median of {}, {:.2f} ms fastest\n", 1e3 * bench.median(),
                      bench.seconds.size(), 1e3 * bench.fastest());
  text +=
      fmt::format("throughput      {:.1f} img/s, {} TFLOP/s of the model's own operations\n",
                  static_cast<double>(bench.batch) / bench.median(),
                  bench.flops ? fmt::format("{:.3f}", *bench.flops / bench.median() / 1e12) : "an unknown number of");
  text += fmt::format("matrix multiply {:.3f} TFLOP/s in this process", bench.matmul_flops / 1e12);
  text += bench.flops ? fmt::format("; share reached: {:.1f} %\n", 100 * bench.share()) : "\n";
  text += fmt::format("memory          {:.1f} MB of a rank's tensors at the peak\n",
                      static_cast<double>(bench.peak_bytes) / 1e6);
  if (!bench.phases.empty()) text += breakdown_text(bench);
  return text;
}

int bench_step(const Arguments& a, const CommandLine& line) {
  Rank rank(a.local_ranks > 0 ? RankInfo{} : rank_info());
  return rank.run([&] {
    Recipe recipe = Recipe::read(a.recipe, a.sets);
    rank.open(recipe, line.plugin_path);
    declare_components(recipe, rank.registry());
    if (a.local_ranks > 0) {
      complete_degrees(degrees(recipe), a.local_ranks);  // refused before any rank starts
      return run_local_ranks({a.local_ranks, without_local_ranks(line.arguments)});
    }
    rank.meet(recipe);
    auto options = a.options;
    options.watch = &rank.watch();
    const auto& mesh = rank.mesh();
    const auto bench = ditto::bench_step(recipe, rank.registry(), mesh, options);
    auto json = to_json(bench, recipe);
    if (!bench.phases.empty()) json["breakdown"] = breakdown_json(bench);
    if (mesh.rank() == 0)
      std::cout << (a.json ? formats::ascii_json(json) + "\n" : to_text(bench, recipe, mesh.world_size()))
                << std::flush;
    return 0;
  });
}

struct LoaderArguments {
  std::string recipe;
  std::vector<std::string> sets;
  LoaderBenchOptions options;
  bool json = false;
};

// The part of their time in which the threads that read and decode compute; else they wait: for files, stores, or a
// processor.
double share_computing(const LoaderBench& bench, const Recipe& recipe) {
  return bench.computed_s / bench.seconds / static_cast<double>(std::max<int64_t>(recipe.loader.threads, 1));
}

nlohmann::ordered_json to_json(const LoaderBench& bench, const Recipe& recipe) {
  return {{"recipe", recipe.name},
          {"threads", recipe.loader.threads},
          {"micro_batch", bench.micro_batch},
          {"samples", bench.samples},
          {"left_out", bench.left_out},
          {"seconds", bench.seconds},
          {"samples_per_s", static_cast<double>(bench.samples) / bench.seconds},
          {"bytes_per_s", static_cast<double>(bench.bytes) / bench.seconds},
          {"share_computing", share_computing(bench, recipe)},
          {"machine", machine_record(torch::Device(torch::kCPU))}};
}

std::string to_text(const LoaderBench& bench, const Recipe& recipe) {
  const auto threads = recipe.loader.threads;
  auto text = fmt::format("{}: {} samples to learn from, micro-batches of {}, {}, {}\n", shown(recipe.name),
                          bench.source_samples, bench.micro_batch,
                          threads == 0   ? std::string("read when they are asked for")
                          : threads == 1 ? std::string("1 thread reads ahead")
                                         : fmt::format("{} threads read ahead", threads),
                          machine_record(torch::Device(torch::kCPU)).at("processor"));
  text += fmt::format("throughput {:.1f} samples/s, {:.1f} MB/s of their tensors; {} samples in {:.1f} s\n",
                      static_cast<double>(bench.samples) / bench.seconds,
                      1e-6 * static_cast<double>(bench.bytes) / bench.seconds, bench.samples, bench.seconds);
  const double computing = share_computing(bench, recipe);
  text += fmt::format("time       {:.0f} % reading and decoding; {:.0f} % waiting for files or a processor\n",
                      100 * computing, 100 * std::max(0.0, 1 - computing));
  if (bench.left_out > 0) text += fmt::format("left out   {} samples that do not decode\n", bench.left_out);
  return text;
}

int bench_loader(const LoaderArguments& a, const CommandLine& line) {
  expect_one_rank("ditto bench loader");
  Rank rank({});
  return rank.run([&] {
    Recipe recipe = Recipe::read(a.recipe, a.sets);
    rank.open(recipe, line.plugin_path);
    rank.meet(recipe);
    const auto bench = ditto::bench_loader(recipe, rank.registry(), a.options);
    std::cout << (a.json ? formats::ascii_json(to_json(bench, recipe)) + "\n" : to_text(bench, recipe)) << std::flush;
    return 0;
  });
}

void add_bench_loader(CLI::App& bench, CommandLine& line) {
  auto* command = bench.add_subcommand("loader", "Time the data alone: read, decoded and put into micro-batches");
  auto a = std::make_shared<LoaderArguments>();
  command->add_option("recipe", a->recipe, "the recipe, a TOML file; [data] is enough")->required();
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option, as in --set loader.threads=4")
      ->allow_extra_args(false);
  command->add_option("--seconds", a->options.seconds, "how long, after the warm-up")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--warmup", a->options.warmup, "micro-batches before that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_plugin_path(*command, line);
  command->add_flag("--json", a->json, "for programs");
  command->footer(
      "Example: ditto bench loader configs/digits.toml --seconds 2 --set loader.threads=1\n"
      "No model is made, and no run's folder written. Files that were read before are in memory: time a set that is\n"
      "larger than it to see the disk.");
  command->callback([a, &line] { line.exit_code = bench_loader(*a, line); });
}

struct OptimizerArguments {
  std::string recipe;
  std::vector<std::string> sets;
  OptimizerBenchOptions options;
  bool json = false;
};

nlohmann::ordered_json to_json(const OptimizerBench& bench, const Recipe& recipe) {
  const auto pass = [&](const OptimizerBench::Pass& of) {
    return nlohmann::ordered_json{{"bytes", of.bytes},
                                  {"seconds", of.seconds},
                                  {"bytes_per_s", of.rate()},
                                  {"share", of.rate() / bench.stream.rate()}};
  };
  return {{"recipe", recipe.name},           {"precision", recipe.run.precision},
          {"numerics", recipe.run.numerics}, {"optimizer", recipe.optimizer.plugin},
          {"parameters", bench.parameters},  {"threads", torch::get_num_threads()},
          {"update", pass(bench.update)},    {"norm", pass(bench.norm)},
          {"stream", pass(bench.stream)},    {"machine", machine_record(torch::Device(torch::kCPU))}};
}

std::string to_text(const OptimizerBench& bench, const Recipe& recipe) {
  auto text = fmt::format("{}: {} parameters, {}, {}, numerics \"{}\", {} threads, {}\n", shown(recipe.name),
                          bench.parameters, recipe.optimizer.plugin, recipe.run.precision, recipe.run.numerics,
                          torch::get_num_threads(), machine_record(torch::Device(torch::kCPU)).at("processor"));
  const auto line = [&](const char* name, const OptimizerBench::Pass& pass, const std::string& more) {
    text +=
        fmt::format("{:7} {:8.2f} ms median of {}, {:5.1f} GB/s{}\n", name,
                    1e3 * static_cast<double>(pass.bytes) / pass.rate(), pass.seconds.size(), 1e-9 * pass.rate(), more);
  };
  const auto share = [&](const OptimizerBench::Pass& pass) {
    return fmt::format(", {:.1f} bytes a parameter; {:.0f} % of the stream's",
                       static_cast<double>(pass.bytes) / static_cast<double>(bench.parameters),
                       100 * pass.rate() / bench.stream.rate());
  };
  line("update", bench.update, share(bench.update));
  line("norm", bench.norm, share(bench.norm));
  line("stream", bench.stream, ", numbers multiplied where they are");
  return text;
}

int bench_optimizer(const OptimizerArguments& a, const CommandLine& line) {
  expect_one_rank("ditto bench optimizer");
  Rank rank({});
  return rank.run([&] {
    Recipe recipe = Recipe::read(a.recipe, a.sets);
    if (recipe.run.device != "cpu")
      throw Error(ErrorKind::config, "run.device", "is \"" + recipe.run.device + "\"",
                  "ditto bench optimizer measures a processor's memory: --set 'run.device=\"cpu\"'");
    rank.open(recipe, line.plugin_path);
    declare_components(recipe, rank.registry());
    rank.meet(recipe);
    const auto bench = ditto::bench_optimizer(recipe, rank.registry(), rank.mesh(), a.options);
    std::cout << (a.json ? formats::ascii_json(to_json(bench, recipe)) + "\n" : to_text(bench, recipe)) << std::flush;
    return 0;
  });
}

void add_bench_optimizer(CLI::App& bench, CommandLine& line) {
  auto* command = bench.add_subcommand("optimizer", "Time the update of the weights alone, beside the memory's speed");
  auto a = std::make_shared<OptimizerArguments>();
  command->add_option("recipe", a->recipe, "the recipe, a TOML file")->required();
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option, as in --set run.precision=bf16")
      ->allow_extra_args(false);
  command->add_option("--rounds", a->options.rounds, "each times the stream, the norm and the update")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--warmup", a->options.warmup, "rounds before them that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_plugin_path(*command, line);
  command->add_flag("--json", a->json, "for programs: bytes, seconds, and bytes a second");
  command->footer(
      "Example: ditto bench optimizer configs/digits.toml --set run.precision=bf16\n"
      "Bytes are those that have to be read and written at the least: weights, states, average and gradients once "
      "each,\n"
      "compute copies. Writes no run's folder. Weights that fit into a processor's caches come out above the stream.");
  command->callback([a, &line] { line.exit_code = bench_optimizer(*a, line); });
}

void add_bench_step(CLI::App& bench, CommandLine& line) {
  auto* command = bench.add_subcommand("step", "Time whole training steps: data, forward, backward, optimizer, EMA");
  auto a = std::make_shared<Arguments>();
  command->add_option("recipe", a->recipe, "the recipe, a TOML file")->required();
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option, as in --set run.batch=16")
      ->allow_extra_args(false);
  command->add_option("--steps", a->options.steps, "timed steps")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--warmup", a->options.warmup, "steps before them that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--local-ranks", a->local_ranks, "start this many ranks on this machine")
      ->check(CLI::PositiveNumber);
  add_plugin_path(*command, line);
  command->add_flag("--breakdown", a->options.breakdown,
                    "where the time goes: phases of a step, and the calls of each");
  command->add_flag("--json", a->json, "for programs: seconds, and 10^12 operations a second");
  command->footer(
      "Example: ditto bench step configs/digits.toml --steps 20 --set run.precision=bf16\n"
      "Writes no run's folder. Close what else runs on the machine.");
  command->callback([a, &line] { line.exit_code = bench_step(*a, line); });
}

}  // namespace

void add_bench_command(CLI::App& app, CommandLine& line) {
  auto* bench = app.add_subcommand("bench", "Measure how fast this machine does a recipe's work");
  bench->require_subcommand(1);
  add_bench_step(*bench, line);
  add_bench_loader(*bench, line);
  add_bench_optimizer(*bench, line);
}

}  // namespace ditto
