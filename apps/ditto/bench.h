// What the subcommands of `ditto bench` share: a recipe, its overrides, and a report for people or for programs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/ditto/commands.h"
#include "core/process/rank.h"

namespace ditto {

struct BenchArguments {
  std::string recipe;
  std::vector<std::string> sets;
  bool json = false;
  const char* otherwise = nullptr;  // TOML of the recipe where none is named; null: one has to be
};

struct BenchReport {
  nlohmann::ordered_json json;
  std::string text;
};

// A subcommand with all of them, --plugin-path too. `set`: an example of an override.
CLI::App* add_bench(CLI::App& bench, CommandLine& line, BenchArguments& arguments, const char* name, const char* text,
                    const char* set);
void print_report(const BenchReport& report, const BenchArguments& arguments);

// Of a subcommand of one rank: opens what the recipe names, and prints what `measure` reports. What needs all of a
// training is refused, with Error(config), for other devices than a processor.
enum class BenchNeeds { data, training };
int bench_alone(const std::string& command, const BenchArguments& arguments, const CommandLine& line, BenchNeeds needs,
                const std::function<BenchReport(Recipe&, Rank&)>& measure);

void add_bench_step(CLI::App& bench, CommandLine& line);
void add_bench_kernels(CLI::App& bench, CommandLine& line);
void add_bench_loader(CLI::App& bench, CommandLine& line);
void add_bench_optimizer(CLI::App& bench, CommandLine& line);
void add_bench_checkpoint(CLI::App& bench, CommandLine& line);
void add_bench_sample(CLI::App& bench, CommandLine& line);

}  // namespace ditto
