// The samples of a recipe as its encoders have seen them before: what `ditto encode` keeps, in the place of the
// recipe's own source.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/data/encoded_notes.h"
#include "core/formats/file.h"
#include "core/formats/tensor/safetensors.h"

namespace ditto {

// Samples have the numbers and the order of the source that they are of, so that a run goes through the same ones. One
// that did not decode when it was encoded does not here: NUMBER.bad.safetensors says how large what is made of it is.
//
// A member NUMBER.safetensors holds what encoders made (Encoder::caches) and what is left of the data;
// NUMBER.flipped.safetensors the same of the mirrored picture, of those encoders that see it. Its metadata has
// the id of the notes, as length.NAME how much of a text counts (Batch::lengths), as "sides" those of the data's sample
// that are its own (sizes.h), and the crc32 of its tensors and of all that.
class EncodedSet final : public Source {
 public:
  enum class Side { as_it_is, mirrored };
  struct Encoded {
    Sample sample;
    std::map<std::string, int64_t> lengths;
  };
  // Throws Error(config) as read_encoded_notes does, for a folder that has no samples of the split or is of NeMo's
  // parts, and Error(data) for shards that are not there. Of a shard, once a sample of it is asked for, Error(config)
  // where it lacks samples or mirrored ones, or is of another set.
  EncodedSet(const std::string& folder, SplitOf split);

  int64_t size() const override { return part_.samples; }
  TensorSpecs makes() const override { return specs_; }
  Sample read(int64_t index) const override { return read(index, Side::as_it_is).sample; }
  SampleInfo info(int64_t index) const override;
  std::string fingerprint() const override { return part_.fingerprint; }

  // Of the data's sample: the sides that are its own, before it was encoded. Thread-safe. Throws Error(data).
  std::vector<int64_t> sides_of_data(int64_t index) const;
  // Thread-safe, as read(index). Throws Error(data).
  Encoded read(int64_t index, Side side) const;
  const Ordered& ordered() const { return part_.ordered; }
  const EncodedNotes& encoding() const { return notes_; }
  // It is there in both sides, and need not be turned.
  bool has_sides(const std::string& name) const { return find(notes_.made, name) != nullptr; }

  static constexpr const char* kPlain = "safetensors";
  static constexpr const char* kMirrored = "flipped.safetensors";
  static constexpr const char* kBad = "bad.safetensors";
  static constexpr const char* kCrc = "crc32";
  static constexpr const char* kId = "encoding";
  static constexpr const char* kSides = "sides";
  static constexpr const char* kLength = "length.";
  // Of a member's tensors, and of its metadata but for the crc itself.
  static std::string crc_of(std::span<const std::byte> tensors, const formats::Metadata& said);

 private:
  struct Member {
    uint64_t offset = 0, bytes = 0;  // 0: it is not there
    bool is_bad = false;
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
  void require_whole(const Index& index, const std::string& shard) const;
  void require_own(const formats::Metadata& said, const std::string& where) const;
  formats::SafetensorsReader header_of(const Place& place) const;
  void load(const Place& place, Encoded& into) const;

  const EncodedNotes notes_;
  const std::string id_;
  const EncodedNotes::Part part_;
  TensorSpecs specs_;
  mutable std::mutex mutex_;
  mutable std::vector<Shard> shards_;  // their indices are guarded
};

// What the data makes before it is encoded: of samples that were, of what they are.
TensorSpecs specs_before_encoders(const Source& source);

}  // namespace ditto
