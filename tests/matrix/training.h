// Trains a case on the ranks of a mesh, and keeps what is compared.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"
#include "tests/matrix/case.h"

namespace ditto::matrix {

using Tensors = std::map<std::string, torch::Tensor>;

// Whole tensors by parameter; on a pipeline's rank those of its stage. Clipped gradients of the first step; after the
// last one parameters, their average, the optimizer's state ("exp_avg blocks.0.up.weight"), and a validation: its
// losses, of all and by stratum, and samples.
struct Record {
  std::vector<double> losses, norms, validation;
  Tensors gradients, parameters, average, state;
  // What routers chose, "picks.I" of block I: by sample of the run, [steps * batch, T, k]. Of a run on one rank.
  Tensors picks;
  int64_t peak_bytes = 0;          // of a GPU's memory, while it trained
  int64_t flips = 0, choices = 0;  // on this rank, of the choices that were watched: other ones than on one rank
  std::map<Traffic::Key, Traffic::Count> traffic;  // of the last step, on this rank
  // Of this rank's layout, for closed forms: each unit's parameters before they are cut over the shard axis, and how
  // many numbers are copies along which axes that are no data axes.
  std::map<std::string, std::vector<std::vector<int64_t>>> units;
  std::map<AxisSet, int64_t> copies, data_copies;  // and which are
};
void save(const Record& record, const std::string& path);
Record load(const std::string& path);

// For planted faults: called when all is put together, before the first step.
struct FaultHooks {
  std::function<void()> before_optimizer;  // with the step's gradients, before they are kept
};
using Tamper = std::function<void(Assembly&, FaultHooks&)>;

struct TrainRequest {
  const Case& one;
  const Mesh& mesh;
  Registry& registry;
  Tamper tamper;
  std::string folder;  // of checkpoints
  std::string device;  // "cuda:0"
  // Of one rank: its routers' choices are taken (replay), or only compared.
  const Record* one_rank = nullptr;
  std::string events;  // a file for what a probe sees of the steps; empty: nobody looks on
};
Record train(const TrainRequest& request);

}  // namespace ditto::matrix
