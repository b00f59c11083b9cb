// ditto bench loader RECIPE
#include <algorithm>

#include <fmt/format.h>
#include <torch/types.h>
#include <CLI/CLI.hpp>

#include <ditto/text.h>

#include "apps/ditto/bench.h"
#include "core/assembly/run_notes.h"
#include "core/bench/bench_loader.h"

namespace ditto {

namespace {

struct LoaderArguments : BenchArguments {
  LoaderBenchOptions options;
};

// The part of their time in which the threads that read and decode compute; else they wait: for files, stores, or a
// processor.
double share_computing(const LoaderBench& bench, const Recipe& recipe) {
  return bench.computed_s / bench.seconds / static_cast<double>(std::max<int64_t>(recipe.loader.threads, 1));
}

nlohmann::ordered_json bench_json(const LoaderBench& bench, const Recipe& recipe) {
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

std::string bench_text(const LoaderBench& bench, const Recipe& recipe) {
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

}  // namespace

void add_bench_loader(CLI::App& bench, CommandLine& line) {
  auto a = std::make_shared<LoaderArguments>();
  auto* command = add_bench(bench, line, *a, "loader", "Time the data alone: read, decoded and put into micro-batches",
                            "loader.threads=4");
  command->add_option("--seconds", a->options.seconds, "how long, after the warm-up")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--warmup", a->options.warmup, "micro-batches before that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->footer(
      "Example: ditto bench loader configs/digits.toml --seconds 2 --set loader.threads=1\n"
      "A recipe of [run] and [data] is enough. No model is made, and no run's folder written. Files that were read\n"
      "before are in memory: time a set that is larger than it to see the disk.");
  command->callback([a, &line] {
    line.exit_code = bench_alone("ditto bench loader", *a, line, BenchNeeds::data, [&](Recipe& recipe, Rank& rank) {
      const auto bench = bench_loader(recipe, rank.registry(), a->options);
      return BenchReport{bench_json(bench, recipe), bench_text(bench, recipe)};
    });
  });
}

}  // namespace ditto
