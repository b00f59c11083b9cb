// Another network of the run that learns with its model: a second student, a critic, a model of what a student makes.
#pragma once

#include "core/network/other_network.h"

namespace ditto {

class TrainedNetwork final : public OtherNetwork {
 public:
  // Uncut, for the same data, in the same precision and by the same seed as `main`.
  TrainedNetwork(Components& components, const NetworkSection& section, const Surroundings& around,
                 const RunningModel& main);
  // Strategies cut it, and it gets its numbers: `initial` are those of the section's weights, where it names any.
  // Throws Error(config) or Error(checkpoint).
  void cut(Components& components, RunningModel::Weights weights);

  // With gradients where they are recorded.
  Outputs run(const Batch& batch, const std::vector<int64_t>& features) override;
  void require_same_schedule() const override {}  // it learns the run's

 private:
  const std::string weights_, which_;
};

}  // namespace ditto
