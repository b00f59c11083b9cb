// Whether shards hold what they held, by a bounded number of reads.
#pragma once

#include <string>
#include <vector>

#include "samples.h"

namespace webdataset {

// 32 hex digits of each shard's samples (their names, places, sizes and labels) and of its bytes: of all of them where
// it has up to 1 MiB, else of 64 parts of 16 KiB, evenly spread from its first byte to its last (on a server, of two:
// each costs a request). Other pictures in all of a shard's places are always seen, one other picture in a large shard
// is not. Throws Error(data) for a shard that cannot be read.
std::string hash_of_contents(const ShardIndex& index, const OpenFiles& files);
// The same of files' bytes alone.
std::string hash_of_files(const OpenFiles& files);

}  // namespace webdataset
