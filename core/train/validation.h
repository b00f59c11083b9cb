// The loss on held-out data, at fixed times and fixed noise: two validations differ by the weights alone.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"
#include "core/assembly/ema.h"
#include "core/data/loader.h"
#include "core/run_folder/metrics.h"

namespace ditto {

// What the held-out samples that a validation reads came to, the same on all ranks and of the same digits on any number
// of data ranks.
struct HeldOutLosses {
  double loss = 0;                            // the mean; no number where no sample could be decoded
  std::map<std::string, double> parts;        // by name
  std::map<std::string, double> measures;     // Objective::measures, which are no part of the loss
  int64_t samples = 0;                        // that counted
  std::vector<std::optional<double>> strata;  // the mean of each; none where no sample of one counted

  // Measurement i is of stratum i modulo kStrata, and of sample i, or, where each sample is seen at each stratum, of
  // sample i / kStrata.
  bool each = false;
  std::vector<std::optional<double>> measured;  // none: its sample did not count
};

// Whether so many samples are seen at every stratum, by validate.strata.
bool sees_each_stratum(const ValidateOptions& options, int64_t samples);

// Sample i of the held-out part is seen at the middle of stratum i modulo 8 of the training distribution of times, or
// at the middle of each, with noise that belongs to sample and stratum; by the weights that the networks have. Called
// by all ranks; data ranks share the micro-batches. `loader` is of the held-out source.
HeldOutLosses held_out_losses(Assembly& assembly, Loader& loader);
// The same of the average of the weights, where one is kept, as a run notes it.
report::ValidationRecord validate(Assembly& assembly, Ema& ema, Loader& loader);
// What can be known before: throws Error(config) where batch.sizes has none of the samples' sizes, and where one has
// more tokens than batch.tokens.
void check_validation(Assembly& assembly, const Loader& loader);

}  // namespace ditto
