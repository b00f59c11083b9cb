// `ditto sample` of one run: its parts, what is asked for, and what it leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>

#include "apps/ditto/commands.h"
#include "apps/ditto/sample_requests.h"
#include "core/process/rank.h"

namespace ditto {

class SampleOutputs;

// Of several in a process each has a rank of its own, and all are made before one prepares.
class Sampling {
 public:
  // Opens the run and meets the other ranks; all of these outlive it. Throws Error(config) and Error(checkpoint).
  Sampling(Rank& rank, const SampleArguments& arguments, const CommandLine& line);
  ~Sampling();
  Sampling(const Sampling&) = delete;
  Sampling& operator=(const Sampling&) = delete;

  // Finds what is asked for, and what of it is there. `from`: another's samples that are among the conditions, and may
  // come later. Throws Error(config), Error(data) and Error(checkpoint) before anything is computed.
  void prepare(const HandedOn* from = nullptr);
  int64_t count() const;    // samples that are asked for
  int64_t at_once() const;  // of these as many as all ranks compute together
  // All ranks together: the weights are there, and time runs.
  void begin();
  // Then all samples before `end`, a multiple of --batch or count(), that are not there yet.
  void make_until(int64_t end);
  // All ranks together, once all is made: files get their names, and `out` hears of them.
  void finish(std::ostream& out);
  // What --pass writes, for another model, while this lives: rows once they are made.
  HandedOn handed_on();

 private:
  class Progress;
  void make(const std::vector<int64_t>& batches);

  Rank& rank_;
  const SampleArguments& a_;
  SavedModel saved_;
  std::optional<Assembly> assembly_;
  Asked asked_;
  GenerateOptions options_;
  std::unique_ptr<SampleOutputs> outputs_;
  std::vector<int64_t> batches_;  // that lack something, and are not made yet
  std::unique_ptr<Progress> progress_;
  bool is_watched_ = false;  // its first batch was, by a OneNumberGuard
};

// What can be known of a run, its layout over so many ranks and its sampler before it is put together: throws as that
// would.
void check_for_sampling(const SampleArguments& arguments, const CommandLine& line, int ranks);

// What Ctrl-C does not lose, where this process is who is asked for it.
void say_that_it_goes_on(const RankInfo& info);

}  // namespace ditto
