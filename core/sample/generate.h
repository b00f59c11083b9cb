// From seeds and conditions to samples.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/network/cached_blocks.h"
#include "core/network/networks.h"
#include "core/ranks/watch.h"
#include "core/sample/kept_texts.h"

namespace ditto {

// Samples to make. A sample's numbers depend on its seed, size and conditions, on the weights, and on how many samples
// are computed with it (GenerateOptions::batch; not with exact kernels, run.numerics = "one"): on nothing else.
struct SampleRequests {
  std::vector<int64_t> seeds;
  // A row for each seed, on the CPU, by the names of what the model takes, or of what encoders make that of
  // (core/sample/handed.h).
  Batch conditions;
  std::optional<Batch> negative;  // the same names: what stands in the place of the null condition
  // Of those whose numbers follow from another request: which one names them, and where they come later, of samples
  // [first, first + count), a row each; until then there is any one row for all.
  struct Followed {
    std::string request;
    std::function<torch::Tensor(int64_t first, int64_t count)> rows;  // empty: they are there
  };
  std::map<std::string, Followed> followed;
  // A text for each seed, or one for all, or none: what encoders make of it, with the batch that it is of, stands
  // beside the conditions, and beside `negative`.
  std::vector<std::string> prompts, negative_prompts;
  std::shared_ptr<KeptTexts> kept;  // of what encoders make of these; none: they make it as it is needed
  std::vector<int64_t> shape;       // of one x_0; empty: the model's own
};

struct GenerateOptions {
  int64_t steps = 50, batch = 16;
  std::function<torch::Tensor(const torch::Tensor& clean)> clip;  // SamplingRequest::limit; may be empty
  torch::Tensor noise;  // [n, C, …] to start from instead of the seeds' own; may be undefined
  int64_t series = 0;   // of random numbers: models that make one sample in turn take others, by the same seeds
  std::function<void(int64_t done)> progress;  // samples complete on this rank, once they are taken; may be empty
  CachedBlocks* cache = nullptr;               // of the networks' model; null: all its blocks are computed
  // Gets what sampler and cache decided by themselves, added up over all samples, on every rank
  // (SamplingRequest::tell, CachedBlocks::decisions).
  std::map<std::string, double>* decisions = nullptr;
  RankWatch* watch = nullptr;  // is told of every evaluation of the model, as a step
  // Where a sampler fails on one of the data ranks, by its samples' own numbers: it throws at once, and the others
  // wait; or all throw the same once all have ended, and may go on together.
  enum class Failure { at_once, together } failure = Failure::at_once;
  // Every rank hands a batch on in each round, where its own are done the last one again: what is done with them is
  // done by all ranks together, as decoding by a decoder that is cut over them.
  bool in_step = false;
};

// A batch is of the requests from `first` on.
struct MadeBatch {
  int64_t first = 0;
  torch::Tensor samples;  // x_0 [n, C, …] (latents)
  bool is_own = false;    // false: another rank's, which this one has computed because ranks run in step
};

// Throws Error(config) where the negative conditions of this option would not be used.
void require_negative(const Guidance& guidance, const std::string& option = "--negative");

// Why guidance changes nothing for these requests: it asks for predictions without conditions, and they are the same.
// Empty: it does not ask, or they differ. Of requests with prompts the first few are looked at.
std::string idle_guidance(Networks& networks, const Guidance& guidance, const SampleRequests& requests);
// Why guidance leads away from a null condition that means nothing: the recipe's training never shows it to the model.
// Empty: it does, or says nothing of it, or guidance does not ask for it.
std::string unlearned_null(const Recipe& recipe, const Guidance& guidance);

// So many samples are computed at once; batch k is of the requests from k times that on.
int64_t batch_size(const Sampler& sampler, const GenerateOptions& options);

// Makes these batches, by number and the same ones on all ranks, in their order. Data ranks share them; each is handed
// to `take` on the ranks that have computed it, of which those of one data rank have it as their own. Which samples are
// computed together does not depend on the ranks, so that the same requests give the same bits on any number of them,
// and in any number of goes. Throws as require_negative.
void generate(Networks& networks, const Sampler& sampler, const Guidance& guidance, const SampleRequests& requests,
              const GenerateOptions& options, const std::vector<int64_t>& batches,
              const std::function<void(const MadeBatch&)>& take);

// The samples of all batches [n, C, …], in the order of the requests, on every rank.
torch::Tensor generate(Networks& networks, const Sampler& sampler, const Guidance& guidance,
                       const SampleRequests& requests, const GenerateOptions& options);

}  // namespace ditto
