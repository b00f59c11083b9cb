// Checkpoints of runs held against the same held-out samples, at the same times, with the same noise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/evaluate/spread.h"
#include "core/network/saved_model.h"
#include "core/plugin/registry.h"
#include "core/process/same_start.h"

namespace ditto {

enum class WhichWeights { both, average, trained };

struct EvaluateCall {
  WhichWeights weights = WhichWeights::both;  // of a checkpoint without an average: the weights
  std::string data;                           // where other held-out samples lie; empty: each run's own
  // Throws Error(kind) unless all ranks have the same; a topic is asked for once.
  std::function<void(const std::string& topic, const Facts&, ErrorKind kind)> expect_same;
  std::function<void(const std::string&)> say;              // on every rank that has something to say
  std::function<void(int64_t done, int64_t all)> progress;  // of weights measured
};

// Of one checkpoint, by its average or its weights.
struct Evaluated {
  std::string path;
  int64_t step = 0, learned = 0;  // samples that it had learned from
  std::string weights;            // "ema" or "weights"
  int64_t samples = 0;            // that counted
  Spread loss;                    // as the run's own validation gives it
  std::vector<Spread> strata;
  std::map<std::string, double> parts;     // of the loss, by name
  std::map<std::string, double> measures;  // that are no part of it
  double seconds = 0;
};

struct EvaluationResult {
  int64_t seed = 0;      // of the noise
  bool each = false;     // whether each sample is seen at each stratum
  std::string held_out;  // the samples' fingerprint
  std::vector<Evaluated> rows;
};

// What is named, opened: a checkpoint, or of a run its newest, or `all_steps`. Throws as open_saved.
std::vector<SavedModel> open_for_evaluation(const std::vector<std::string>& named, const std::vector<std::string>& sets,
                                            bool all_steps);

// By all ranks. How many samples are read, at which strata and by which seed is as the first one's recipe says, and so
// are sizes that are left out; of another that would differ it is said. What does not change its numbers but their last
// digits, the samples of a forward, is each run's own. Throws Error(config) for checkpoints that do not share a
// schedule, a device or what is held out.
EvaluationResult evaluate(std::vector<SavedModel>& checkpoints, Registry& registry, const Mesh& mesh,
                          const EvaluateCall& call);

}  // namespace ditto
