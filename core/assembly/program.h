// A step's program, and what it learns about the losses on the way.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"

namespace ditto {

// The ranks among which each sample's loss is computed once.
const Group& loss_group(const Mesh& mesh);

// The losses of a global batch, sample by sample: each data rank enters its own, `gather` brings those of all together,
// on their device, and `totals` adds them in the samples' order, so that a loss has the same digits on any number of
// ranks.
class LossLedger {
 public:
  LossLedger(int64_t first_id, int64_t samples, int64_t micro_batches)
      : first_id_(first_id), samples_(samples), micro_batches_(micro_batches) {}
  // Waits for no device. `measures`: per-sample numbers that are no part of the loss (Objective::measures). Returns the
  // samples' weights, [B] fp64, where the losses are.
  torch::Tensor enter(const Batch& batch, const std::map<std::string, torch::Tensor>& losses,
                      const std::map<std::string, torch::Tensor>& measures = {});

  struct Totals {
    double loss = 0;                      // mean over the samples, by their weights
    std::map<std::string, double> parts;  // its named parts
    std::map<std::string, double> measures;
    double samples = 0;  // that count
    // Of each sample, entered by whichever rank: its weight, and its losses by name times that.
    std::vector<double> weights;
    std::map<std::string, std::vector<double>> weighed;
  };
  // Called by all ranks of the mesh; of a pipeline, the last stage has entered the losses. Of all samples, by whichever
  // rank they were entered, on `device`: [1 + losses + measures, samples] fp64, their weights, and each name's numbers
  // times these. Waits for no device.
  torch::Tensor gather(const Mesh& mesh, torch::Device device);
  // `gathered`: what that gave, in the host's memory.
  Totals totals(const torch::Tensor& gathered) const;
  Totals sum(const Mesh& mesh) { return totals(gather(mesh, torch::kCPU)); }
  // [2 B] fp64 in the host's memory, what `enter` sends to a device: the samples' weights, and their places.
  torch::Tensor weights_and_places(const Batch& batch) const;
  // [losses, samples] of what was gathered.
  torch::Tensor losses_of(const torch::Tensor& gathered) const;

  // After `gather`: per-sample losses of one name, times the samples' weights, as entered here; zero elsewhere. Waits.
  std::map<std::string, std::vector<double>> entered() const;
  int64_t first_id() const { return first_id_; }  // of the first sample

 private:
  struct Entry {
    torch::Tensor weights_B, place_B;  // fp64, int64: where among the samples
    std::map<std::string, torch::Tensor> losses, measures;
  };
  torch::Tensor rows(torch::Device device) const;
  void know_all_names(const Mesh& mesh, const Group& group);
  std::vector<Entry> entries_;
  std::set<std::string> losses_, measures_;  // their names
  int64_t first_id_, samples_, micro_batches_;
};

// A step's program: the assembly's parts, and the loss: the weighted sum of this rank's samples' losses over `weight`,
// that of the global batch, and over the ranks that compute the same loss, times `scale` ([] fp64, on the device;
// undefined: 1). Losses are entered in the ledger where they are computed. All of these outlive the program.
Program make_program(Assembly& assembly, LossLedger& ledger, double weight, const torch::Tensor& scale = {});

}  // namespace ditto
