// ditto_matrix: trains a tiny model on layouts of ranks and on one rank, and compares every number.
//
// It starts the ranks itself: one set of processes for all layouts of a world size, so that LibTorch starts once. A
// set that ends early (a rank that threw, or waited in vain) fails the case it was at; the rest goes on in a new set.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

#include "core/checkpoint/disk.h"
#include "core/console/streams.h"
#include "core/ranks/local_ranks.h"
#include "tests/matrix/faults.h"
#include "tests/matrix/page.h"
#include "tests/matrix/random_table.h"
#include "tests/matrix/table.h"
#include "tests/matrix/worker.h"

namespace ditto::matrix {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  Case base;
  std::string init = "nonzero", table, page, keep;
  uint64_t seed = 1;
  int64_t cases = 60, every = 1;
  std::vector<std::string> only;
  std::vector<std::string> layouts;
  Plan plan;
  // Of a rank.
  std::string folder;
  bool references = false;
  std::vector<size_t> which;
};

// Of all that trains: this program, and the libraries of the build that it lies in.
std::string build_hash() {
  const auto program = fs::read_symlink("/proc/self/exe");
  std::vector<fs::path> files{program};
  for (const auto& item : fs::recursive_directory_iterator(program.parent_path().parent_path() / "lib"))
    if (item.is_regular_file() && !item.is_symlink()) files.push_back(item.path());
  std::sort(files.begin() + 1, files.end());
  std::string text;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    text += checkpoint::checksum(std::as_bytes(std::span(bytes))) + " " + file.filename().string() + "\n";
  }
  return text;
}

// Runs on one rank, and results. One that has a name stays, and whoever comes back to it goes on.
class Folder {
 public:
  explicit Folder(const std::string& kept)
      : path_(kept.empty() ? (fs::temp_directory_path() / "ditto_matrix_XXXXXX").string() : kept),
        stays_(!kept.empty()) {
    if (stays_ ? !fs::is_directory(path_) && !fs::create_directories(path_) : !mkdtemp(path_.data()))
      throw Error(ErrorKind::config, path_, "cannot be made", "name a folder that can be written");
  }
  ~Folder() {
    if (!stays_) fs::remove_all(path_);
  }
  const std::string& path() const { return path_; }
  // Results are of this program and its plugins, and numbered: of these cases alone.
  void expect(const Plan& plan) const {
    if (!stays_) return;
    std::string titles;
    for (const auto& one : plan.cases) titles += title(one) + "\n";
    expect("build", build_hash(), "another build of Ditto");
    expect("cases", titles, "other cases");
  }

 private:
  void expect(const char* name, const std::string& text, const char* others) const {
    const auto file = fs::path(path_) / name;
    std::ifstream in(file);
    if ((in || fs::exists(fs::path(path_) / "outcomes")) && std::string(std::istreambuf_iterator<char>(in), {}) != text)
      throw Error(ErrorKind::config, path_, std::string("has results of ") + others, "name another folder");
    std::ofstream(file) << text;
  }

  std::string path_;
  bool stays_;
};

void read(CLI::App& app, Arguments& a) {
  app.add_option(
         "--model", a.base.model,
         "dit, dit_text, pixart, uvit, jit, st_dit, latte, nemo_dit, moviegen, dit_moe, mmdit, flux, wan, unet_sd, "
         "imagen_unet or imagen_efficient_unet")
      ->capture_default_str();
  app.add_option("--precision", a.base.precision, "fp64, fp32, bf16 or fp16")->capture_default_str();
  app.add_option("--device", a.base.device, "cpu or cuda, which is measured against one rank on the CPU")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--transport", a.plan.transport, "a plugin that carries the device's tensors; on cuda else nccl");
  app.add_option("--layout", a.layouts, "options of [parallel]: \"tensor=2 sequence=true\"")->allow_extra_args(false);
  app.add_option("--steps", a.base.steps, "")->capture_default_str();
  app.add_option("--micro-batches", a.base.micro_batches, "a step's; 0: 4, or as many as data ranks");
  app.add_option("--batch", a.base.batch, "samples a step")->capture_default_str();
  app.add_option("--optimizer", a.base.optimizer, "")->capture_default_str();
  app.add_option("--set", a.base.sets, "a further option of the recipe, model.depth=2; of every case of a table too")
      ->allow_extra_args(false);
  app.add_option("--init", a.init, "nonzero: no tensor is zero; real: as training starts")
      ->check(CLI::IsMember({"nonzero", "real"}));
  auto names = table_names();
  names.push_back("random");
  app.add_option("--table", a.table, "the cases of a table instead")->check(CLI::IsMember(names));
  app.add_option("--seed", a.seed, "--table random: of the draws")->capture_default_str();
  app.add_option("--cases", a.cases, "--table random: how many")->capture_default_str();
  app.add_option("--only", a.only, "of the table: cases whose line holds all of these")->allow_extra_args(false);
  app.add_option("--every", a.every, "of the table's cases, each one of so many, from the first on")
      ->check(CLI::PositiveNumber);
  app.add_option("--keep", a.keep,
                 "a folder for what is found: with it a table that was cut off goes on, in the same build");
  app.add_option("--write", a.page, "a file for the results, in Markdown; tables of it that are not run stay");
  app.add_flag("--bits", a.base.bits, "ask for identical bits");
  app.add_flag("--counts", a.base.counts, "hold communication against closed forms");
  app.add_flag("--packed", a.base.packed, "each micro-batch is a pack of samples of different lengths");
  app.add_flag("--replay", a.base.replay, "routers take the picks of the run on one rank");
  app.add_flag(
      "--diff", a.plan.diff,
      "in fp64, or with --bits: whether and where a case parts from one rank, as `ditto diff` says it; a fault "
      "must be named");
  app.add_flag("--verbose", a.plan.verbose, "print every step and gradient");
  app.add_option("--fault", a.base.fault, "a mistake to plant")->check(CLI::IsMember(fault_names()));
  app.add_option("--rank-folder", a.folder)->group("");
  app.add_flag("--rank-references", a.references)->group("");
  app.add_option("--rank-cases", a.which)->delimiter(',')->group("");
}

void plan_cases(Arguments& a) {
  if (a.table == "random")
    a.plan.cases = random_cases(a.seed, a.cases);
  else if (!a.table.empty())
    a.plan.cases = table(a.table);
  for (auto& one : a.plan.cases) {
    one.device = a.base.device;
    one.sets.insert(one.sets.end(), a.base.sets.begin(), a.base.sets.end());
  }
  std::erase_if(a.plan.cases, [&](const Case& one) {
    const auto line = title(one);
    return std::any_of(a.only.begin(), a.only.end(), [&](const auto& part) { return line.find(part) == line.npos; });
  });
  std::vector<Case> some;
  for (size_t i = 0; i < a.plan.cases.size(); i += static_cast<size_t>(a.every)) some.push_back(a.plan.cases[i]);
  a.plan.cases = std::move(some);
  a.base.real_init = a.init == "real";
  for (const auto& layout : a.layouts) {
    a.plan.cases.push_back(a.base);
    a.plan.cases.back().layout = layout;
  }
  for (auto& one : a.plan.cases)  // AdamW makes whole steps of gradients that are rounding alone
    if (a.plan.diff && one.optimizer == "adamw") one.sets.push_back("optimizer.eps=1e-3");
}

int run(int argc, char** argv);

int start(int ranks, std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_local_ranks({ranks, arguments, run});
}

std::string joined(const std::vector<size_t>& numbers) {
  std::string text;
  for (const size_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

// These cases, of one world size, in as few sets of processes as possible.
void run_world(const Plan& plan, int ranks, std::vector<size_t> open, const std::string& folder,
               const std::vector<std::string>& arguments) {
  const auto forget_done = [&] {
    std::set<size_t> done;
    for (const auto& [index, outcome] : outcomes(folder)) done.insert(index);
    std::erase_if(open, [&](size_t index) { return done.count(index) > 0; });
  };
  for (forget_done(); !open.empty();) {
    const int code = start(ranks, arguments, {"--rank-folder", folder, "--rank-cases", joined(open)});
    forget_done();
    if (open.empty()) return;
    fmt::print("FAIL {}  the ranks ended with code {}; their messages are above\n", title(plan.cases[open.front()]),
               code);
    open.erase(open.begin());
  }
}

// By world size, what saves checkpoints before what loads them.
std::map<std::pair<bool, int>, std::vector<size_t>> in_order(const Plan& plan) {
  std::map<std::pair<bool, int>, std::vector<size_t>> sets;
  for (size_t i = 0; i < plan.cases.size(); ++i) {
    const auto& one = plan.cases[i];
    sets[{!one.load_from.empty(), world_size(one)}].push_back(i);
  }
  return sets;
}

void write_page(const Arguments& a, const std::string& folder) {
  Outcomes by_title;
  for (const auto& one : a.plan.cases) by_title[title(one)] = {false, "the ranks ended early"};
  for (const auto& [index, outcome] : outcomes(folder)) by_title[title(a.plan.cases[index])] = outcome;
  const bool is_part = a.table == "models" || a.table == "one";
  const bool is_named = !a.table.empty() && a.table != "random";
  std::ifstream in(a.page);
  const std::string before(std::istreambuf_iterator<char>(in), {});
  std::ofstream(a.page) << as_page(is_part ? table("all") : is_named ? table(a.table) : a.plan.cases, by_title, before);
}

int run_all(const Arguments& a, const std::vector<std::string>& arguments) {
  const Folder folder(a.keep);
  folder.expect(a.plan);
  setenv("OMP_NUM_THREADS", "1", 1);  // the same bits, and two cores are enough for sixteen ranks
  setenv("GLOG_minloglevel", "3", 0);
  if (start(1, arguments, {"--rank-folder", folder.path(), "--rank-references"}) != 0) {
    fmt::print("FAIL: the run on one rank did not end well\n");
    return 1;
  }
  for (const auto& [set, which] : in_order(a.plan)) run_world(a.plan, set.second, which, folder.path(), arguments);
  size_t good = 0;
  for (const auto& [index, outcome] : outcomes(folder.path())) good += outcome.ok;
  if (!a.page.empty()) write_page(a, folder.path());
  fmt::print("{} of {} cases are as they should be\n", good, a.plan.cases.size());
  return good == a.plan.cases.size() ? 0 : 1;
}

int run(int argc, char** argv) {
  CLI::App app("Trains a tiny model on layouts of ranks and on one rank, and compares every number.");
  Arguments arguments;
  read(app, arguments);
  CLI11_PARSE(app, argc, argv);
  try {
    plan_cases(arguments);
    if (arguments.plan.cases.empty()) return fmt::print("neither --layout nor --table was given\n"), 2;
    if (arguments.references) return run_references(arguments.plan, arguments.folder), 0;
    if (!arguments.which.empty()) return run_cases(arguments.plan, arguments.folder, arguments.which), 0;
    return run_all(arguments, {argv + 1, argv + argc});
  } catch (const std::exception& error) {
    const char* rank = std::getenv("RANK");
    fmt::print(stderr, "rank {}: {}\n", rank ? rank : "-", error.what());
    const auto* known = dynamic_cast<const Error*>(&error);
    return known ? Error::exit_code(known->kind()) : 1;
  }
}

}  // namespace
}  // namespace ditto::matrix

int main(int count, char** arguments) {
  ditto::report::end_without_libraries();
  return ditto::matrix::run(count, arguments);
}
