// The loss on held-out data, at fixed times and fixed noise: two validations differ by the weights alone.
#pragma once

#include "core/assembly/assembly.h"
#include "core/assembly/ema.h"
#include "core/data/loader.h"
#include "core/run_folder/metrics.h"

namespace ditto {

// Sample i of the held-out part is seen at the middle of stratum i modulo 8 of the training distribution of times, with
// noise that belongs to i; the weights are the average, where one is kept. Called by all ranks; data ranks share the
// micro-batches. `loader` is of the held-out source.
// Where none of the samples could be decoded the loss is no number.
report::ValidationRecord validate(Assembly& assembly, Ema& ema, Loader& loader);
// What can be known before: throws Error(config) where batch.sizes has none of the samples' sizes, and where one has
// more tokens than batch.tokens.
void check_validation(Assembly& assembly, const Loader& loader);

}  // namespace ditto
