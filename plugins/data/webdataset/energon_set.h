// What a folder prepared for Megatron-Energon says of itself in .nv-meta: dataset.yaml (where a sample's fields stand),
// split.yaml (which shards are whose) and .info.json, .info.yaml before (how many samples each has).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store.h"

namespace webdataset {

struct PreparedShard {
  std::string name;  // relative to the folder, as the set calls it
  std::int64_t samples = 0;
  std::set<std::string> excluded_keys = {};  // of its samples
};

struct EnergonSet {
  std::string folder;
  std::string sample_type;                       // "CaptioningSample"; empty where Python makes the samples
  std::string made_by;                           // then what does: "sample_loader.py:sample_loader"
  std::map<std::string, std::string> field_map;  // field of the sample -> where it stands
};

// Throws Error(config) for a folder that was not prepared, Error(data) for notes that cannot be read.
EnergonSet read_energon_set(const std::string& folder, const Store& store);

// The shards of one part of the split ("train", "val"), in its order. Throws Error(config) for a part that is not
// there or empty, Error(data) for shards that .info does not count.
std::vector<PreparedShard> shards_of_split(const EnergonSet& set, const std::string& split, const std::string& option,
                                           const Store& store);

// index.uuid, which is another one after each preparation; empty: none.
std::string uuid_of(const EnergonSet& set, const Store& store);

}  // namespace webdataset
