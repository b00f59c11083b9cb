// ditto data prepare | inspect | verify
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "core/data/inspect.h"
#include "core/data/prepare.h"
#include "core/dist/launch.h"
#include "core/formats/json.h"

namespace ditto {

namespace {

struct PrepareArguments {
  std::string in, shape;
  PrepareOptions options;
  TableLayout layout;
};

// One line that is overwritten, on a terminal only.
std::function<void(int64_t, int64_t)> progress_line() {
  if (!::isatty(STDERR_FILENO)) return {};
  return [](int64_t done, int64_t all) {
    if (done % 100 == 0 || done == all)
      std::fprintf(stderr, "\r%lld of %lld samples%s", static_cast<long long>(done), static_cast<long long>(all),
                   done == all ? "\n" : "");
  };
}

void read_shape(const std::string& text, TableLayout& layout) {
  long long height = 0, width = 0, channels = 1;
  int used = 0;
  const int found = std::sscanf(text.c_str(), "%lldx%lld%nx%lld%n", &height, &width, &used, &channels, &used);
  if (found < 2 || static_cast<size_t>(used) != text.size())
    throw Error(ErrorKind::config, "--shape", "is \"" + text + "\"", "expected HEIGHTxWIDTH, such as 8x8");
  layout.height = height;
  layout.width = width;
  layout.channels = channels;
}

void prepare(PrepareArguments& arguments) {
  expect_one_rank("ditto data prepare");
  arguments.options.progress = progress_line();
  Prepared made;
  if (std::filesystem::is_directory(arguments.in)) {
    if (!arguments.shape.empty())
      throw Error(ErrorKind::config, "--shape", "is for tables, but " + arguments.in + " is a folder");
    made = prepare_folder(arguments.in, arguments.options);
  } else {
    if (arguments.shape.empty())
      throw Error(ErrorKind::config, arguments.in, "is taken as a table, but --shape is not given",
                  "add --shape HEIGHTxWIDTH, or name a folder of pictures");
    read_shape(arguments.shape, arguments.layout);
    made = prepare_table(arguments.in, arguments.layout, arguments.options);
  }
  for (const auto& shard : made.shards) std::cout << shown(shard) << '\n';
  for (const auto& reason : made.left_out) std::cout << "left out: " << shown(reason, kSentenceShown) << '\n';
  std::cout << made.train << " samples to train on, " << made.validation << " held out";
  if (!made.classes.empty()) std::cout << ", " << made.classes.size() << " classes";
  std::cout << '\n';
}

nlohmann::json to_json(const ShardReport& report) {
  nlohmann::json labels = nlohmann::json::object();
  for (const auto& [label, count] : report.labels) labels[std::to_string(label)] = count;
  return {{"path", report.path},        {"bytes", report.bytes},    {"samples", report.samples},
          {"members", report.members},  {"pictures", report.sizes}, {"labels", labels},
          {"problems", report.problems}};
}

std::string shown_count(const std::string& what) { return shown(what); }
int64_t shown_count(int64_t what) { return what; }

template <class Map>
void print_counts(const char* title, const Map& counts) {
  if (counts.empty()) return;
  constexpr size_t kMost = 20;
  std::cout << "  " << title << ':';
  size_t printed = 0;
  for (const auto& [what, count] : counts) {
    if (printed++ == kMost) {
      std::cout << ", … (" << counts.size() << " in all)";
      break;
    }
    std::cout << (printed > 1 ? ", " : " ") << shown_count(what) << " (" << count << ')';
  }
  std::cout << '\n';
}

void print(const ShardReport& report) {
  std::cout << shown(report.path) << ": " << report.samples << " samples, " << report.bytes << " bytes\n";
  print_counts("members", report.members);
  print_counts("pictures, height x width x channels", report.sizes);
  print_counts("labels", report.labels);
  for (const auto& problem : report.problems) std::cout << "  problem: " << shown(problem, kSentenceShown) << '\n';
}

void inspect(const std::vector<std::string>& paths, Depth depth, bool json) {
  auto all = nlohmann::json::array();
  size_t problems = 0;
  for (const auto& path : shards_named(paths)) {
    const auto report = inspect_shard(path, depth);
    problems += report.problems.size();
    if (json) {
      all.push_back(to_json(report));
    } else {
      print(report);
    }
  }
  if (json) std::cout << formats::ascii_json(all) << '\n';
  if (depth == Depth::whole && problems > 0)
    throw Error(ErrorKind::data, paths.front(), std::to_string(problems) + " problems were found",
                "repair or leave out what is named above");
}

void add_prepare(CLI::App& data) {
  auto* command = data.add_subcommand("prepare", "Make tar shards from a folder of pictures or a table of numbers");
  auto arguments = std::make_shared<PrepareArguments>();
  command
      ->add_option("IN", arguments->in, "A folder of pictures (subfolders are the classes), or a table (.csv, .csv.gz)")
      ->required();
  command->add_option("--out", arguments->options.out, "Folder for the shards")->required();
  command->add_option("--shard-samples", arguments->options.shard_samples, "Most samples in one shard")
      ->capture_default_str();
  command->add_option("--validation", arguments->options.validation, "Share of the samples of every class held out")
      ->capture_default_str();
  command->add_option("--shape", arguments->shape, "Table: HEIGHTxWIDTH or HEIGHTxWIDTHx3 of a row's picture");
  command->add_option("--largest", arguments->layout.largest, "Table: the value that becomes white")
      ->capture_default_str();
  command->add_option("--label", arguments->layout.label, "Table: the label's column: last, first, none, or its name")
      ->capture_default_str();
  command->footer(
      "Examples:\n  ditto data prepare photos/ --out shards/ --validation 0.05\n"
      "  ditto data prepare digits.csv.gz --shape 8x8 --largest 16 --validation 0.1 --out data/digits");
  command->callback([arguments] { prepare(*arguments); });
}

void add_look(CLI::App& data, const char* name, const char* help, const char* example, Depth depth) {
  struct Arguments {
    std::vector<std::string> paths;
    bool json = false;
  };
  auto* command = data.add_subcommand(name, help);
  auto arguments = std::make_shared<Arguments>();
  command->add_option("SHARDS", arguments->paths, "Tar files, or folders of them")->required();
  command->add_flag("--json", arguments->json, "Print JSON");
  command->footer(std::string("Example:\n  ") + example);
  command->callback([arguments, depth] { inspect(arguments->paths, depth, arguments->json); });
}

}  // namespace

void add_data_commands(CLI::App& app) {
  auto* data = app.add_subcommand("data", "Make tar shards, and look into them");
  data->require_subcommand(1);
  add_prepare(*data);
  add_look(*data, "inspect", "Say what shards hold, from their headers", "ditto data inspect data/digits",
           Depth::headers);
  add_look(*data, "verify", "Decode everything in shards and name what is damaged", "ditto data verify data/digits",
           Depth::whole);
}

}  // namespace ditto
