// The words of `ditto sample` as requests.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"
#include "core/network/saved_model.h"
#include "core/sample/generate.h"

namespace CLI {
class App;
}

namespace ditto {

// A file for pictures as they are, and what the tensor in it is called.
struct PassedTo {
  std::string name, file;
  bool empty() const { return file.empty(); }
};

// What another model makes of the same requests, in the same order, to be a condition here.
struct HandedOn {
  TensorSpec spec;                                                  // of one sample
  int64_t count = 0;                                                // of samples
  std::string request;                                              // that makes it
  std::function<torch::Tensor(int64_t first, int64_t count)> rows;  // once they are made
};

struct SampleArguments {
  std::string from, out, classes, seeds, size, condition, negative, prompts, sampler, cache, noise, network, adapter,
      weights = "ema";
  std::string save_latents, npz, name, guidance_channels, progress = "auto";
  std::vector<std::string> sets;
  std::optional<std::string> negative_prompt;
  std::vector<int64_t> steps;    // one; of a cascade one for each stage
  std::vector<double> guidance;  // the same
  std::optional<double> fps;
  std::optional<int64_t> npz_channels;
  PassedTo pass;
  std::string until;             // of a cascade: the size of its last stage that samples
  std::string kept_texts;        // folder of what stages of a cascade share; empty: nothing is shared
  std::string condition_of_all;  // --condition of a cascade, for a stage that has another one too
  int64_t batch = 16, series = 0;
  int local_ranks = 0;
  bool json = false, cache_error = false, overwrite = false, all = false;
  bool keep = false;            // of a cascade: all stages in memory
  bool is_later_stage = false;  // of a cascade
};

// What to sample, and what people know it by.
struct Asked {
  SampleRequests requests;
  std::vector<int64_t> classes;          // of each sample; none: the model takes no label, or a file gives it
  std::vector<std::string> class_names;  // of the data; none: it does not say
  int64_t condition_rows = 0;            // of --condition; 0: there is none
};

// What to sample, and how it is computed; but for --cache-error and --local-ranks.
void add_request_options(CLI::App& command, SampleArguments& arguments);
void add_sampler_options(CLI::App& command, SampleArguments& arguments);
// Throws Error(config) for an output that is the place of another, or of what is read.
void refuse_same_places(const SampleArguments& arguments);
// The run or checkpoint, with what the words say of its recipe.
SavedModel open_for_sampling(const SampleArguments& arguments);
// Another encoder's texts mean nothing to the model: Error(checkpoint).
void refuse_other_encoders(const SavedModel& saved, const Networks& networks);

// Throws Error(config) or Error(data), before anything is computed, for what the model does not take or cannot run.
// `from`: what stands in the place of the file of --condition, which then only has its name.
Asked read_requests(const SampleArguments& arguments, Assembly& assembly, const HandedOn* from = nullptr);
torch::Tensor read_noise(const SampleArguments& arguments, const SampleRequests& requests);

}  // namespace ditto
