// ditto init FOLDER|SHARDS, ditto init --from FILE.yaml
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "apps/ditto/init_from.h"
#include "apps/ditto/prepared.h"
#include "core/config/include.h"
#include "core/console/progress.h"
#include "core/dataset/inspect.h"
#include "core/dataset/picture_folder.h"
#include "core/dataset/prepare.h"
#include "core/doctor/doctor.h"
#include "core/formats/file.h"
#include "core/formats/names.h"
#include "core/formats/output_folder.h"
#include "core/formats/picture/picture.h"
#include "core/formats/text/json.h"
#include "core/plan/first_recipe.h"
#include "core/process/launch.h"
#include "core/process/rank.h"
#include "core/ranks/launch.h"
#include "core/train/validation.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

constexpr int kTrialSteps = 6, kUntimed = 2;              // the first ones fill caches
constexpr double kSecondsAStep = 2, kShareReached = 0.3;  // of the rate of a matrix product, by a small model's step

struct InitArguments {
  std::string from, yaml, out;
  int size = 0;
  Fit fit = Fit::crop;
  bool json = false, splits_as_classes = false;
};

struct Trial {
  double step_s = 0;
  int64_t peak_bytes = 0;
};

bool is_shards(const std::string& path) { return !fs::is_directory(path) || !shards_in(path).empty(); }

// What is neither pictures nor shards has a command of its own, or lies in what is meant.
void refuse_other_things(const std::string& from) {
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw Error(ErrorKind::config, from, what, remedy);
  };
  const fs::path path(from);
  if (fs::is_directory(path)) {  // sheets of samples are pictures too
    if (fs::exists(path / kRunRecipe))
      refuse("is the folder of a run, which has a recipe", "go on with it: `ditto train " + shown(from) + "`");
    return;
  }
  if (path.extension() == ".toml") refuse("is a recipe already", "train it with `ditto train " + shown(from) + "`");
  const auto file = formats::RandomFile::open(from, ErrorKind::config);
  constexpr std::uint64_t kFirstBytes = 64;  // tell a format
  if (formats::sniff_picture(file->read(0, std::min(file->size(), kFirstBytes))) != formats::PictureFormat::unknown)
    refuse("is a picture", "name the folder that it lies in, with all that is to be learned from");
  if (path.extension() != ".tar")
    refuse("is no .tar file", "name a folder of pictures, or shards; of a table `ditto data prepare` makes some");
}

// A name that a folder of runs, a file and a shell take as it is.
std::string plain_name(const fs::path& path) {
  auto name = fs::absolute(path).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  std::string text = fs::is_regular_file(name) ? name.stem().string() : name.filename().string();
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
  return text.empty() ? "pictures" : text;
}

// Height and width as the file's header says them; nothing where it cannot be read, which prepare says.
std::optional<std::pair<int, int>> sides_of_picture(const fs::path& path) {
  try {
    const auto bytes = formats::read_file(path.string(), ErrorKind::data, formats::limits::kMemberBytes);
    const auto size = formats::picture_size(std::as_bytes(std::span(bytes)), path.string());
    return std::pair(size.height, size.width);
  } catch (const Error&) {
    return {};
  }
}

// The side that pictures are brought to: small ones that are all alike keep theirs.
int side_for(const std::vector<fs::path>& pictures) {
  constexpr size_t kLooked = 200;
  std::vector<int> sides;
  bool alike = true;
  const auto looked = std::min(kLooked, pictures.size());
  for (size_t i = 0; i < looked; ++i) {
    const auto size = sides_of_picture(pictures[i * pictures.size() / looked]);
    if (!size) continue;
    sides.push_back(std::min(size->first, size->second));
    alike = alike && size->first == size->second && sides.back() == sides.front();
  }
  if (sides.empty()) return 0;
  std::nth_element(sides.begin(), sides.begin() + static_cast<std::ptrdiff_t>(sides.size() / 2), sides.end());
  const int side = sides[sides.size() / 2];
  return alike && side <= kFirstSide ? 0 : side >= kFirstSide ? kFirstSide : std::max(4, side / 4 * 4);
}

// A twentieth, and at least a sample for each of the levels that a validation sees; of fewer than four times as many
// none. Where it is near, those that cannot be read do not count.
double share_held_out(const std::vector<fs::path>& pictures) {
  constexpr double kShare = 0.05;
  constexpr size_t kFewest = 4 * kStrata, kPlenty = 400;
  auto many = pictures.size();
  if (many < kPlenty)
    many = static_cast<size_t>(std::count_if(pictures.begin(), pictures.end(),
                                             [](const auto& path) { return sides_of_picture(path).has_value(); }));
  return many < kFewest ? 0 : std::max(kShare, static_cast<double>(kStrata) / static_cast<double>(many));
}

std::string prepared(const InitArguments& arguments, const std::string& recipe) {
  const auto found = pictures_under(arguments.from).pictures;
  PrepareOptions options;
  options.out = (fs::path(recipe).parent_path() / (fs::path(recipe).stem().string() + "_shards")).string();
  options.validation = share_held_out(found);
  options.least_held_out = kStrata;
  FolderOptions pictures;
  pictures.size = arguments.size > 0 ? arguments.size : side_for(found);
  pictures.fit = arguments.fit;
  pictures.skip_bad = true;
  pictures.splits_as_classes = arguments.splits_as_classes;
  report::ProgressOptions style;
  style.unit = "picture";
  style.rate = "/s";
  std::unique_ptr<report::Progress> line;
  options.progress = [&](int64_t done, int64_t all) {
    if (!line) line = std::make_unique<report::Progress>(all, style);
    report::ProgressState state;
    state.done = done;
    line->update(state);
  };
  const auto made = prepare_folder(arguments.from, options, pictures);
  if (line) line->finish();
  print_prepared(made, options.out, std::cerr);
  std::cerr << fmt::format("{}: {} to train on, {} held out; {}, each named in report.jsonl\n", shown(options.out),
                           formats::counted(static_cast<size_t>(made.train), "picture"), made.validation,
                           formats::counted(made.bad.size(), "bad file"));
  if (options.validation == 0)
    std::cerr << "note: of fewer than 32 pictures none is held out, and nothing is validated\n";
  return options.out;
}

// Operations a second of a matrix product.
double matmul_rate() {
  constexpr int64_t kSide = 768;
  const auto a = at::rand({kSide, kSide}), b = at::rand({kSide, kSide});
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto began = std::chrono::steady_clock::now();
    at::mm(a, b);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    best = std::max(best, 2.0 * kSide * kSide * kSide / took.count());
  }
  return best;
}

int64_t usable_bytes() {
  report::Diagnosis machine;
  report::diagnose_processor(machine);
  const auto& memory = machine.facts["memory"];
  const int64_t available = memory["available_bytes"], limit = memory.value("limit_bytes", available);
  return std::min(available, limit) / 2;
}

// Resident bytes at the peak of a process, so far: 0 once it has ended.
int64_t peak_of(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::atoll(line.c_str() + 6) * 1024;
  return 0;
}

// Trains a few steps in a process of its own, with a validation, a sheet and a checkpoint at the end.
Trial try_recipe(const std::string& recipe, const CommandLine& line) {
  std::string folder = (fs::temp_directory_path() / "ditto-init-XXXXXX").string();
  if (!::mkdtemp(folder.data())) throw Error(ErrorKind::config, folder, "cannot be made", "set TMPDIR");
  struct Remove {
    std::string path;
    ~Remove() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  } const remove{folder};
  const auto steps = std::to_string(kTrialSteps), said = folder + "/said";
  std::vector<std::string> words{"ditto",
                                 "train",
                                 recipe,
                                 "--resume",
                                 "never",
                                 "--set",
                                 "run.steps=" + steps,
                                 "--set",
                                 "run.output=" + nlohmann::json(folder + "/run").dump(),
                                 "--set",
                                 "log.progress=none",
                                 "--set",
                                 "validate.grid_every=" + steps,
                                 "--set",
                                 "sampler.steps=2"};  // all take the same memory
  if (Recipe::read(recipe).validate.every > 0) words.insert(words.end(), {"--set", "validate.every=" + steps});
  for (const auto& path : line.plugin_path) words.insert(words.end(), {"--plugin-path", path});
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::signal(SIGCHLD, SIG_DFL);
  const pid_t process = ::fork();
  if (process == 0) {
    const int file = ::open(said.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  if (process < 0) throw Error(ErrorKind::config, "ditto init", "no process could be started to measure with");
  Trial trial;
  int state = 0;
  rusage its{}, own{};
  while (::wait4(process, &state, WNOHANG, &its) == 0) {
    trial.peak_bytes = std::max(trial.peak_bytes, peak_of(process));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // What the system says at the end misses nothing, but before it was another program the process was a copy of this.
  ::getrusage(RUSAGE_SELF, &own);
  if (its.ru_maxrss > own.ru_maxrss) trial.peak_bytes = std::max<int64_t>(trial.peak_bytes, its.ru_maxrss * 1024);
  if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
    throw Error(ErrorKind::config, recipe, "does not train here: " + formats::read_file(said, ErrorKind::data),
                "correct it, and train it with `ditto train`");
  std::ifstream metrics(folder + "/run/metrics.jsonl");
  std::vector<double> seconds;
  for (std::string text; std::getline(metrics, text);)
    seconds.push_back(formats::parse_json(text, "metrics.jsonl", ErrorKind::data).value("step_s", 0.0));
  if (seconds.size() > kUntimed) seconds.erase(seconds.begin(), seconds.begin() + kUntimed);
  std::sort(seconds.begin(), seconds.end());
  trial.step_s = seconds.empty() ? 0 : seconds[seconds.size() / 2];
  return trial;
}

void write_text(const std::string& path, const std::string& text) {
  formats::write_file(path, std::as_bytes(std::span(text)), ErrorKind::config);
}

// Of one rank a checkpoint holds what the dry run counts of these.
std::string disk_of_checkpoints(const DryRun& cost, const Recipe& recipe) {
  int64_t one = 0;
  for (const char* share : {"parameters", "optimizer", "ema"})
    if (const auto found = cost.first.bytes.find(share); found != cost.first.bytes.end()) one += found->second;
  const auto kept = recipe.checkpoint.most_kept(recipe.run.steps);
  return fmt::format(
      "a checkpoint takes {} of disk, {}", report::bytes_text(one),
      kept == 1 ? "and one is kept" : fmt::format("the {} that are kept {}", kept, report::bytes_text(kept * one)));
}

int init(const InitArguments& arguments, const CommandLine& line) {
  expect_one_rank("ditto init");
  if (!arguments.yaml.empty() && arguments.fit != Fit::crop)
    throw Error(ErrorKind::config, "--fit", "is for a folder of pictures, and --from names a YAML file",
                "leave it out");
  if (!arguments.yaml.empty()) return init_from(arguments.yaml, arguments.out, line.plugin_path);
  if (arguments.from.empty())
    throw Error(ErrorKind::config, "ditto init", "is told of no pictures",
                "name a folder of them, or shards; or --from FILE.yaml");
  formats::require_there(arguments.from, "name a folder of pictures, or shards");
  refuse_other_things(arguments.from);
  const auto name = plain_name(arguments.from);
  const std::string out = arguments.out.empty() ? name + ".toml" : arguments.out;
  formats::require_output_file(out, "--out");
  if (fs::exists(out)) throw Error(ErrorKind::config, out, "is there already", "choose another name with --out");
  const bool has_shards = is_shards(arguments.from);
  if (has_shards && arguments.size > 0)
    throw Error(ErrorKind::config, "--size", "is for a folder of pictures, but " + arguments.from + " holds shards",
                "change data.size in the recipe");
  if (has_shards && arguments.fit != Fit::crop)
    throw Error(ErrorKind::config, "--fit", "is for a folder of pictures, but " + arguments.from + " holds shards",
                "leave it out: data.resize brings pictures of shards to their size");
  if (has_shards && arguments.splits_as_classes)
    throw Error(ErrorKind::config, "--splits-as-classes",
                "is for a folder of pictures, but " + arguments.from + " holds shards", "leave it out");
  const auto shards = has_shards ? arguments.from : prepared(arguments, out);
  const auto home = fs::absolute(out).parent_path().string();
  const auto facts = shard_facts(shards, home, std::max<int64_t>(arguments.size, kFirstSide));
  for (const auto& note : facts.notes) std::cerr << "note: " << shown(note, kSentenceShown) << '\n';

  Rank rank{RankInfo{}};
  bool opened = false;
  return rank.run([&] {
    const auto count = [&](const std::string& text) {
      write_text(out, text);
      Recipe recipe = Recipe::read(out);
      if (!std::exchange(opened, true)) rank.open(recipe, line.plugin_path);
      declare_components(recipe, rank.registry());
      return dry_run(recipe, rank.registry(), 1, 1);
    };
    const double operations = kSecondsAStep * kShareReached * matmul_rate();
    const auto recipe = fit_recipe(facts, name, usable_bytes(), operations, count);
    const auto text = to_text(recipe, facts);
    const auto cost = count(text);
    const auto trial = try_recipe(out, line);
    const auto data = fmt::format(
        "{} to train on, {} held out, {} x {} {}, {}", formats::counted(static_cast<size_t>(facts.samples), "picture"),
        facts.held_out, facts.height, facts.width, facts.channels == 1 ? "grey" : "colour",
        facts.classes == 0 ? "without classes"
                           : std::to_string(facts.classes) + (facts.classes == 1 ? " class" : " classes"));
    const auto price =
        fmt::format("{:.3g} s a step, {} of memory at the peak, {} for {} steps", trial.step_s,
                    report::bytes_text(trial.peak_bytes),
                    report::duration_text(trial.step_s * static_cast<double>(recipe.steps)), recipe.steps);
    const auto disk = disk_of_checkpoints(cost, Recipe::read(out));
    const auto model = fmt::format("dit with {} learned numbers, batch {}", cost.parameters, recipe.batch);
    write_text(
        out, fmt::format("# Made by `ditto init`: {}.\n# {}. Measured on this machine over {} steps: {}.\n# {}.\n\n{}",
                         data, model, kTrialSteps, price, disk, text));
    if (arguments.json) {
      const nlohmann::ordered_json json{{"recipe", out},
                                        {"shards", shards},
                                        {"samples", facts.samples},
                                        {"parameters", cost.parameters},
                                        {"batch", recipe.batch},
                                        {"steps", recipe.steps},
                                        {"step_s", trial.step_s},
                                        {"peak_bytes", trial.peak_bytes}};
      std::cout << formats::ascii_json(json) << '\n';
    } else {
      std::cout << data << '\n' << model << '\n' << price << '\n' << disk << '\n';
      if (facts.captions > 0)
        std::cout
            << "the captions are not learned from: dit takes classes; docs/add_a_model.md and dit_text take texts\n";
      std::cout << "next: ditto train " << shown(out) << '\n';
    }
    return 0;
  });
}

}  // namespace

void add_init_command(CLI::App& app, CommandLine& line) {
  auto* command =
      app.add_subcommand("init", "Write a recipe that fits pictures and this machine, and say what a step takes");
  auto arguments = std::make_shared<InitArguments>();
  auto* pictures = command->add_option(
      "FROM", arguments->from,
      "A folder of pictures (subfolders are the classes), which are put into shards beside the recipe; or shards");
  auto* yaml = command->add_option("--from", arguments->yaml,
                                   "A YAML file that NeMo's Imagen is trained by: its recipe, and no measurement");
  yaml->excludes(pictures);
  command->add_option("--out", arguments->out, "The recipe; default: FROM's name and .toml, here");
  command
      ->add_option("--size", arguments->size,
                   "Of a folder: the side that pictures are brought to; default: theirs, at most 64")
      ->check(CLI::Range(4, 1024))
      ->excludes(yaml);
  add_fit_option(*command, arguments->fit);
  command
      ->add_flag("--splits-as-classes", arguments->splits_as_classes,
                 "Of a folder: take folders called train, val, test … as classes, and learn from all of them")
      ->excludes(yaml);
  command->add_flag("--json", arguments->json, "Print JSON")->excludes(yaml);
  add_plugin_path(*command, line);
  command->footer("Example:\n  ditto init photos/ --out photos.toml && ditto train photos.toml");
  command->callback([arguments, &line] { line.exit_code = init(*arguments, line); });
}

}  // namespace ditto
