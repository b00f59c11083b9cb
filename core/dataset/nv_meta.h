// .nv-meta of a set of tar shards, as `energon prepare` of Megatron-Energon 7 makes it, so that its loader reads the
// set: an index of each shard beside it (NAME.tar.idx), and in the folder .nv-meta .info.json, split.yaml,
// dataset.yaml, index.sqlite and index.uuid. The same shards give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/formats/archive/tar.h"

namespace ditto {

// Where each sample of a shard begins, and the last one's end: what NAME.tar.idx holds, eight bytes each.
std::vector<std::uint64_t> sample_starts(const formats::TarIndex& tar, const std::string& where);

class NvMeta {
 public:
  // Where a file of this name, relative to the set's folder, is to be written. Called once for each.
  using Begin = std::function<std::string(const std::string& name)>;

  // What dataset.yaml says of the samples: where picture, class and caption stand; or nothing (Energon's crude sets),
  // where members are no pictures.
  enum class Fields { of_pictures, none };

  explicit NvMeta(Begin begin, Fields fields = Fields::of_pictures);
  ~NvMeta();
  NvMeta(const NvMeta&) = delete;
  NvMeta& operator=(const NvMeta&) = delete;

  // A whole shard, which lies at `path` and will be called `name`; of "train" or "val". Throws Error(data).
  void add(const std::string& name, const std::string& path, const std::string& split);
  void finish();  // after the last one

 private:
  struct Database;
  struct Shard {
    std::string name, split;
    std::int64_t samples;
  };
  void write(const std::string& name, const std::string& text) const;
  std::string info() const;
  std::string splits() const;
  std::string dataset() const;
  std::string uuid() const;

  Begin begin_;
  Fields fields_;
  std::unique_ptr<Database> database_;
  std::vector<Shard> shards_;
  std::map<std::string, std::int64_t> parts_;  // samples that have a member of this extension
  std::int64_t samples_ = 0;
};

}  // namespace ditto
