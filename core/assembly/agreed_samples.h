// Which samples of a step count, agreed by all ranks.
#pragma once

#include <memory>
#include <vector>

#include <ditto/parallel/mesh.h>

#include "core/data/batch_job.h"
#include "core/data/loader.h"

namespace ditto {

// One all-reduce of all ranks. Ranks that share samples (tensor, context, pipeline) read them each by itself, and one's
// copy of the data may be damaged: what any rank could not decode is left out of every rank's `jobs`, which are what it
// runs of `all`. Returns the places that are left out.
std::vector<int64_t> agree_on_samples(const Mesh& mesh, const Places& all,
                                      const std::vector<std::shared_ptr<BatchJob>>& jobs);
// Before they are used: the loader counts them. Called by all ranks with the same places. Throws Error(data), on all
// ranks alike, for more than loader.max_bad.
void leave_out(const Mesh& mesh, Loader& loader, const std::vector<int64_t>& places);

}  // namespace ditto
