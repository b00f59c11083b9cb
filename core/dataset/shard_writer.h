// Shards OUT/train-000000.tar, … and OUT/validation-000000.tar, … of at most so many samples each, and what Energon
// asks for beside them (nv_meta.h).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/dataset/nv_meta.h"
#include "core/dataset/prepare.h"
#include "core/formats/archive/tar.h"

namespace ditto {

// Throws Error(config) where `options` cannot be, or OUT holds shards already. Files get their names in finish(), when
// all of them are whole and on the disk; a writer that goes without it takes what it wrote along.
class ShardWriter {
 public:
  explicit ShardWriter(const PrepareOptions& options);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  struct Member {
    std::string extension;
    std::span<const std::byte> bytes;
  };
  // Samples are named by their number over both parts: "000017". `label` only decides who is held out: the share is
  // taken of every class. -1: no label. Returns where it went: "train-000000.tar:000017".
  std::string add(const std::vector<Member>& members, std::int64_t label);
  std::string add_to_train(const std::vector<Member>& members);  // whatever the share
  std::string add_to_validation(const std::vector<Member>& members);
  void add_file(const std::string& name, std::string_view text);  // beside the shards
  Prepared finish();

 private:
  struct Part {
    std::string name, split;
    std::int64_t samples = 0;
    std::string shard;  // the one being written
    std::unique_ptr<formats::TarWriter> tar;
  };
  void close(Part& part);
  std::string begin_file(const std::string& name);  // where to write it
  bool held_out(std::int64_t label);
  std::string add_to(Part& part, const std::vector<Member>& members);

  PrepareOptions options_;
  std::int64_t samples_ = 0;
  std::map<std::int64_t, std::int64_t> of_class_;  // samples so far
  Part train_{"train", "train"}, validation_{"validation", "val"};
  std::vector<std::string> files_;  // their names to be
  std::unique_ptr<NvMeta> notes_;
};

}  // namespace ditto
