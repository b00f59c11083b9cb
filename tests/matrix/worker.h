// What the harness starts: one rank of a set that runs several cases, one after another.
#pragma once

#include <string>
#include <vector>

#include "tests/matrix/case.h"

namespace ditto::matrix {

struct Plan {
  std::vector<Case> cases;
  std::string transport;  // run.transport of the device's ranks
  bool verbose = false;
  bool diff = false;  // what parts, and where, is looked for as `ditto diff` does, instead of comparing the ends
};

// What became of a case.
struct Outcome {
  bool ok = false;
  std::string text;
};
// Written one line a case by rank 0 of the set, in a file of the folder.
std::vector<std::pair<size_t, Outcome>> outcomes(const std::string& folder);

// Trains every different one-rank case that the plan's comparisons need, and leaves the records in the folder.
void run_references(const Plan& plan, const std::string& folder);
// As a rank (the environment says which one): those cases, each against its record. Throws at the first one that fails
// on this rank alone.
void run_cases(const Plan& plan, const std::string& folder, const std::vector<size_t>& which);

}  // namespace ditto::matrix
