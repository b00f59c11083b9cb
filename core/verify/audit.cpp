#include "core/verify/audit.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>

#include "core/receipts/word_sum.h"

namespace ditto {

namespace {

constexpr int64_t kStep = 0, kRepeat = 1;
constexpr int64_t kTries = 3;                   // of a step, until it is what was agreed
constexpr std::uint64_t kDraws = 0x7469647561;  // a series of the seed's own: "audit"

// Those of further runs that decide: a third data rank; of two both again; the only one again.
std::vector<int64_t> shifts_of_votes(int64_t ranks) {
  if (ranks > 2) return {2};
  return ranks == 2 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0};
}

}  // namespace

std::string audit_report(const RunOptions& run, const Mesh& mesh) {
  if (run.audit == 0) return {};
  return fmt::format("audit: {} of the micro-batches are computed again, by {}", run.audit,
                     mesh.data_ranks() > 1 ? "another data rank"
                                           : "the rank itself, as it has no data peer: what is wrong only for a moment "
                                             "is found, what is wrong every time is not");
}

bool is_audited(const RunOptions& run, int64_t step, int64_t accumulation) {
  const auto of_step = splitmix64(static_cast<std::uint64_t>(run.seed) ^ kDraws, static_cast<std::uint64_t>(step));
  const auto draw = splitmix64(of_step, static_cast<std::uint64_t>(accumulation));
  return static_cast<double>(draw >> 11) * 0x1p-53 < run.audit;
}

Audit::Audit(Assembly& assembly, std::function<void(const std::string&)> say)
    : mesh_(assembly.mesh), run_(assembly.recipe.run), say_(std::move(say)), watch_(*assembly.networks) {}

void Audit::run(const StepShares& shares, const StepShares::Step& step, const std::function<void()>& compute,
                const Repeat& repeat) {
  runs_.clear();
  std::vector<int64_t> drawn;
  for (int64_t accumulation = 0; accumulation < step.plan.accumulations; ++accumulation)
    if (is_audited(run_, step.plan.step, accumulation)) drawn.push_back(accumulation);
  if (drawn.empty()) return compute();
  const int64_t ranks = mesh_.data_ranks();
  // Repeats come first: what the step makes then stays where it is.
  for (const int64_t accumulation : drawn)
    compute_again(shares, step, accumulation, ranks > 1 ? 1 : 0, kRepeat, repeat);
  compute_step(shares, step, drawn, kStep, compute);
  auto agreed = digests(kStep);
  const auto repeats = digests(kRepeat);
  repeated_ += static_cast<int64_t>(agreed.size());
  std::vector<Which> differ;
  std::set<int64_t> accumulations;
  for (const auto& [which, parts] : agreed)
    if (repeats.at(which) != parts) differ.push_back(which), accumulations.insert(which.first);
  if (differ.empty()) return;
  differed_ += static_cast<int64_t>(differ.size());

  int64_t number = kRepeat;
  for (const int64_t shift : shifts_of_votes(ranks)) {
    ++number;
    for (const int64_t accumulation : accumulations) compute_again(shares, step, accumulation, shift, number, repeat);
  }
  decide(step.plan.step, differ, agreed);
  // The runs that decided have left no gradient.
  for (int64_t tries = 0; tries < kTries; ++tries) {
    ++number;
    compute_step(shares, step, drawn, number, compute);
    if (digests(number) != agreed) continue;
    say_(fmt::format("audit: step {} is computed again, with the numbers that were agreed on", step.plan.step + 1));
    return;
  }
  stop(step.plan.step, fmt::format("{} times it was computed again, and never came to what was agreed on", kTries));
}

// Nothing of one that there is not.
void Audit::take(const StepShares& shares, const StepShares::Step& step, const Which& which, int64_t number) {
  const auto* places = shares.of(step, which.first, which.second);
  if (!places) return;
  auto& run = runs_.emplace_back(Run{which, number, {}});
  watch_.take(places->list, run.prints);
}

void Audit::compute_step(const StepShares& shares, const StepShares::Step& step, const std::vector<int64_t>& drawn,
                         int64_t number, const std::function<void()>& compute) {
  for (const int64_t accumulation : drawn) take(shares, step, {accumulation, mesh_.data_rank()}, number);
  compute();
  watch_.clear();
}

void Audit::compute_again(const StepShares& shares, const StepShares::Step& step, int64_t accumulation, int64_t shift,
                          int64_t number, const Repeat& repeat) {
  const int owner = static_cast<int>((mesh_.data_rank() + shift) % mesh_.data_ranks());
  take(shares, step, {accumulation, owner}, number);
  repeat(accumulation, owner);
  watch_.clear();
}

std::string Audit::place() const {
  return fmt::format("{} {} {}", mesh_.index(Axis::pipeline), mesh_.index(Axis::context), mesh_.index(Axis::tensor));
}

Audit::Digests Audit::digests(int64_t number) const {
  auto mine = nlohmann::json::array();
  for (const auto& run : runs_)
    if (run.number == number) mine.push_back({run.which, place(), run.prints.digest()});
  Digests all;
  for (const auto& text : mesh_.world().all_gather_text(mine.dump()))
    for (const auto& one : nlohmann::json::parse(text))
      all[one.at(0).get<Which>()][one.at(1).get<std::string>()] = one.at(2).get<std::string>();
  return all;
}

std::map<Audit::Which, std::vector<Computed>> Audit::runs_of_all(const std::vector<Which>& which) const {
  auto mine = nlohmann::json::array();
  for (const auto& run : runs_)
    if (std::find(which.begin(), which.end(), run.which) != which.end())
      mine.push_back({run.which, run.number, mesh_.data_rank(), place(), run.prints});
  std::map<Which, std::map<int64_t, Computed>> all;
  int rank = 0;
  for (const auto& text : mesh_.world().all_gather_text(mine.dump())) {
    for (const auto& one : nlohmann::json::parse(text)) {
      auto& run = all[one.at(0).get<Which>()][one.at(1).get<int64_t>()];
      run.by = one.at(2).get<int>();
      const auto place = one.at(3).get<std::string>();
      run.ranks[place] = rank;
      run.parts[place] = one.at(4).get<Prints>();
    }
    ++rank;
  }
  std::map<Which, std::vector<Computed>> lists;
  for (auto& [of, runs] : all)
    for (auto& [number, run] : runs) lists[of].push_back(std::move(run));
  return lists;
}

void Audit::decide(int64_t step, const std::vector<Which>& which, Digests& agreed) {
  const int ranks = mesh_.data_ranks();
  std::string found;
  bool is_decided = true;
  for (const auto& [of, runs] : runs_of_all(which)) {
    const auto verdict = judge(runs, ranks);
    const auto text = fmt::format("micro-batch {}: {}", of.first * ranks + of.second, verdict.text);
    say_(fmt::format("audit: step {}, {}", step + 1, text));
    found += (found.empty() ? "" : "; ") + text;
    is_decided = is_decided && verdict.right >= 0;
    if (verdict.right < 0) continue;
    for (const auto& [place, prints] : runs[static_cast<size_t>(verdict.right)].parts)
      agreed[of][place] = prints.digest();
  }
  if (!is_decided || run_.audit_policy == "stop") stop(step, found);
}

void Audit::stop(int64_t step, const std::string& found) const {
  throw Error(
      ErrorKind::numeric, fmt::format("step {}, run.audit", step + 1), found,
      std::string("a processor or a memory is not to be trusted: go on without it") +
          (run_.audit_policy == "stop" ? ", or set run.audit_policy = \"redo\" to go on with what others agree on"
                                       : ""));
}

}  // namespace ditto
