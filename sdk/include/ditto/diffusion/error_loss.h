// What a schedule minimises of the error of its prediction, for schedules with an option `loss`.
//
// Predictions and targets are [B, C, …] in any floating dtype; weights double [B] or [B, F], as Scheduler::weight gives
// them; losses [B], fp32 or wider.
#pragma once

#include <map>
#include <string>

#include <torch/types.h>

#include <ditto/options.h>
#include <ditto/visibility.h>

namespace ditto {

class OpTable;

class DITTO_API ErrorLoss {
 public:
  struct DITTO_API Options {
    std::string loss = "l2";
    void read(OptionReader& option);
  };
  explicit ErrorLoss(const Options& options) : options_(options) {}

  // l2: Scheduler's own loss is the right one, and nothing below is called.
  bool is_square() const { return options_.loss == "l2"; }
  // With e = root(weight) (prediction - target), so that l2 would be Scheduler's: |e| of l1; of huber e^2 / 2 where
  // |e| < 1, and |e| - 1/2 (torch's smooth_l1_loss). A sample's mean, under the option's name.
  std::map<std::string, torch::Tensor> losses(const torch::Tensor& prediction, const torch::Tensor& target,
                                              const torch::Tensor& weight, const OpTable* ops) const;
  // root(weight): what a schedule adds to its `factors`.
  static torch::Tensor scale(const torch::Tensor& weight);

 private:
  Options options_;
};

}  // namespace ditto
