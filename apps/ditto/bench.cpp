// ditto bench step | kernels | loader | optimizer | checkpoint | sample: what they share
#include "apps/ditto/bench.h"

#include <iostream>

#include <CLI/CLI.hpp>

#include "core/formats/text/json.h"
#include "core/process/launch.h"
#include "core/ranks/launch.h"

namespace ditto {

CLI::App* add_bench(CLI::App& bench, CommandLine& line, BenchArguments& arguments, const char* name, const char* text,
                    const char* set) {
  auto* command = bench.add_subcommand(name, text);
  command
      ->add_option("recipe", arguments.recipe,
                   arguments.otherwise ? "the recipe, a TOML file; DiT-S/2 with a batch of 8 where none is named"
                                       : "the recipe, a TOML file")
      ->required(!arguments.otherwise);
  command->add_option("--set", arguments.sets, std::string("KEY=VALUE: overrides an option, as in --set ") + set)
      ->allow_extra_args(false);
  add_plugin_path(*command, line);
  command->add_flag("--json", arguments.json, "for programs: seconds, bytes, and both a second");
  return command;
}

void print_report(const BenchReport& report, const BenchArguments& arguments) {
  std::cout << (arguments.json ? formats::ascii_json(report.json) + "\n" : report.text) << std::flush;
}

int bench_alone(const std::string& command, const BenchArguments& arguments, const CommandLine& line, BenchNeeds needs,
                const std::function<BenchReport(Recipe&, Rank&)>& measure) {
  expect_one_rank(command);
  Rank rank({});
  return rank.run([&] {
    Recipe recipe = arguments.recipe.empty() && arguments.otherwise
                        ? Recipe::parse(arguments.otherwise, "DiT-S/2", arguments.sets)
                        : Recipe::read(arguments.recipe, arguments.sets);
    if (needs == BenchNeeds::training && recipe.run.device != "cpu")
      throw Error(ErrorKind::config, "run.device", "is \"" + recipe.run.device + "\"",
                  command + " measures a processor: --set 'run.device=\"cpu\"'");
    rank.open(recipe, line.plugin_path);
    if (needs == BenchNeeds::training) declare_components(recipe, rank.registry());
    rank.meet(recipe);
    print_report(measure(recipe, rank), arguments);
    return 0;
  });
}

void add_bench_command(CLI::App& app, CommandLine& line) {
  auto* bench = app.add_subcommand("bench", "Measure how fast this machine does a recipe's work");
  bench->require_subcommand(1);
  add_bench_step(*bench, line);
  add_bench_kernels(*bench, line);
  add_bench_loader(*bench, line);
  add_bench_optimizer(*bench, line);
  add_bench_checkpoint(*bench, line);
  add_bench_sample(*bench, line);
}

}  // namespace ditto
