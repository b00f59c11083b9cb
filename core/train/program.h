// A step's program, and what it learns about the losses on the way.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/train/assembly.h"

namespace ditto {

// The losses of a global batch, sample by sample: each data rank enters its own, `sum` adds them all in the samples'
// order, so that a loss has the same digits on any number of ranks.
class LossLedger {
 public:
  LossLedger(int64_t first_id, int64_t samples, int64_t micro_batches)
      : first_id_(first_id), samples_(samples), micro_batches_(micro_batches) {}
  void enter(const Batch& batch, const std::map<std::string, torch::Tensor>& losses);

  struct Totals {
    double loss = 0;                      // mean over the samples that count
    std::map<std::string, double> parts;  // its named parts
    double samples = 0;                   // the sum of weights
    double stop = 0;                      // how many ranks asked to stop
  };
  // Called by all ranks of the mesh. `stop`: this rank wishes to stop after this step.
  Totals sum(const Mesh& mesh, bool stop = false);

  // Per-sample losses of one name as entered here, zero elsewhere.
  const std::map<std::string, std::vector<double>>& entered() const { return losses_; }

 private:
  void know_all_names(const Mesh& mesh);
  int64_t first_id_, samples_, micro_batches_;
  std::map<std::string, std::vector<double>> losses_;
  std::vector<double> weights_ = std::vector<double>(static_cast<size_t>(samples_), 0.0);
};

// prepare, begin, blocks and finish of `assembly`. Finish returns this rank's share of the run's loss: the weighted sum
// of its samples' losses over `count` samples of the global batch and over the ranks that compute the same loss.
Program make_program(Assembly& assembly, LossLedger& ledger, double count);

}  // namespace ditto
