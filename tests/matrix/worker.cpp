#include "tests/matrix/worker.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fmt/format.h>

#include "core/diff/compare.h"
#include "core/mesh/gloo_mesh.h"
#include "core/process/device.h"
#include "core/process/launch.h"
#include "tests/matrix/compare.h"
#include "tests/matrix/counts.h"
#include "tests/matrix/faults.h"

namespace ditto::matrix {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kTimeout{60};
constexpr double kTolerance = 1e-9;  // of --diff, in fp64: rounding is below it, mistakes are above

std::string record_path(const Case& one, const std::string& folder) {
  return (fs::path(folder) / (key_of(one) + ".record")).string();
}

std::string events_path(const Case& one, const std::string& folder) { return record_path(one, folder) + ".events"; }

// What a case is measured against: the same on one rank, and below fp64 that in a wider precision, where routers take
// the same picks.
std::vector<Case> references_of(const Case& one) {
  std::vector<Case> list{one_rank(one)};
  if (one.one_number) list.front().micro_batches = 1;  // which changes no bit
  if (!one.whole && !one.one_number) list.front().micro_batches = micro_batches(one);
  if (one.precision == "fp64" || one.bits || one.counts) return list;
  list.push_back(control_of(list.front()));
  list.back().replay = one.replay;
  return list;
}

void note(const std::string& folder, size_t index, const Outcome& outcome) {
  std::ofstream file(fs::path(folder) / "outcomes", std::ios::app);
  std::string text = outcome.text;
  std::replace(text.begin(), text.end(), '\n', ' ');
  file << index << ' ' << outcome.ok << ' ' << text << '\n';
}

// Once a process, as its most demanding case wants it: half precision may need instructions avoided.
void prepare(const Plan& plan) {
  const auto half = std::find_if(plan.cases.begin(), plan.cases.end(),
                                 [](const Case& one) { return one.precision == "bf16" || one.precision == "fp16"; });
  prepare_process(recipe_of(one_rank(half == plan.cases.end() ? plan.cases.front() : *half)), rank_info());
}

class Rank {
 public:
  Rank(const Plan& plan, std::string folder)
      : plan_(plan), folder_(std::move(folder)), transports_(open()), base_(rank_info(), {}, kTimeout, transports_) {}

  void run(size_t index) {
    const auto began = Clock::now();
    Outcome outcome;
    try {
      outcome = compare_one(index);
    } catch (const Error& error) {
      // A layout that is refused is refused by all ranks alike, before they talk; the others are lost without this one.
      if (error.kind() != ErrorKind::config && error.kind() != ErrorKind::plugin) throw;
      const std::string why = error.what();
      outcome = {!plan_.cases[index].refused.empty() && why.find(plan_.cases[index].refused) != why.npos,
                 "refused: " + why};
    }
    if (base_.rank() != 0) return;
    const std::chrono::duration<double> took = Clock::now() - began;
    note(folder_, index, outcome);
    fmt::print("{} {}  {}  ({:.1f} s)\n", outcome.ok ? "ok  " : "FAIL", title(plan_.cases[index]), outcome.text,
               took.count());
    std::fflush(stdout);
  }

 private:
  // All cases have one device.
  Transports open() {
    prepare(plan_);
    Recipe recipe = recipe_of(one_rank(plan_.cases.front()));
    recipe.run.device = plan_.cases.front().device;
    recipe.run.transport = plan_.transport;
    auto transports = open_device(recipe, registry_, rank_info());
    device_ = recipe.run.device;
    return transports;
  }

  Outcome compare_one(size_t index) {
    Case one = plan_.cases[index];
    one.micro_batches = micro_batches(one);
    const auto recipe = recipe_of(one);
    const bool alone = !recipe.parallel.alone.empty() && base_.world_size() == 1;
    const GlooMesh mesh =
        alone ? GlooMesh(kTimeout, transports_) : GlooMesh(base_, degrees(recipe), "case" + std::to_string(index));
    if (!one.refused.empty()) {
      train({one, mesh, registry_, {}, folder_, device_});
      return {false, "it was not refused"};
    }
    const auto references = references_of(one);
    const auto theirs = load(record_path(references[0], folder_));
    if (plan_.diff) return look_for_parting(one, mesh, references[0]);
    const auto mine = train({one, mesh, registry_, fault(one.fault), folder_, device_, one.replay ? &theirs : nullptr});
    std::string control = one.replay ? ", " + count_flips(one, theirs, mesh) : "";
    if (one.counts) return hold_against_forms(one, mine, theirs, mesh);
    if (plan_.verbose && base_.rank() == 0) print_steps(mine, theirs);
    std::optional<Record> wide;
    if (references.size() > 1) wide = load(record_path(references[1], folder_));
    const auto figures = compare(mine, theirs, wide ? &*wide : nullptr, one, mesh);
    if (mine.peak_bytes > 0) control += fmt::format(", peak {:.2f} MB", 1e-6 * static_cast<double>(mine.peak_bytes));
    const auto why = verdict(figures, one);
    if (!one.fault.empty()) return {!why.empty(), why.empty() ? "the fault was not seen" : "seen: " + why};
    return {why.empty(), (why.empty() ? "" : why + "; ") + to_text(figures, one) + control};
  }

  // As `ditto diff` does, with one rank's run as A.
  Outcome look_for_parting(const Case& one, const Mesh& mesh, const Case& reference) {
    const auto path = [&](int rank) { return (fs::path(folder_) / ("events." + std::to_string(rank))).string(); };
    train({one, mesh, registry_, fault(one.fault), folder_, device_, nullptr, path(mesh.rank())});
    mesh.world().barrier();
    if (mesh.rank() != 0) return {};
    diff::Events theirs, mine;
    theirs.merge(events_path(reference, folder_));
    for (int rank = 0; rank < mesh.world_size(); ++rank) mine.merge(path(rank));
    const auto result = diff::compare(theirs, mine, one.bits ? 0 : kTolerance);
    auto text = fmt::format("{} of {} tensors differ", result.different, result.compared);
    for (const auto& difference : result.first) text += "; " + to_text(difference, "one rank", "the layout");
    const auto place = place_of_fault(one.fault);
    const bool is_named = !result.is_same() && to_text(result.first.front().key).find(place) != std::string::npos;
    if (one.fault.empty()) return {result.is_same() && result.compared > 0, text};
    return {is_named, (is_named ? "named: " : "not named as \"" + place + "\": ") + text};
  }

  // How many of the first two steps' choices rounding tips, where none is replayed.
  std::string count_flips(Case one, const Record& theirs, const Mesh& mesh) {
    one.replay = false;
    one.steps = 2;
    one.save_to.clear();
    const auto mine = train({one, mesh, registry_, {}, folder_, device_, &theirs});
    const auto sum = mesh.world().all_reduce(torch::tensor({mine.flips, mine.choices}, torch::kLong));
    return fmt::format("{} of {} choices tipped", sum[0].item<int64_t>(), sum[1].item<int64_t>());
  }

  Outcome hold_against_forms(const Case& one, const Record& mine, const Record& theirs, const Mesh& mesh) {
    if (plan_.verbose && base_.rank() == 0) fmt::print("{}\n{}", title(one), to_text(mine.traffic));
    std::string all;
    for (const auto& text :
         mesh.world().all_gather_text(differences(mine.traffic, expected_traffic(one, mine, theirs, mesh))))
      if (all.empty()) all = text;
    return {all.empty(), all.empty() ? "every count is the closed form's" : all};
  }

  static void print_steps(const Record& mine, const Record& theirs) {
    for (size_t i = 0; i < mine.losses.size(); ++i)
      fmt::print("  step {:2}: loss {:.17g} one rank {:.17g}, norm {:.17g} one rank {:.17g}\n", i + 1, mine.losses[i],
                 theirs.losses[i], mine.norms[i], theirs.norms[i]);
    for (const auto& [name, gradient] : mine.gradients) {
      const auto& other = theirs.gradients.at(name);
      fmt::print("  gradient {:40} largest {:.3e} difference {:.1e}\n", name, other.abs().max().item<double>(),
                 (gradient - other).abs().max().item<double>());
    }
  }

  const Plan& plan_;
  std::string folder_, device_;
  Registry registry_;
  Transports transports_;
  GlooMesh base_;
};

}  // namespace

std::vector<std::pair<size_t, Outcome>> outcomes(const std::string& folder) {
  std::ifstream file(fs::path(folder) / "outcomes");
  std::vector<std::pair<size_t, Outcome>> list;
  size_t index = 0;
  Outcome outcome;
  while (file >> index >> outcome.ok && std::getline(file >> std::ws, outcome.text)) list.emplace_back(index, outcome);
  return list;
}

void run_references(const Plan& plan, const std::string& folder) {
  prepare(plan);
  const GlooMesh mesh(rank_info(), {}, kTimeout);
  Registry registry;
  for (const auto& one : plan.cases) {
    if (!one.refused.empty()) continue;
    const auto references = references_of(one);
    for (const auto& reference : references) {
      const auto path = record_path(reference, folder);
      const auto events = plan.diff ? events_path(reference, folder) : "";
      if (fs::exists(path) && (!plan.diff || fs::exists(events))) continue;
      try {
        const auto picks = reference.replay ? load(record_path(references.front(), folder)) : Record();
        save(train({reference, mesh, registry, {}, folder, "cpu", reference.replay ? &picks : nullptr, events}), path);
      } catch (const Error& error) {  // its cases have nothing to be measured against; the others have
        fmt::print("one rank, {}: {}\n", title(reference), error.what());
      }
    }
  }
}

void run_cases(const Plan& plan, const std::string& folder, const std::vector<size_t>& which) {
  Rank rank(plan, folder);
  for (const size_t i : which) rank.run(i);
}

}  // namespace ditto::matrix
