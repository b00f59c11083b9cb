// Which samples of a step share a micro-batch: a pure function of the step's places and the samples' sizes, so that all
// ranks, and a run that goes on, make the same plan without a word to one another.
//
// A step has the same samples whatever the plan; a plan only groups them. So every sample is seen once an epoch, none
// is repeated to fill a micro-batch, and a position in the data stays one number.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/config/data_options.h"
#include "core/data/places.h"
#include "core/data/sizes.h"

namespace ditto {

// First fit, the longest first (D. S. Johnson, 1973: at most 11/9 of the fewest packs, and 6/9 of one): the numbers of
// those `lengths` that each pack holds, together at most `room` and at most `most` of them. Equal lengths come in their
// order; one above `room` has a pack of its own.
std::vector<std::vector<size_t>> first_fit_decreasing(const std::vector<int64_t>& lengths, int64_t room, int64_t most);

// batch.sizes; empty: any. Throws Error(config): one that is no size.
std::vector<SampleSize> taken_sizes(const BatchOptions& options);

class BatchPlanner {
 public:
  struct Sizes {
    std::function<SampleSize(int64_t place)> of;
    std::function<int64_t(const SampleSize&)> tokens;  // of the model, for a sample of this size
  };
  // `micro_batch`: samples of a micro-batch at most. Throws Error(config): sizes that are no sizes.
  BatchPlanner(const BatchOptions& options, int64_t micro_batch, Sizes sizes);

  struct Plan {
    std::vector<Places> micro_batches;        // none empty; of several ranks, those run side by side cost much the same
    std::map<int64_t, SampleSize> no_bucket;  // places whose size batch.sizes does not have: they are left out
  };
  // Throws Error(config) for a sample of more tokens than batch.tokens.
  Plan plan(const Places& step) const;
  // Of a sample's loss among others'.
  double weight(int64_t place) const;

 private:
  std::vector<Places> contiguous(const std::vector<int64_t>& places) const;
  std::vector<Places> buckets(const std::vector<int64_t>& places) const;
  std::vector<Places> packs(const std::vector<int64_t>& places) const;
  int64_t tokens_of(int64_t place) const;
  void dearest_first(std::vector<Places>& micro_batches) const;

  BatchOptions options_;
  int64_t micro_batch_;
  Sizes sizes_;
  std::vector<SampleSize> taken_;  // batch.sizes; empty: any
};

}  // namespace ditto
