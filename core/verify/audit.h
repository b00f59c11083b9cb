// run.audit: a share of all micro-batches is computed again by a data peer, the next data rank with the same part of
// the model, and compared bit for bit. Nothing else finds a processor or a memory that is wrong without a word.
//
// Micro-batches of one accumulation are drawn together, by seed, step and accumulation: every data rank then repeats
// its neighbour's, and whatever strategies do in step they do. Where there is no peer a rank repeats its own, which
// finds what is wrong for a moment and not what is wrong every time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/assembly/assembly.h"
#include "core/assembly/step_shares.h"
#include "core/verify/votes.h"
#include "core/verify/watch.h"

namespace ditto {

// "audit: 0.01 of the micro-batches are computed again, by the next data rank"; empty: run.audit is 0.
std::string audit_report(const RunOptions& run, const Mesh& mesh);

// Whether this accumulation's micro-batches are computed again.
bool is_audited(const RunOptions& run, int64_t step, int64_t accumulation);

class Audit {
 public:
  // `say` hears of what was found, on every rank alike. The assembly outlives it.
  Audit(Assembly& assembly, std::function<void(const std::string&)> say);

  // Computes a step, and of what is drawn of it as much again as it takes to know what is right. Called by all ranks.
  // `compute`: the step, forward and backward, anew each time; afterwards its gradients are those of the last time.
  // `repeat`: this rank computes the micro-batch of data rank `owner` in an accumulation (or one that counts nothing,
  // where it has none) while others compute others', and leaves no gradient. Throws Error(numeric) that names ranks,
  // where run.audit_policy says so, nobody can tell who is right, or a step stays wrong.
  using Repeat = std::function<void(int64_t accumulation, int owner)>;
  void run(const StepShares& shares, const StepShares::Step& step, const std::function<void()>& compute,
           const Repeat& repeat);
  void look_at(Program& program) { watch_.look_at(program); }

  int64_t repeated() const { return repeated_; }  // micro-batches, of the whole run
  int64_t differed() const { return differed_; }

 private:
  using Which = std::pair<int64_t, int>;  // the micro-batch of an accumulation and a data rank
  // Of runs of the same number by all ranks: digests by the ranks' place in the model.
  using Digests = std::map<Which, std::map<std::string, std::string>>;
  // What this rank has computed of a micro-batch. 0: in the step; 1: its repeat; then those that decide.
  struct Run {
    Which which;
    int64_t number;
    Prints prints;
  };
  void compute_step(const StepShares& shares, const StepShares::Step& step, const std::vector<int64_t>& drawn,
                    int64_t number, const std::function<void()>& compute);
  void compute_again(const StepShares& shares, const StepShares::Step& step, int64_t accumulation, int64_t shift,
                     int64_t number, const Repeat& repeat);
  void take(const StepShares& shares, const StepShares::Step& step, const Which& which, int64_t number);
  Digests digests(int64_t number) const;
  std::map<Which, std::vector<Computed>> runs_of_all(const std::vector<Which>& which) const;
  // What is right of these micro-batches goes into `agreed`. Throws where it must.
  void decide(int64_t step, const std::vector<Which>& which, Digests& agreed);
  std::string place() const;
  [[noreturn]] void stop(int64_t step, const std::string& found) const;

  const Mesh& mesh_;
  const RunOptions& run_;
  std::function<void(const std::string&)> say_;
  AuditWatch watch_;
  std::deque<Run> runs_;  // in this step
  int64_t repeated_ = 0, differed_ = 0;
};

}  // namespace ditto
