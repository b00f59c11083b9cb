// Floating-point operations of a forward, counted by the layers themselves while the model runs on shapes alone.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/network/running_model.h"

namespace ditto {

class FlopCounter {
 public:
  // Makes the model once more, whole and without numbers.
  FlopCounter(Components& components, const RunningModel& of);
  // Of one forward of a batch that is encoded: all of its samples, on all ranks that share the model. A multiply-add is
  // two. Batches of the same shapes are counted once.
  double forward(const Batch& batch);

 private:
  double count(const Batch& batch) const;
  std::shared_ptr<Model> model_;
  std::map<std::vector<std::vector<int64_t>>, double> counted_;  // by the shapes of what the model takes
};

}  // namespace ditto
