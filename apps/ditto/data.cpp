// ditto data prepare | inspect | verify | split
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include <ditto/error.h>
#include <ditto/text.h>
#include <ditto/video_decoder.h>

#include "apps/ditto/commands.h"
#include "apps/ditto/prepared.h"
#include "core/console/progress.h"
#include "core/dataset/check_data.h"
#include "core/dataset/inspect.h"
#include "core/dataset/prepare.h"
#include "core/dataset/split.h"
#include "core/formats/file.h"
#include "core/formats/names.h"
#include "core/formats/output_folder.h"
#include "core/formats/text/json.h"
#include "core/plugin/guard.h"
#include "core/plugin/registry.h"
#include "core/plugin/trial.h"
#include "core/ranks/launch.h"

namespace ditto {

namespace {

constexpr int64_t kSheetPictures = 64;

struct PrepareArguments {
  std::string in, shape;
  PrepareOptions options;
  FolderOptions pictures;
  TableLayout layout;
  std::string progress = "auto";
};

std::function<void(int64_t, int64_t)> progress_line(const std::string& style) {
  report::ProgressOptions options;
  options.style = report::progress_style(style);
  options.unit = "sample";
  options.rate = "/s";
  return [options, line = std::shared_ptr<report::Progress>()](int64_t done, int64_t all) mutable {
    if (!line) line = std::make_shared<report::Progress>(all, options);
    report::ProgressState state;
    state.done = done;
    line->update(state);
    if (done == all) line->finish();
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

std::string learned_and_held_out(const Prepared& made) {
  return formats::counted(static_cast<size_t>(made.train), "sample") + " to train on, " +
         std::to_string(made.validation) + " held out";
}

void prepare(PrepareArguments& arguments) {
  expect_one_rank("ditto data prepare");
  arguments.options.progress = progress_line(arguments.progress);
  Prepared made;
  if (std::filesystem::is_directory(arguments.in)) {
    if (!arguments.shape.empty())
      throw Error(ErrorKind::config, "--shape", "is for tables, but " + arguments.in + " is a folder");
    if (arguments.pictures.fit != Fit::crop && arguments.pictures.size == 0)
      throw Error(ErrorKind::config, "--fit",
                  "says how pictures are made square, and without --size they stay as they are",
                  "add --size N, or leave it out");
    arguments.pictures.tell_bad = [](const auto& bad) {
      print_bad(bad, "which --skip-bad names in report.jsonl", std::cerr);
    };
    made = prepare_folder(arguments.in, arguments.options, arguments.pictures);
  } else {
    const auto& pictures = arguments.pictures;
    if (pictures.size > 0 || pictures.fit != Fit::crop || pictures.skip_bad || pictures.splits_as_classes ||
        !pictures.captions.empty())
      throw Error(ErrorKind::config, "--size, --fit, --skip-bad, --splits-as-classes, --captions",
                  "are for folders, but " + arguments.in + " is none");
    if (arguments.shape.empty()) {
      formats::require_there(arguments.in, "name a folder of pictures, or a table");
      throw Error(ErrorKind::config, arguments.in, "is taken as a table, but --shape is not given",
                  "add --shape HEIGHTxWIDTH, or name a folder of pictures");
    }
    read_shape(arguments.shape, arguments.layout);
    made = prepare_table(arguments.in, arguments.layout, arguments.options);
  }
  for (const auto& shard : made.shards) std::cout << shown(shard) << '\n';
  print_prepared(made, arguments.options.out, std::cout);
  std::cout << learned_and_held_out(made);
  if (!made.classes.empty())
    std::cout << ", " << made.classes.size() << (made.classes.size() == 1 ? " class" : " classes");
  if (!made.bad.empty()) std::cout << ", " << formats::counted(made.bad.size(), "bad file") << " skipped";
  std::cout << '\n';
}

struct LookArguments {
  std::vector<std::string> paths, sets;
  std::string sheet;
  bool json = false, names = false;
};

nlohmann::json to_json(const ShardReport& report, const LookArguments& arguments) {
  nlohmann::json labels = nlohmann::json::object(), classes = nlohmann::json::object();
  for (const auto& [label, count] : report.labels) labels[std::to_string(label)] = count;
  for (const auto& [label, name] : report.classes) classes[std::to_string(label)] = name;
  nlohmann::json json{{"path", report.path},         {"bytes", report.bytes},
                      {"samples", report.samples},   {"members", report.members},
                      {"pictures", report.sizes},    {"aspects", report.aspects},
                      {"tensors", report.tensors},   {"videos", report.videos},
                      {"others", report.others},     {"labels", labels},
                      {"classes", classes},          {"captions", report.captions},
                      {"problems", report.problems}, {"unread", report.unread}};
  if (arguments.names) {
    json["files"] = nlohmann::json::object();
    for (const auto& [key, file] : report.files) json["files"][key] = file;
  }
  return json;
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

// A bar for each, in the order of their proportions.
void print_aspects(const std::map<std::string, std::int64_t>& aspects, std::int64_t samples) {
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [aspect, count] : aspects) {
    const auto colon = aspect.find(':');
    order.emplace_back(std::stod(aspect.substr(0, colon)) / std::stod(aspect.substr(colon + 1)), aspect);
  }
  std::sort(order.begin(), order.end());
  if (!order.empty()) std::cout << "  nearest aspect, width:height:\n";
  constexpr std::int64_t kLongest = 40;
  for (const auto& [ratio, aspect] : order) {
    const auto count = aspects.at(aspect);
    const auto length = static_cast<size_t>((count * kLongest + samples - 1) / std::max<std::int64_t>(samples, 1));
    std::cout << "  " << std::string(8 - std::min<size_t>(aspect.size(), 8), ' ') << aspect << ' '
              << std::string(length, '#') << ' ' << count << '\n';
  }
}

void print_problems(const std::vector<std::string>& problems, std::ostream& out) {
  for (const auto& problem : problems) out << "  problem: " << shown(problem, kSentenceShown) << '\n';
}

void print(const ShardReport& report, const LookArguments& arguments) {
  std::cout << shown(report.path) << ": " << formats::counted(static_cast<size_t>(report.samples), "sample") << ", "
            << report.bytes << " bytes\n";
  print_counts("members", report.members);
  print_counts("files that are no part of a sample", report.others);
  print_counts("members that are not read", report.unread);
  print_counts("pictures, height x width x channels", report.sizes);
  print_counts("latents and embedded texts", report.tensors);
  print_counts("videos, frames x height x width", report.videos);
  print_aspects(report.aspects, report.samples);
  std::map<std::string, std::int64_t> labels;
  for (const auto& [label, name] : report.classes)
    if (const auto it = report.labels.find(label); it != report.labels.end())
      labels[std::to_string(label) + " " + name] = it->second;
  labels.size() == report.labels.size() ? print_counts("classes", labels) : print_counts("labels", report.labels);
  if (report.captions > 0) std::cout << "  captions: " << report.captions << '\n';
  if (arguments.names)
    for (const auto& [key, file] : report.files) std::cout << "  " << shown(key) << ": " << shown(file) << '\n';
  print_problems(report.problems, std::cout);
}

bool is_recipe(const std::string& path) { return std::filesystem::path(path).extension() == ".toml"; }

// Of shards alone nobody says which: the only one there is.
std::shared_ptr<VideoDecoder> open_decoder(Registry& registry) {
  const std::string where = "videos in shards";
  std::set<std::string> ids;
  for (const auto& file : registry.files())
    if (file.kind == VideoDecoder::kKind) ids.insert(file.id);
  if (ids.empty())
    throw Error(ErrorKind::plugin, where, "no plugin decodes them",
                "build one, or name its folder by --plugin-path; see `ditto plugins list`");
  if (ids.size() > 1)
    throw Error(ErrorKind::plugin, where, fmt::format("several plugins decode them: {}", fmt::join(ids, ", ")),
                "verify a recipe that reads them, whose data.decoder names one");
  const auto& id = *ids.begin();
  OptionReader reader({"decoder", id, {}});
  return guarded(plugin_name(VideoDecoder::kKind, id) + ", being made",
                 [&] { return registry.factory<VideoDecoder>(id, where).make(reader, {}); });
}

// Of a recipe's data; how many problems there are.
size_t verify_recipe(const std::string& path, const LookArguments& arguments, Registry& registry, nlohmann::json& all) {
  auto recipe = Recipe::read(path, arguments.sets);
  size_t problems = 0;
  for (const auto& check : check_data(recipe, registry)) {
    problems += check.problems.size();
    if (arguments.json) {
      all.push_back({{"path", path},
                     {"part", check.part},
                     {"samples", check.samples},
                     {"contents", check.contents},
                     {"problems", check.problems}});
      continue;
    }
    std::cout << shown(path) << ": " << check.samples << " samples " << check.part << ", contents " << check.contents
              << '\n';
    print_problems(check.problems, std::cout);
  }
  return problems;
}

// A picture that is there is taken for an earlier sheet; anything else was named by mistake.
void require_sheet(const std::string& path) {
  if (path.empty()) return;
  formats::require_output_file(path, "--sheet");
  if (!std::filesystem::exists(path)) return;
  const auto file = formats::RandomFile::open(path, ErrorKind::config);
  constexpr std::uint64_t kFirstBytes = 64;  // tell a format
  if (file->size() > 0 &&
      formats::sniff_picture(file->read(0, std::min(file->size(), kFirstBytes))) != formats::PictureFormat::png)
    throw Error(ErrorKind::config, "--sheet " + path, "is there already, and is no PNG", "choose another name");
}

void inspect(const LookArguments& arguments, Depth depth, const CommandLine& line) {
  require_sheet(arguments.sheet);
  auto all = nlohmann::json::array();
  size_t problems = 0;
  std::optional<Registry> registry;  // of who verifies a recipe, or videos
  const auto plugins = [&]() -> Registry& {
    return registry ? *registry : registry.emplace(plugin_folders(line.plugin_path), try_new_plugins);
  };
  std::shared_ptr<VideoDecoder> decoder;
  const auto decode = [&] { return decoder = decoder ? decoder : open_decoder(plugins()); };
  auto paths = arguments.paths;
  if (depth == Depth::whole) {
    for (const auto& path : paths)
      if (is_recipe(path)) problems += verify_recipe(path, arguments, plugins(), all);
    std::erase_if(paths, is_recipe);
  }
  const auto shards = paths.empty() ? paths : shards_named(paths);
  for (const auto& path : shards) {
    const auto report = inspect_shard(path, depth, decode);
    problems += report.problems.size();
    if (arguments.json) {
      all.push_back(to_json(report, arguments));
    } else {
      print(report, arguments);
    }
  }
  if (arguments.json) std::cout << formats::ascii_json(all) << '\n';
  if (!arguments.sheet.empty()) formats::write_png(arguments.sheet, contact_sheet(shards, kSheetPictures));
  if (depth == Depth::headers) return;
  for (const auto& path : paths)
    if (std::filesystem::is_directory(path)) {
      const auto said = check_set(path);
      problems += said.size();
      print_problems(said, arguments.json ? std::cerr : std::cout);
    }
  if (problems > 0)
    throw Error(ErrorKind::data, arguments.paths.front(),
                formats::counted(problems, "problem") + (problems == 1 ? " was found" : " were found"),
                "repair or leave out what is named above");
}

struct SplitArguments {
  std::vector<std::string> paths;
  PrepareOptions options;
  std::uint64_t seed = 0;
  std::string progress = "auto";
};

void split(SplitArguments& arguments) {
  expect_one_rank("ditto data split");
  arguments.options.progress = progress_line(arguments.progress);
  const auto shards = shards_named(arguments.paths);
  const auto made = split_shards(shards, arguments.options, arguments.seed);
  for (const auto& shard : made.shards) std::cout << shown(shard) << '\n';
  for (const auto& reason : made.left_out) std::cout << "left out: " << shown(reason, kSentenceShown) << '\n';
  for (const auto& shard : shards)
    if (formats::part_of_set(std::filesystem::path(shard).filename().string()) == formats::SetPart::held_out)
      std::cout << "note: " << shown(shard) << " was held out by its name: its samples are dealt out with the others\n";
  std::cout << learned_and_held_out(made) << '\n';
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
  command
      ->add_option("--size", arguments->pictures.size,
                   "Folder: make every picture a square of this side: shrunk to cover it, and the middle cut out")
      ->check(CLI::PositiveNumber);
  add_fit_option(*command, arguments->pictures.fit);
  command->add_flag("--skip-bad", arguments->pictures.skip_bad,
                    "Folder: go on without what does not decode, and name it in report.jsonl");
  command->add_flag("--splits-as-classes", arguments->pictures.splits_as_classes,
                    "Folder: take folders called train, val, test … as classes, and learn from all of them");
  command->add_option(
      "--captions", arguments->pictures.captions,
      "Folder: a table, {\"file_name\": …, \"text\": …} a line or such columns of a CSV (metadata.jsonl and "
      "metadata.csv are found by themselves)");
  command
      ->add_option("--threads", arguments->pictures.threads,
                   "Folder: threads that decode; 0: one for each processor that may be used")
      ->check(CLI::Range(0, 1024));
  command->add_option("--progress", arguments->progress, "auto, bar, plain or none")->capture_default_str();
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

void add_look(CLI::App& data, CommandLine& line, const char* name, const char* help, const char* example, Depth depth) {
  auto* command = data.add_subcommand(name, help);
  auto arguments = std::make_shared<LookArguments>();
  command
      ->add_option("SHARDS", arguments->paths,
                   depth == Depth::headers
                       ? "Tar files, or folders of them"
                       : "Tar files, folders of them, or recipes (.toml), whose samples are read as a run reads them")
      ->required();
  command->add_flag("--json", arguments->json, "Print JSON");
  if (depth == Depth::headers) {
    command->add_flag("--names", arguments->names, "Say of which file each sample was made");
    command->add_option("--sheet", arguments->sheet, "Write a contact sheet of 64 pictures to this PNG file");
  } else {
    command->add_option("--set", arguments->sets, "KEY=VALUE: overrides an option of a recipe")
        ->allow_extra_args(false);
    add_plugin_path(*command, line);
  }
  command->footer(std::string("Example:\n  ") + example);
  command->callback([arguments, depth, &line] { inspect(*arguments, depth, line); });
}

void add_split(CLI::App& data) {
  auto* command = data.add_subcommand("split", "Deal the samples of shards out anew: some to train on, some held out");
  auto arguments = std::make_shared<SplitArguments>();
  command->add_option("SHARDS", arguments->paths, "Tar files, or folders of them")->required();
  command->add_option("--out", arguments->options.out, "Folder for the shards")->required();
  command->add_option("--validation", arguments->options.validation, "Share of the samples of every class held out")
      ->required();
  command->add_option("--seed", arguments->seed, "Chooses which")->capture_default_str();
  command->add_option("--shard-samples", arguments->options.shard_samples, "Most samples in one shard")
      ->capture_default_str();
  command->add_option("--progress", arguments->progress, "auto, bar, plain or none")->capture_default_str();
  command->footer("Example:\n  ditto data split shards/ --validation 0.05 --out split/");
  command->callback([arguments] { split(*arguments); });
}

}  // namespace

void add_data_commands(CLI::App& app, CommandLine& line) {
  auto* data = app.add_subcommand("data", "Make tar shards, and look into them");
  data->require_subcommand(1);
  add_prepare(*data);
  add_look(*data, line, "inspect", "Say what shards hold, from their headers", "ditto data inspect data/digits",
           Depth::headers);
  add_look(
      *data, line, "verify",
      "Decode everything in shards, or a recipe's data, hold sums and indices against it, and name what is damaged",
      "ditto data verify data/digits", Depth::whole);
  add_split(*data);
}

}  // namespace ditto
