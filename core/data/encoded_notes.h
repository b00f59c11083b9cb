// encoded.json, beside the shards of `ditto encode`: of what and how they were made.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ditto/data.h>
#include <nlohmann/json_fwd.hpp>

#include "core/data/order.h"

namespace ditto {

struct EncodedNotes {
  static constexpr const char* kFile = "encoded.json";
  // Its name until all shards are there: the same text.
  static constexpr const char* kUnfinished = "encoded.json.unfinished";
  static constexpr const char* kSafetensors = "safetensors";
  static constexpr int64_t kMostOfShard = 1'000'000;  // samples
  static constexpr int64_t kVersion = 2;              // of notes and members: no other is read

  // Of [encoder.NAME]: of its fingerprint weights, tokenizer, tokens and cleaning are a part.
  struct Encoder {
    std::string section, plugin, fingerprint, precision;
    std::string takes, caches, makes;            // tensors: names, dtypes as they are kept, shapes
    std::map<std::string, std::string> options;  // as TOML, for people: which of them matter the fingerprint says
  };
  // The samples of a split, whose keys are numbers from `first` on, in shards of so many.
  struct Part {
    std::string name;  // "train", "validation"
    int64_t samples = 0, first = 0;
    std::string fingerprint;  // of the source that they are of
    Ordered ordered;
    std::string shard(int64_t number) const;  // "train-000002.tar"
    int64_t shards(int64_t shard_samples) const { return (samples + shard_samples - 1) / shard_samples; }
  };

  std::string format = kSafetensors;
  int64_t batch = 0, shard_samples = 0;     // encoded at once; of a shard
  bool flip = false;                        // mirrored pictures are there too
  std::string numerics;                     // run.numerics, and of "one" what its bits follow from
  std::map<std::string, std::string> data;  // options of [data] that decide what samples are, as TOML: "data.size"
  std::vector<Encoder> encoders;            // those that need not see the data again
  TensorSpecs source;                       // what the data makes, before anything is encoded
  TensorSpecs kept, made;                   // what a sample has of that, and of encoders
  std::set<std::string> turn;               // of both, what turns with the picture
  std::vector<Part> parts;

  const Part* part(SplitOf split) const;  // null: there is none
  const Encoder* encoder(const std::string& section) const;
};

nlohmann::json to_json(const EncodedNotes& notes);
// Throws Error(data) at `where` for a text that `ditto encode` does not write.
EncodedNotes encoded_notes(const std::string& text, const std::string& where);
// Of a folder. Throws Error(config) for one that is half-written or was never made, and Error(data).
EncodedNotes read_encoded_notes(const std::string& folder);

// Eight hexadecimal digits of all that they say, which members carry: no shard of another set is read.
std::string id_of(const EncodedNotes& notes);

// "data.size is [8, 8] there and [16, 16] here": at most three, of two notes as JSON; empty: they are the same.
std::string difference(const nlohmann::json& theirs, const nlohmann::json& ours);

// A sample's name: its number, of six digits or more.
std::string encoded_key(int64_t number);

}  // namespace ditto
