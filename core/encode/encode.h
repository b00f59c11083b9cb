// `ditto encode`: what a recipe's encoders make of its data, made once and kept.
#pragma once

#include <functional>
#include <string>

#include "core/assembly/assembly.h"
#include "core/data/encoded_notes.h"

namespace ditto {

struct EncodeOptions {
  static constexpr const char* kNemo = "nemo";

  std::string out;
  int64_t batch = 16, shard_samples = 1000;
  bool flip = false;  // of mirrored pictures too
  std::string format = EncodedNotes::kSafetensors;
  std::function<void(const std::string&)> say;  // of samples that do not decode
  std::function<void()> alive;                  // before each batch
  // On rank 0, once it is known what is there, and then samples done: by this rank, of those that were not there.
  std::function<void(int64_t there, int64_t all)> begun;
  std::function<void(int64_t done)> progress;
};

// Encodes the assembly's data, both splits, into shards (encoded_set.h says what is in them; of NeMo's format .pth,
// .pickle and .json a sample) and returns, on rank 0, how many samples did not decode: data ranks each take whole
// shards, so that the same recipe gives the same bytes on any number of ranks and in any number of goes. Called by all
// ranks together. Throws Error(config) where no encoder sees the data, where --flip mirrors nothing, where NeMo's
// format has no room for all, and as EncodedFolder::prepare; Error(data) as the loader, and where no sample decoded.
int64_t encode_data(Assembly& assembly, const EncodeOptions& options);

}  // namespace ditto
