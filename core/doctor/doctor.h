// What this machine and this installation are, and what about them would trouble a run: `ditto doctor`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ditto::report {

struct Finding {
  enum class Level {
    note,     // worth knowing
    warning,  // a run works, but slower or with less than it could
    problem,  // a run would fail
  };
  Level level;
  std::string what, remedy;
};

// Facts in the order in which they are shown: {"ditto": {"version": "0.1.0", …}, "processor": {…}, …}. Sizes are
// integers under names that end in "_bytes".
struct Diagnosis {
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  std::vector<Finding> findings;

  void add(Finding::Level level, std::string what, std::string remedy = {}) {
    findings.push_back({level, std::move(what), std::move(remedy)});
  }
  bool has_problem() const;
};

// Looks without touching: no tensor is made, no device is asked, no CUDA library is opened (the first of these decides
// for good whether a process can use CUDA). `output`: the folder that runs are written to; its disk is tried with a
// file of 16 MiB, which is removed.
Diagnosis diagnose(const std::string& output);

std::string to_text(const Diagnosis& diagnosis);   // for people
nlohmann::ordered_json to_json(const Diagnosis&);  // the facts, and "findings": [{level, what, remedy}]

// The parts of it.
void diagnose_processor(Diagnosis& out);  // cores, instruction sets, memory, limits of the container
void diagnose_cuda(Diagnosis& out, const std::string& libtorch_folder);
void diagnose_disk(Diagnosis& out, const std::string& folder);

}  // namespace ditto::report
