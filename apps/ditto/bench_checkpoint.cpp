// ditto bench checkpoint RECIPE
#include <fmt/format.h>
#include <torch/types.h>
#include <CLI/CLI.hpp>

#include <ditto/text.h>

#include "apps/ditto/bench.h"
#include "core/assembly/run_notes.h"
#include "core/bench/bench_checkpoint.h"
#include "core/measure/median.h"

namespace ditto {

namespace {

struct CheckpointBenchArguments : BenchArguments {
  CheckpointBenchOptions options;
};

BenchReport report_of(const CheckpointBench& bench, const Recipe& recipe) {
  const auto machine = machine_record(torch::Device(torch::kCPU));
  BenchReport report{{{"recipe", recipe.name}, {"parameters", bench.parameters}, {"bytes", bench.bytes}},
                     fmt::format("{}: {} parameters, checkpoints of {:.1f} MB, {}\n", shown(recipe.name),
                                 bench.parameters, 1e-6 * static_cast<double>(bench.bytes), machine.at("processor"))};
  const auto add = [&](const char* name, const std::vector<double>& seconds, const std::vector<double>& beside,
                       const char* what) {
    const double rate = static_cast<double>(bench.bytes) / report::median(seconds);
    const double share = report::median(beside) / report::median(seconds);
    report.json[name] = {{"seconds", seconds}, {"bytes_per_s", rate}, {"share", share}};
    report.text += fmt::format("{:7} {:9.1f} ms median of {}, {:8.1f} MB/s, {:4.0f} %: {}\n", name,
                               1e3 * report::median(seconds), seconds.size(), 1e-6 * rate, 100 * share, what);
  };
  add("write", bench.write, bench.write, "a plain file of as many bytes, synced");
  add("stall", bench.stall, bench.write, "a training step waits for its save");
  add("save", bench.save, bench.write, "until it is durable");
  add("read", bench.read, bench.read, "the plain file");
  add("verify", bench.verify, bench.read, "all checksums");
  add("load", bench.load, bench.read, "weights, average and states, checked");
  report.json["machine"] = machine;
  return report;
}

}  // namespace

void add_bench_checkpoint(CLI::App& bench, CommandLine& line) {
  auto a = std::make_shared<CheckpointBenchArguments>();
  auto* command =
      add_bench(bench, line, *a, "checkpoint",
                "Time saving, verifying and loading, beside plain files on the same disk", "optimizer.plugin=sgd");
  command->add_option("--folder", a->options.folder, "on the disk: a folder is made in it, and removed")
      ->capture_default_str();
  command->add_option("--rounds", a->options.rounds, "each times all of them")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->footer(
      "Example: ditto bench checkpoint configs/digits.toml --folder runs\n"
      "Shares are of the plain file's rate. What is read is dropped from memory before, as far as the system does so.");
  command->callback([a, &line] {
    line.exit_code =
        bench_alone("ditto bench checkpoint", *a, line, BenchNeeds::training, [&](Recipe& recipe, Rank& rank) {
          return report_of(bench_checkpoint(recipe, rank.registry(), rank.mesh(), a->options), recipe);
        });
  });
}

}  // namespace ditto
