// Whether shards hold what they held, by a bounded number of reads.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "samples.h"

namespace webdataset {

// 32 hex digits of each shard's samples (their names, places, sizes and labels) and of its bytes: of all of them where
// it has up to 1 MiB, else of 64 parts of 16 KiB, evenly spread from its first byte to its last (on a server, of two:
// each costs a request). Other pictures in all of a shard's places are always seen, one other picture in a large shard
// is not. Throws Error(data) for a shard that cannot be read.
std::string hash_of_contents(const ShardIndex& index, const OpenFiles& files);
// The same of files' bytes alone.
std::string hash_of_files(const OpenFiles& files);

// Of members in shards that are hashed by parts: each one's first and last 4 KiB. Begins with ", "; empty where there
// is no such shard, or none on a disk: on a server it would take two requests a member. `members_of` calls `take` with
// the ranges of a shard's members, in an order that is always the same; from several threads, each with another shard.
using TakeRange = std::function<void(const Range& member)>;
std::string hash_of_ends(const OpenFiles& files,
                         const std::function<void(std::size_t shard, const TakeRange& take)>& members_of);

}  // namespace webdataset
