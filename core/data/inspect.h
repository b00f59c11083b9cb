// Looks into tar shards: what is there, and whether all of it can be read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ditto {

struct ShardReport {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t samples = 0;
  std::map<std::string, std::int64_t> members;  // by extension
  std::map<std::int64_t, std::int64_t> labels;  // samples by class, from ".cls" members
  std::map<std::string, std::int64_t> sizes;    // "8 x 8 x 1" (height x width x channels) -> pictures
  std::vector<std::string> problems;            // each "SHARD:MEMBER: …"
};

enum class Depth {
  headers,  // members, labels and the pictures' own headers
  whole,    // decodes every picture
};

// Never throws for what is wrong inside a shard: that is a problem in the report. Error(data) for a file that cannot be
// read, or is no tar.
ShardReport inspect_shard(const std::string& path, Depth depth);

// Files as they are named; a folder stands for the *.tar in it, in alphabetical order. Throws Error(config) for
// neither.
std::vector<std::string> shards_named(const std::vector<std::string>& paths);

}  // namespace ditto
