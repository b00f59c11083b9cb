// ditto bench optimizer RECIPE
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <CLI/CLI.hpp>

#include <ditto/text.h>

#include "apps/ditto/bench.h"
#include "core/assembly/run_notes.h"
#include "core/bench/bench_optimizer.h"

namespace ditto {

namespace {

struct OptimizerArguments : BenchArguments {
  OptimizerBenchOptions options;
};

nlohmann::ordered_json bench_json(const OptimizerBench& bench, const Recipe& recipe) {
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

std::string bench_text(const OptimizerBench& bench, const Recipe& recipe) {
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

}  // namespace

void add_bench_optimizer(CLI::App& bench, CommandLine& line) {
  auto a = std::make_shared<OptimizerArguments>();
  auto* command = add_bench(bench, line, *a, "optimizer",
                            "Time the update of the weights alone, beside the memory's speed", "run.precision=bf16");
  command->add_option("--rounds", a->options.rounds, "each times the stream, the norm and the update")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--warmup", a->options.warmup, "rounds before them that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->footer(
      "Example: ditto bench optimizer configs/digits.toml --set run.precision=bf16\n"
      "Bytes are those that have to be read and written at the least: weights, states, average and gradients once "
      "each,\n"
      "compute copies. Writes no run's folder. Weights that fit into a processor's caches come out above the stream.");
  command->callback([a, &line] {
    line.exit_code =
        bench_alone("ditto bench optimizer", *a, line, BenchNeeds::training, [&](Recipe& recipe, Rank& rank) {
          const auto bench = bench_optimizer(recipe, rank.registry(), rank.mesh(), a->options);
          return BenchReport{bench_json(bench, recipe), bench_text(bench, recipe)};
        });
  });
}

}  // namespace ditto
