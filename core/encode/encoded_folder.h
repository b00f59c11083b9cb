// The folder of `ditto encode --out` while it is filled: shards by name, and what they are of.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/encoded_notes.h"
#include "core/formats/archive/tar.h"
#include "core/formats/file.h"

namespace ditto {

// A shard gets its name once it is whole and on the disk, from any rank; encoded.json once all have theirs. Until then
// encoded.json.unfinished says the same, and the same command goes on with the shards that are not there.
class EncodedFolder {
 public:
  struct Shard {
    std::string name;
    const EncodedNotes::Part* part;
    int64_t first = 0, samples = 0;  // of the part's source
  };
  EncodedFolder(std::string folder, EncodedNotes notes);
  EncodedFolder(const EncodedFolder&) = delete;
  EncodedFolder& operator=(const EncodedFolder&) = delete;

  const EncodedNotes& notes() const { return notes_; }
  const std::vector<Shard>& shards() const { return shards_; }
  // On rank 0, before any rank writes: which shards are there (1). What a killed command left is removed. Throws
  // Error(config) for a folder that was encoded otherwise, saying what differs, or holds files of these names, and
  // where another process writes into it.
  std::vector<uint8_t> prepare();
  // A shard while it is written; without finish() it leaves nothing.
  class Writer {
   public:
    Writer(const EncodedFolder& folder, const Shard& shard);
    ~Writer();
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;
    void add(const std::string& member, std::string_view bytes) { tar_->add(member, bytes); }
    void finish();

   private:
    const std::string path_, beside_;
    std::unique_ptr<formats::TarWriter> tar_;
  };
  // Once all shards are there: how many samples did not decode.
  int64_t bad_samples() const;
  // On rank 0, once all shards are there: Energon's notes and encoded.json.
  void finish() const;

 private:
  std::string path(const std::string& name) const;
  // Whether notes of this name are there; throws where they say something else.
  bool has_notes(const char* name) const;
  void refuse_others() const;
  void remove_stale() const;
  void write_energon_notes() const;

  const std::string folder_;
  const EncodedNotes notes_;
  std::vector<Shard> shards_;
  formats::Descriptor claim_;
};

}  // namespace ditto
