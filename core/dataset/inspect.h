// Looks into tar shards: what is there, and whether all of it can be read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/picture/picture.h"

namespace ditto {

class VideoDecoder;  // ditto/video_decoder.h

struct ShardReport {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t samples = 0;
  std::map<std::string, std::int64_t> members;  // by extension
  std::map<std::string, std::int64_t> others;   // files that are no part of a sample, by name
  std::map<std::string, std::int64_t> unread;   // members without bytes of their own: "0003.npy is a sparse file, …"
  std::map<std::int64_t, std::int64_t> labels;  // samples by class, from ".cls" members
  std::map<std::string, std::int64_t> sizes;    // "8 x 8 x 1" (height x width x channels) -> pictures
  std::map<std::string, std::int64_t> tensors;  // "4 x 32 x 32" -> latents and embedded texts of this shape
  std::map<std::string, std::int64_t> videos;   // "16 x 64 x 48" (frames x height x width) -> videos, where decoded
  std::map<std::string, std::int64_t> aspects;  // pictures by the nearest of "1:1", "4:3", … (width:height)
  std::int64_t captions = 0;  // samples with one: a "txt" that is not empty, or "text" or "caption" in "json"
  std::map<std::int64_t, std::string> classes;             // names by label, from what prepare wrote into "json"
  std::vector<std::pair<std::string, std::string>> files;  // key and the file it was made of, likewise
  std::vector<std::string> problems;                       // each "SHARD:MEMBER: …"
};

inline constexpr const char* kSumsName = "SHA256SUMS";  // of all that prepare writes, beside the shards

enum class Depth {
  headers,  // members, labels and the pictures' own headers
  whole,    // decodes every picture, tensor and video, and holds labels against classes.json beside the shard
};

// Never throws for what is wrong inside a shard: that is a problem in the report. Error(data) for a file that cannot be
// read, or is no tar. `decoder` is called where videos are to be decoded, and may throw; empty: they are not.
ShardReport inspect_shard(const std::string& path, Depth depth,
                          const std::function<std::shared_ptr<VideoDecoder>()>& decoder = {});

// The *.tar files in a folder but for junk (formats/junk_name.h), in alphabetical order.
std::vector<std::string> shards_in(const std::string& folder);
// Files as they are named; a folder stands for the shards in it. Throws Error(config) for neither.
std::vector<std::string> shards_named(const std::vector<std::string>& paths);

// So many pictures of the shards, evenly spread over all of their samples, as one sheet. Error(data) where none
// decodes.
formats::Picture contact_sheet(const std::vector<std::string>& shards, int64_t pictures);

// Whether a folder still holds what `ditto data prepare` put there, a sentence for each thing that differs: files that
// SHA256SUMS names (not there, other bytes), shards that it does not name, and indices that do not fit their shards.
// A folder without SHA256SUMS is only asked for its indices.
std::vector<std::string> check_set(const std::string& folder);

}  // namespace ditto
