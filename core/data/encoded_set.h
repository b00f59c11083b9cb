// The samples of a recipe as its encoders have seen them before: what `ditto encode` keeps, in the place of the
// recipe's own source.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/data/encoded_notes.h"
#include "core/formats/file.h"

namespace ditto {

// Samples have the numbers and the order of the source that they are of, so that a run goes through the same ones. One
// that did not decode when it was encoded does not here.
//
// A member NUMBER.safetensors holds what encoders made (Encoder::caches) and what is left of the data;
// NUMBER.flipped.safetensors the same of the mirrored picture, of those encoders that see it. Its metadata has the
// crc32 of its tensors, and as length.NAME how much of a text counts (Batch::lengths).
class EncodedSet final : public Source {
 public:
  enum class Side { as_it_is, mirrored };
  struct Encoded {
    Sample sample;
    std::map<std::string, int64_t> lengths;
  };
  // Throws Error(config) as read_encoded_notes does, for a folder that has no samples of the split or is of NeMo's
  // parts, and Error(data) for shards that are not there.
  EncodedSet(const std::string& folder, SplitOf split);

  int64_t size() const override { return part_.samples; }
  TensorSpecs makes() const override { return specs_; }
  Sample read(int64_t index) const override { return read(index, Side::as_it_is).sample; }
  SampleInfo info(int64_t index) const override;
  std::string fingerprint() const override { return part_.fingerprint; }

  // Thread-safe, as read(index). Throws Error(data).
  Encoded read(int64_t index, Side side) const;
  const Ordered& ordered() const { return part_.ordered; }
  const EncodedNotes& encoding() const { return notes_; }
  // It is there in both sides, and need not be turned.
  bool has_sides(const std::string& name) const { return find(notes_.made, name) != nullptr; }

  static constexpr const char* kPlain = "safetensors";
  static constexpr const char* kMirrored = "flipped.safetensors";
  static constexpr const char* kCrc = "crc32";
  static constexpr const char* kLength = "length.";

 private:
  struct Member {
    uint64_t offset = 0, bytes = 0;  // 0: it is not there
  };
  struct Index {
    std::vector<Member> plain, mirrored;  // of each sample
  };
  struct Shard {
    std::string name;
    std::shared_ptr<const formats::RandomFile> file;
    std::shared_ptr<const Index> index;  // once a sample of it was asked for
  };
  struct Place {
    const Shard* shard;
    Member member;
    std::string where;  // "train-000000.tar:000017.safetensors"
  };
  Place place(int64_t index, Side side) const;
  std::shared_ptr<const Index> index_of(const Shard& shard, int64_t first, int64_t samples) const;
  void load(const Place& place, Encoded& into) const;

  const EncodedNotes notes_;
  const EncodedNotes::Part part_;
  TensorSpecs specs_;
  mutable std::mutex mutex_;
  mutable std::vector<Shard> shards_;  // their indices are guarded
};

// What the data makes before it is encoded: of samples that were, of what they are.
TensorSpecs specs_before_encoders(const Source& source);

}  // namespace ditto
