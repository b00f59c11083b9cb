// What a recipe would take on a number of ranks, found out in one process on shapes alone: nothing is read, computed or
// allocated.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/network/flops.h"

namespace ditto {

constexpr const char* kNodes = "nodes";  // a share of gradients that run.numerics = "one" has alone
// What the forwards leave that the first backward finds; an estimate.
constexpr const char* kActivations = "activations";
// With loader.encode_ahead what encoders have made of the next step; and what they take while they compute one
// micro-batch, beyond the activations where they compute before the step.
constexpr const char *kAhead = "ahead", *kEncoding = "encoding";

struct RankCost {
  int rank = 0;
  int64_t parameters = 0;  // learned numbers here
  // Of its tensors, as `--trace comm` measures them (core/profile/trace.h).
  std::map<std::string, int64_t> bytes;
  int64_t total() const;
};

struct DryRun {
  int ranks = 1;
  std::string model, precision;
  int64_t parameters = 0;                                                      // of the whole model, learned
  std::map<std::string, int64_t> frozen;                                       // of each other network, by its section
  int64_t batch = 0, micro_batch = 0, tokens_per_sample = 0, text_length = 0;  // 0: it takes no text
  std::string size;              // that every sample is counted with, where each has its own; empty: all have one
  Flops flops;                   // of one step of the global batch, forward and backward
  double audit = 0;              // share of it that is computed again (run.audit)
  std::string unknown;           // why operations or activations are not known; empty: they are
  std::string unknown_encoding;  // why what encoders take is not; empty: it is, or counts nothing
  RankCost first, largest;       // rank 0, and the rank that holds most
};

// Throws Error(config) for degrees that do not make up `ranks`, and what putting the recipe together throws. A text,
// which may have any length, has `text_length` tokens; a sample of its own size is the largest of batch.sizes.
DryRun dry_run(const Recipe& recipe, Registry& registry, int ranks, int64_t text_length);
std::string to_text(const DryRun& run);
nlohmann::ordered_json to_json(const DryRun& run);

}  // namespace ditto
