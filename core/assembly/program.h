// A step's program, and what it learns about the losses on the way.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"

namespace ditto {

// The ranks among which each sample's loss is computed once.
const Group& loss_group(const Mesh& mesh);

// The losses of a global batch, sample by sample: each data rank enters its own, `sum` adds them all in the samples'
// order, so that a loss has the same digits on any number of ranks.
class LossLedger {
 public:
  LossLedger(int64_t first_id, int64_t samples, int64_t micro_batches)
      : first_id_(first_id), samples_(samples), micro_batches_(micro_batches) {}
  // Waits for no device: numbers are read when `sum` is called. `measures`: per-sample numbers that are no part of the
  // loss (Objective::measures).
  void enter(const Batch& batch, const std::map<std::string, torch::Tensor>& losses,
             const std::map<std::string, torch::Tensor>& measures = {});

  struct Totals {
    double loss = 0;                      // mean over the samples, by their weights
    std::map<std::string, double> parts;  // its named parts
    std::map<std::string, double> measures;
    double samples = 0;  // that count
    double stop = 0;     // how many ranks asked to stop
    // Of each sample, entered by whichever rank: its weight, and its losses by name times that.
    std::vector<double> weights;
    std::map<std::string, std::vector<double>> weighed;
  };
  // Called by all ranks of the mesh; of a pipeline, the last stage has entered the losses. `stop`: this rank wishes to
  // stop after this step.
  Totals sum(const Mesh& mesh, bool stop = false);

  // After `sum`: per-sample losses of one name, times the samples' weights, as entered here; zero elsewhere.
  const std::map<std::string, std::vector<double>>& entered() const { return losses_; }
  int64_t first_id() const { return first_id_; }  // of the first sample

 private:
  struct Entry {
    std::vector<int64_t> ids;
    std::vector<double> weights;
    std::map<std::string, torch::Tensor> losses, measures;
  };
  using Rows = std::map<std::string, std::vector<double>>;  // of all samples: theirs by name times their weights
  void read();
  void read(const Entry& entry, const std::map<std::string, torch::Tensor>& from, Rows& into) const;
  void know_all_names(const Mesh& mesh, const Group& group);
  std::vector<Entry> unread_;
  int64_t first_id_, samples_, micro_batches_;
  Rows losses_, measures_;
  std::vector<double> weights_ = std::vector<double>(static_cast<size_t>(samples_), 0.0);
};

// A step's program: the assembly's parts, and the loss: the weighted sum of this rank's samples' losses over `weight`,
// that of the global batch, and over the ranks that compute the same loss, times `scale`. Losses are entered in the
// ledger where they are computed. All of these outlive the program.
Program make_program(Assembly& assembly, LossLedger& ledger, double weight, double scale = 1);

}  // namespace ditto
