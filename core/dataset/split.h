// The samples of shards dealt out anew: some to train on, some held out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dataset/prepare.h"

namespace ditto {

// Writes the samples of `shards`, every member byte for byte, to options.out: of each class (member "cls"; samples
// without one are a class of their own) options.validation of them, rounded down, are held out: those that `seed`
// chooses, the same ones each time. All others are to train on, in their order. A classes.json beside the first shard
// comes along. Throws Error(data) for a damaged shard, Error(config) as prepare does.
Prepared split_shards(const std::vector<std::string>& shards, const PrepareOptions& options, uint64_t seed);

}  // namespace ditto
