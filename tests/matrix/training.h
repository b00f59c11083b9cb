// Trains a case on the ranks of a mesh, and keeps what is compared.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/train/assembly.h"
#include "tests/matrix/case.h"

namespace ditto::matrix {

// Whole tensors by parameter; on a pipeline's rank those of its stage. Clipped gradients of the first step; parameters
// and their average after the last.
struct Record {
  std::vector<double> losses, norms;
  std::map<std::string, torch::Tensor> gradients, parameters, average;
  std::map<std::string, torch::Tensor> picks;  // of routers, by step, micro-batch and block
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
};
Record train(const TrainRequest& request);

}  // namespace ditto::matrix
