// What commands do with a cascade: the same for each of its stages, one after another.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/ditto/commands.h"
#include "core/cascade/cascade.h"

namespace ditto {

struct CascadeCall {
  std::string path;
  std::vector<std::string> sets;
  std::string stage;          // --stage; empty: all of them
  int local_ranks = 0;        // 0: this process is one rank of those that a launcher has started, or the only one
  bool skips_trained = true;  // what has made its steps
  std::vector<std::string> allow_change;
  // Of one stage: trains it in this process, as its rank.
  std::function<int(const CascadeStage&)> train;
  // The command line of its ranks, and whether they can start (core/plan/rehearsal.h).
  std::function<std::vector<std::string>(const CascadeStage&)> words;
  std::function<int(const CascadeStage&)> rehearse;
};

// Each stage as a program of its own would train it, so that memory is one stage's. Stages are put together before the
// first of them starts. Returns the exit code of the first that did not train to its end.
int train_cascade(const CascadeCall& call, const CommandLine& line);

// Whether stages agree, found out in a process of its own: its exit code.
int check_stages(const Cascade& cascade, const CommandLine& line);
// `command` for each stage, with a line before each that names it: the first exit code that is not 0. `stage`: as of
// CascadeCall.
int for_each_stage(const Cascade& cascade, const std::string& stage,
                   const std::function<int(const CascadeStage&)>& command);
// "stage 2 of 3, sr32".
std::string title_of_stage(const Cascade& cascade, std::size_t stage);

}  // namespace ditto
