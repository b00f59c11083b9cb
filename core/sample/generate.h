// From seeds to samples.
#pragma once

#include <functional>
#include <vector>

#include "core/dist/watch.h"
#include "core/train/assembly.h"

namespace ditto {

// One sample to make. Its numbers depend on these, on the weights and on the batch size, and on nothing else.
struct SampleRequest {
  int64_t seed = 0;
  int64_t label = 0;  // where the model has classes
};

struct GenerateOptions {
  int64_t steps = 50, batch = 16;
  double guidance = 1;
  std::string guidance_channels = "all";
  torch::Tensor noise;  // [n, C, …] to start from instead of the seeds' own; may be undefined
  std::function<void(int64_t done, int64_t all)> progress;  // samples complete on this rank; may be empty
  RankWatch* watch = nullptr;                               // is told of every evaluation of the model, as a step
};

// Samples x_0 [n, C, …] (latents), in the order of the requests, on every rank. Data ranks share the batches; a batch
// is always of options.batch samples, the last one padded, so that the same request gives the same bits on any number
// of ranks.
torch::Tensor generate(Assembly& assembly, const std::vector<SampleRequest>& requests, const GenerateOptions& options);

}  // namespace ditto
