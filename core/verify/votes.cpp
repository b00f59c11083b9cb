#include "core/verify/votes.h"

#include <algorithm>
#include <optional>
#include <set>

namespace ditto {

namespace {

std::string named(const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t i = 0;
  for (const int rank : ranks)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(rank), ++i;
  return text;
}

std::set<int> ranks_of(const Computed& run) {
  std::set<int> ranks;
  for (const auto& [place, rank] : run.ranks) ranks.insert(rank);
  return ranks;
}

// Whether enough of them came to what this one came to.
bool is_agreed(const std::vector<Computed>& runs, const Computed& one, int peers) {
  std::set<int> by;
  int64_t times = 0;
  for (const auto& other : runs)
    if (other.parts == one.parts) by.insert(other.by), ++times;
  return peers > 1 ? by.size() > 1 : times > 1;
}

// Where a run first parts from the right one, and who parts there: what ranks send one another carries on what one of
// them did.
struct Fault {
  int64_t order = 0;
  std::string what;
  std::set<int> ranks;
};

std::optional<Fault> fault_of(const Computed& run, const Computed& right) {
  std::optional<Fault> first;
  for (const auto& [place, prints] : right.parts) {
    const auto theirs = run.parts.find(place);
    if (theirs == run.parts.end()) continue;
    const auto* differs = prints.first_difference(theirs->second);
    if (!differs || (first && differs->order > first->order)) continue;
    if (!first || differs->order < first->order) first = Fault{differs->order, differs->what, {}};
    first->ranks.insert(run.ranks.at(place));
  }
  return first;
}

std::string unknown(const std::vector<Computed>& runs) {
  std::set<int> ranks;
  for (const auto& run : runs) ranks.merge(ranks_of(run));
  std::optional<Fault> fault;
  for (size_t i = 1; i < runs.size() && !fault; ++i) fault = fault_of(runs[i], runs[0]);
  return named(ranks) + " came to different numbers in " + std::to_string(runs.size()) +
         " runs, and no two agree against the others" + (fault ? ", first in " + fault->what : "");
}

}  // namespace

Verdict judge(const std::vector<Computed>& runs, int peers) {
  std::optional<size_t> right;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!is_agreed(runs, runs[i], peers)) continue;
    if (right && !(runs[i].parts == runs[*right].parts)) return {-1, unknown(runs)};
    if (!right) right = i;
  }
  if (!right) return {-1, unknown(runs)};
  Verdict verdict{static_cast<int64_t>(*right), {}};
  std::set<int> agreed;
  for (const auto& run : runs)
    if (run.parts == runs[*right].parts) agreed.merge(ranks_of(run));
  for (const auto& run : runs) {
    const auto fault = fault_of(run, runs[*right]);
    if (!fault) continue;
    verdict.text += (verdict.text.empty() ? "" : "; ") + named(fault->ranks) + " made other numbers than " +
                    (peers == 1 ? "in two more runs" : named(agreed) + " agree on") + ", first in " + fault->what;
  }
  return verdict;
}

}  // namespace ditto
