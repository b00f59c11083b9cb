// Shards of a set that was prepared by Energon: nothing of them is read until a sample is asked for, so that a million
// samples open as fast as ten.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "energon_set.h"
#include "samples.h"

namespace webdataset {

class PreparedShards final : public Samples {
 public:
  // Throws Error(data) for a shard that is not there, or whose index does not fit.
  PreparedShards(const EnergonSet& set, std::vector<PreparedShard> shards, Wanted wanted, const Store& store);
  std::int64_t size() const override { return first_.back(); }
  RawSample read(std::int64_t index) const override;
  std::vector<std::string> warnings() const override { return warnings_; }
  std::vector<std::string> notes() const override { return notes_; }
  const std::vector<std::string>& shards() const override { return tars_.paths(); }
  std::string names() const override;
  std::string contents() const override;

 private:
  struct Shard {
    PreparedShard told;
    std::vector<std::int64_t> excluded;  // numbers of samples, ascending
    // Of each sample, and the last one's end: where "x.tar.idx" is not there, or on a server.
    std::vector<std::uint64_t> starts;
    bool was_indexed_here = false;
    std::string warning;  // of what lies behind the last sample of its index
  };
  void open(std::size_t shard);
  void look_behind_index(std::size_t shard);
  std::uint64_t place_in_index(std::size_t shard, std::int64_t number) const;
  void refuse_twice(const std::string& folder) const;
  void compare_classes();
  Range range_of(std::size_t shard, std::int64_t number) const;

  Wanted wanted_;
  std::string uuid_;
  std::vector<Shard> shards_;
  std::vector<std::int64_t> first_;  // sample of each shard, and of all
  OpenFiles tars_, indices_;
  std::vector<std::string> warnings_, notes_;
};

}  // namespace webdataset
