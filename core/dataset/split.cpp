#include "core/dataset/split.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/dataset/picture_folder.h"
#include "core/dataset/shard_writer.h"
#include "core/formats/archive/shard.h"
#include "core/formats/archive/tar.h"
#include "core/formats/file.h"
#include "core/formats/names.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

struct Numbered {
  uint64_t drawn;
  int64_t number;
  auto operator<=>(const Numbered&) const = default;
};

int64_t label_of(const formats::ShardSample& sample, const formats::RandomFile& file, const std::string& where) {
  const auto* member = sample.find("cls");
  if (!member) return -1;
  const auto bytes = formats::read_member(file, member->offset, member->size, where);
  return formats::parse_label({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where);
}

// What classes.json says in the shards' folders; empty: there is none.
std::string classes_beside(const std::vector<std::string>& shards) {
  std::string first, all;
  for (const auto& shard : shards) {
    const auto file = fs::path(shard).parent_path() / "classes.json";
    if (file == first || !fs::exists(file)) continue;
    auto theirs = formats::read_file(file.string(), ErrorKind::data);
    if (first.empty())
      all = std::move(theirs);
    else if (theirs != all)
      throw Error(ErrorKind::data, file.string(), "names other classes than " + first + ", and labels are numbers",
                  "split the shards of each list by themselves");
    first = file.string();
  }
  return all;
}

// Of a shard to be copied: what is no sample's is named, and nothing of a sample may be left behind.
std::vector<formats::ShardSample> samples_of(const std::string& shard, std::vector<LeftOut>& left_out) {
  const auto tar = formats::index_tar(shard);
  for (const auto& one : tar.left_out)
    if (formats::is_meant_part(one.name))
      throw Error(ErrorKind::data, shard + ":" + shown(one.name), one.why + ", and cannot be copied",
                  "make the shard anew with whole files (`tar --dereference --hard-dereference`)");
  for (const auto& member : tar.members)
    if (!formats::is_meant_part(member.name))
      left_out.push_back({fs::path(shard).filename() / member.name, "files that are no part of a sample"});
  return formats::shard_samples(tar, shard, {formats::is_meant_part});
}

}  // namespace

Prepared split_shards(const std::vector<std::string>& shards, const PrepareOptions& options, uint64_t seed) {
  std::map<std::string, std::string> seen;  // else a sample would be learned from and held out
  for (const auto& shard : shards)
    if (const auto [first, is_new] = seen.emplace(formats::identity_of(shard), shard); !is_new)
      throw Error(ErrorKind::config, shard,
                  "is named twice" + (first->second == shard ? "" : ", also as " + first->second), "name it once");
  const auto classes = classes_beside(shards);
  ShardWriter writer(options);
  std::vector<std::vector<formats::ShardSample>> samples;
  std::map<int64_t, std::vector<Numbered>> of_class;
  std::vector<LeftOut> left_out;
  int64_t all = 0;
  for (const auto& shard : shards) {
    samples.push_back(samples_of(shard, left_out));
    const auto file = formats::RandomFile::open(shard);
    for (const auto& sample : samples.back()) {
      const auto drawn = XXH3_64bits_withSeed(&all, sizeof all, seed);
      of_class[label_of(sample, *file, shard + ":" + sample.key + ".cls")].push_back({drawn, all++});
    }
  }
  std::vector<bool> held(static_cast<size_t>(all));
  for (auto& [label, drawn] : of_class) {
    std::sort(drawn.begin(), drawn.end());
    const auto share = std::floor(static_cast<double>(drawn.size()) * options.validation + 1e-9);
    for (size_t i = 0; i < static_cast<size_t>(share); ++i) held[static_cast<size_t>(drawn[i].number)] = true;
  }
  int64_t number = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto file = formats::RandomFile::open(shards[i]);
    for (const auto& sample : samples[i]) {
      std::vector<std::vector<std::byte>> bytes;
      for (const auto& member : sample.members)
        bytes.push_back(formats::read_member(*file, member.offset, member.size,
                                             shards[i] + ":" + sample.key + "." + member.extension));
      std::vector<ShardWriter::Member> members;
      for (size_t m = 0; m < bytes.size(); ++m) members.push_back({sample.members[m].extension, bytes[m]});
      held[static_cast<size_t>(number)] ? writer.add_to_validation(members) : writer.add_to_train(members);
      ++number;
      if (options.progress) options.progress(number, all);
    }
  }
  if (!classes.empty()) writer.add_file("classes.json", classes);
  auto made = writer.finish();
  made.left_out = sentences(left_out);
  return made;
}

}  // namespace ditto
