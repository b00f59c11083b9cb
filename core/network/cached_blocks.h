// A model's blocks behind a cache, while samples are made: each sample's are computed or skipped, and what they added
// is kept.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ditto/cache.h>
#include <ditto/objective.h>
#include <ditto/sampler.h>

#include "core/components/components.h"
#include "core/config/section.h"
#include "core/network/running_model.h"

namespace ditto {

class CachedBlocks {
 public:
  // After the model was cut, which outlives it. Throws Error(config), at `component`, for a model or a layout of ranks
  // that does not go with the cache.
  CachedBlocks(RunningModel& model, std::shared_ptr<const Cache> cache, Component component);

  // Other samples begin: nothing is kept of those before.
  void begin();
  // As RunningModel::predict. The batch is the same samples once for each of `branches` (with conditions, without),
  // each of which has a history of its own. `is_last`: Cache::Evaluation. Throws Error(config) for a model whose blocks
  // hand one another more than tokens.
  torch::Tensor predict(const Batch& batch, const std::vector<int>& branches, bool is_last);
  // Since `begin`: blocks computed and skipped, of all samples, and skipped at which evaluations.
  const std::map<std::string, double>& decisions() const { return decisions_; }

 private:
  // One sample's, of one branch.
  struct History {
    torch::Tensor signal;                           // [T, D] here, of at least fp32; undefined before the first
    std::map<std::string, torch::Tensor> residual;  // what skipped blocks added when last computed, by field
    double sum = 0;                                 // Cache::Evaluation
  };
  // What blocks change, by name, a row for each sample.
  std::map<std::string, torch::Tensor*> evolving(Stream& stream, int64_t samples) const;
  void run(Program& program, const Batch& batch, const std::vector<History*>& histories, bool is_last, Stream& stream);
  void run_blocks(Program& program, const std::vector<History*>& histories, Stream& stream) const;
  torch::Tensor watched(Program& program, const Batch& batch, Stream& stream) const;
  std::vector<size_t> decide(const torch::Tensor& signal_BTD, const Stream& stream,
                             const std::vector<History*>& histories, bool is_last) const;
  std::vector<double> changes(const torch::Tensor& signal_BTD, const Stream& stream,
                              const std::vector<History*>& histories) const;
  void count(size_t computed, size_t samples);
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const;

  RunningModel& model_;
  const std::shared_ptr<const Cache> cache_;
  const Component component_;
  const int64_t first_;                                   // the first block that may be skipped
  std::map<std::pair<int, int64_t>, History> histories_;  // by branch and place in the batch
  int64_t evaluations_ = 0;
  std::map<std::string, double> decisions_;
};

// The cache that the recipe names. Throws Error(config) for what does not go with it: a sampler that estimates its own
// errors, an objective (null: none) that reads blocks' features, and as CachedBlocks does.
std::unique_ptr<CachedBlocks> make_cache(Components& components, RunningModel& model, const Sampler& sampler,
                                         const Objective* objective);

}  // namespace ditto
