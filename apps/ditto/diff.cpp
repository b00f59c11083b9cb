// ditto diff A [B]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include <fmt/format.h>

#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "core/diff/compare.h"
#include "core/diff/record.h"
#include "core/formats/text/json.h"
#include "core/measure/processors.h"
#include "core/process/launch.h"
#include "core/process/rank.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

constexpr int kTheyPart = 1;  // exit code, as diff(1) has it

struct DiffArguments {
  std::string a, b;
  std::vector<std::string> sets, with;
  int64_t steps = 2;
  double tolerance = 0;
  bool json = false;
  std::string record;  // of a rank: where its events go
};

// One of the two runs.
struct Side {
  std::string recipe, called;
  std::vector<std::string> sets;
  int ranks = 1;
  bool is_open = false;  // its micro-batches follow from the number of ranks
};

// Removed at the end, however it comes.
class Scratch {
 public:
  Scratch() {
    if (!mkdtemp(path_.data()))
      throw Error(ErrorKind::config, path_, "cannot be made", "make room there, or set TMPDIR to another folder");
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string folder(const std::string& name) const {
    const auto path = fs::path(path_) / name;
    fs::create_directory(path);
    return path.string();
  }

 private:
  std::string path_ = (fs::temp_directory_path() / "ditto_diff_XXXXXX").string();
};

Side side_of(const std::string& given, const std::vector<std::string>& sets, const std::vector<std::string>& with) {
  Side side{given, given, sets};
  if (fs::is_directory(given)) {
    side.recipe = (fs::path(given) / "run.toml").string();
    if (!fs::exists(side.recipe))
      throw Error(ErrorKind::config, given, "is a folder without a run.toml", "name a recipe, or the folder of a run");
  }
  for (const auto& set : with) {
    side.sets.push_back(set);
    side.called += " --set " + set;
  }
  const auto recipe = Recipe::read(side.recipe, side.sets);
  for (const auto& [axis, degree] : degrees(recipe)) side.ranks *= static_cast<int>(std::max<int64_t>(1, degree));
  side.is_open = recipe.run.micro_batch == 0 && recipe.run.numerics == "fast";
  return side;
}

// In processes of their own, which end when this one does. They write nothing into a run's folder.
int record(const Side& side, const std::string& folder, const DiffArguments& a, const CommandLine& line) {
  std::vector<std::string> arguments{"diff", side.recipe, "--record", folder, "--steps", std::to_string(a.steps)};
  for (const auto& set : side.sets) arguments.insert(arguments.end(), {"--set", set});
  for (const auto& path : line.plugin_path) arguments.insert(arguments.end(), {"--plugin-path", path});
  return start_ranks(line, side.ranks, {}, arguments);
}

int be_rank(const DiffArguments& a, const CommandLine& line) {
  Rank rank(rank_info());
  return rank.run([&] {
    Recipe recipe = Recipe::read(a.a, a.sets);
    rank.open(recipe, line.plugin_path);
    declare_components(recipe, rank.registry());
    check_recipe(recipe, rank.registry());
    rank.meet(recipe);
    diff::record(recipe, rank.registry(), rank.mesh(),
                 {a.record, a.steps, &rank.watch(),
                  [&](const auto& topic, const auto& facts, auto kind) { rank.expect_same(topic, facts, kind); }});
    return 0;
  });
}

std::string text_of(const Side& side) {
  return fmt::format("{}, {} rank{}", shown(side.called), side.ranks, side.ranks == 1 ? "" : "s");
}

std::string text_of(const diff::Comparison& result, const Side& a, const Side& b, const DiffArguments& arguments) {
  auto text = fmt::format("A: {}\nB: {}\n", text_of(a), text_of(b));
  const std::string within = arguments.tolerance > 0 ? fmt::format(" within {:g}", arguments.tolerance) : "";
  if (result.is_same())
    text += fmt::format("the same{}: {} tensors\n", within, result.compared);
  else if (result.first.empty())
    text += fmt::format("they part{}: {} tensors are the same, and {} parameters or averages are of one alone\n",
                        within, result.compared, result.parameters_alone);
  else
    text += fmt::format("they part{}: {} of {} tensors differ, and first\n", within, result.different, result.compared);
  for (const auto& difference : result.first) text += diff::to_text(difference);
  if (result.rounded > 0)
    text += fmt::format("{} gradients are terms on several ranks, and were compared within rounding\n", result.rounded);
  if (result.only_a + result.only_b + result.in_parts > 0)
    text += fmt::format("not compared: {} of A alone, {} of B alone, {} that ranks have in parts\n", result.only_a,
                        result.only_b, result.in_parts);
  if (!result.is_same() && a.is_open && b.is_open && a.ranks != b.ranks)
    text += "run.micro_batch is left open, so the two may have other ones: set it for equal bits\n";
  return text;
}

int compare(const DiffArguments& arguments, const CommandLine& line) {
  if (!arguments.record.empty()) return be_rank(arguments, line);
  if (std::getenv("RANK") || std::getenv("WORLD_SIZE"))
    throw Error(ErrorKind::config, "ditto diff", "starts its ranks itself, and this process is one already",
                "run it without a launcher, or unset RANK and WORLD_SIZE");
  const auto a = side_of(arguments.a, arguments.sets, {});
  const auto b = side_of(arguments.b.empty() ? arguments.a : arguments.b, arguments.sets, arguments.with);
  const int ranks = std::max(a.ranks, b.ranks);
  if (report::said_threads() == 0)  // the same of both
    setenv("OMP_NUM_THREADS", std::to_string(std::max(1, report::usable_processors() / ranks)).c_str(), 1);
  const Scratch scratch;
  const auto folder_a = scratch.folder("a"), folder_b = scratch.folder("b");
  if (const int code = record(a, folder_a, arguments, line)) return code;
  if (const int code = record(b, folder_b, arguments, line)) return code;
  const auto result = diff::compare(diff::recorded(folder_a), diff::recorded(folder_b), arguments.tolerance);
  if (result.is_same() && result.compared == 0)
    throw Error(ErrorKind::config, "ditto diff", "the two have no tensor of one name that could be compared",
                "compare runs of one model");
  std::cout << (arguments.json ? formats::ascii_json(to_json(result)) + "\n" : text_of(result, a, b, arguments))
            << std::flush;
  return result.is_same() ? 0 : kTheyPart;
}

}  // namespace

void add_diff_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand("diff", "Train two runs for a few steps, and say where they part");
  auto a = std::make_shared<DiffArguments>();
  command->add_option("a", a->a, "a recipe, or the folder of a run, whose recipe is taken")->required();
  command->add_option("b", a->b, "another; left out: the same again");
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of both")->allow_extra_args(false);
  command->add_option("--with", a->with, "KEY=VALUE: overrides an option of the second alone")->allow_extra_args(false);
  command->add_option("--steps", a->steps, "from the start, run.steps at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--tolerance", a->tolerance,
                   "tensors are the same that are apart by at most this share of their length; 0: whose bits are")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--json", a->json, "for programs");
  command->add_option("--record", a->record)->group("");
  add_plugin_path(*command, line);
  command->footer(
      "Example: ditto diff configs/digits.toml --with parallel.replicate=2 --set run.micro_batch=16\n"
      "Starts as many ranks as the degrees of [parallel] ask for, and writes into no run's folder.\n"
      "Exit code: 0, or 1 where they part.");
  command->callback([a, &line] { line.exit_code = compare(*a, line); });
}

}  // namespace ditto
