// The samples of a set by number, as bytes: the two ways in which a set is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "shard_index.h"
#include "store.h"

namespace webdataset {

struct RawSample {
  std::string shard, key, extension;  // extension: of the picture
  std::span<const std::byte> image, label, caption, text;
  std::span<const std::byte> notes;                            // member "json", where the sample was read in one piece
  const Place *label_from = nullptr, *caption_from = nullptr;  // in Wanted; null: not wanted
  std::vector<std::vector<std::byte>> bytes;                   // what the spans point into

  std::string place(const std::string& of) const { return shard + ":" + key + "." + of; }
};

class Samples {
 public:
  virtual ~Samples() = default;
  virtual std::int64_t size() const = 0;
  virtual RawSample read(std::int64_t index) const = 0;  // thread-safe; Error(data) naming the place
  virtual std::vector<std::string> warnings() const = 0;
  virtual std::vector<std::string> notes() const = 0;
  virtual const std::vector<std::string>& shards() const = 0;  // paths
  // Of the names and sizes of shards and samples, and of contents (contents.h).
  virtual std::string names() const = 0;
  virtual std::string contents() const = 0;
};

// Shards stay open while there are descriptors to spare; beyond that they take turns.
class OpenFiles {
 public:
  OpenFiles(std::vector<std::string> paths, Store store);
  std::shared_ptr<const ditto::formats::RandomFile> get(std::size_t file) const;
  void close();  // all; what is asked for is opened again
  const std::vector<std::string>& paths() const { return paths_; }
  const Store& store() const { return store_; }

 private:
  struct Slot {
    std::size_t number = 0;
    std::shared_ptr<const ditto::formats::RandomFile> file;
  };
  std::vector<std::string> paths_;
  Store store_;
  mutable std::mutex mutex_;
  mutable std::vector<Slot> slots_;
};

// Shards that the recipe lists: their headers are read once, when they are opened.
class ListedShards final : public Samples {
 public:
  ListedShards(std::vector<std::string> paths, Wanted wanted, const Store& store);
  std::int64_t size() const override { return static_cast<std::int64_t>(index_.items.size()); }
  RawSample read(std::int64_t index) const override;
  std::vector<std::string> warnings() const override { return index_.warnings; }
  std::vector<std::string> notes() const override { return index_.notes; }
  const std::vector<std::string>& shards() const override { return index_.paths; }
  std::string names() const override;
  std::string contents() const override;

 private:
  Wanted wanted_;
  ShardIndex index_;
  OpenFiles files_;
};

}  // namespace webdataset
