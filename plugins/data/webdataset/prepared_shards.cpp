#include "prepared_shards.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include <ditto/error.h>
#include <ditto/text.h>

#include <ditto/formats/names.h>
#include <ditto/formats/tar.h>
#include "class_notes.h"
#include "contents.h"

namespace webdataset {

namespace {

namespace fs = std::filesystem;
namespace formats = ditto::formats;
using ditto::Error;
using ditto::ErrorKind;

constexpr std::uint64_t kEndMark = 1024, kMostBytes = 256 << 20;
constexpr std::int64_t kEndsOf =
    16384;  // samples whose ends the fingerprint has, evenly spread: others would take long
constexpr const char* kRemedy = "index the set again: `energon prepare --tar-index-only`";

void keep_parts(formats::TarIndex& tar) {
  std::erase_if(tar.members, [](const formats::TarMember& member) { return !formats::is_sample_part(member.name); });
}

// A part of a file, as an archive of its own.
class Part final : public formats::RemoteBytes {
 public:
  Part(std::shared_ptr<const formats::RandomFile> file, Range range) : file_(std::move(file)), range_(range) {}
  std::uint64_t size() const override { return range_.size; }
  void read(std::uint64_t offset, std::span<std::byte> into, std::string_view where) const override {
    file_->read(range_.offset + offset, into, where);
  }

 private:
  std::shared_ptr<const formats::RandomFile> file_;
  Range range_;
};

std::vector<std::string> paths_of(const EnergonSet& set, const std::vector<PreparedShard>& shards,
                                  const std::string& suffix) {
  std::vector<std::string> paths;
  for (const auto& shard : shards) paths.push_back((fs::path(set.folder) / shard.name).string() + suffix);
  return paths;
}

}  // namespace

PreparedShards::PreparedShards(const EnergonSet& set, std::vector<PreparedShard> shards, Wanted wanted,
                               const Store& store)
    : wanted_(std::move(wanted)),
      uuid_(uuid_of(set, store)),
      tars_(paths_of(set, shards, ""), store),
      indices_(paths_of(set, shards, ".idx"), store) {
  for (auto& shard : shards) shards_.push_back({std::move(shard), {}, {}, false, {}});
  refuse_twice(set.folder);
  for_each_shard(shards_.size(), [this](std::size_t i) { open(i); });
  first_.push_back(0);
  for (const auto& shard : shards_)
    first_.push_back(first_.back() + shard.told.samples - static_cast<std::int64_t>(shard.excluded.size()));
  for (const auto& shard : shards_)
    if (!shard.warning.empty()) warnings_.push_back(shard.warning);
  std::size_t without = 0;
  for (const auto& shard : shards_) without += shard.was_indexed_here ? 1 : 0;
  if (without > 0)
    warnings_.push_back(set.folder + ": " + std::to_string(without) + " of " + std::to_string(shards_.size()) +
                        " shards have no index (NAME.tar.idx), and were indexed here");
  if (first_.back() == 0)
    throw Error(ErrorKind::data, set.folder, "the part of the split that is asked for has no samples",
                "choose another part, or split the set anew");
  compare_classes();
}

void PreparedShards::refuse_twice(const std::string& folder) const {
  std::map<std::string, std::string> seen;
  for (const auto& path : tars_.paths())
    if (const auto [first, is_new] = seen.emplace(formats::identity_of(path), path); !is_new)
      throw Error(ErrorKind::data, folder,
                  "its split names the shard \"" + path + "\" twice" +
                      (first->second == path ? "" : ", also as \"" + first->second + "\""),
                  "name it once");
}

// Of a few samples, evenly spread, the notes: a set opens without reading more.
void PreparedShards::compare_classes() {
  constexpr std::int64_t kLooked = 32;
  if (!wanted_.label.wanted() || is_url(tars_.paths().front())) return;
  std::vector<ClassNote> classes;
  const auto looked = std::min(kLooked, size());
  for (std::int64_t i = 0; i < looked; ++i) try {
      const auto raw = read(i * size() / looked);
      if (!raw.label_from || raw.notes.empty()) continue;
      const auto label = label_in(raw.label, *raw.label_from, raw.place(raw.label_from->extension));
      if (auto note = class_note(label, raw.notes, raw.place("json"))) classes.push_back(std::move(*note));
    } catch (const Error&) {  // it is a bad sample once it is read
    }
  notes_ = compare_class_notes(classes, wanted_.names);
}

void PreparedShards::open(std::size_t i) {
  auto& shard = shards_[i];
  const auto &tar = tars_.paths()[i], &index = indices_.paths()[i];
  if (!tars_.store().has(tar))
    throw Error(ErrorKind::data, tar, "is a shard of the set, and is not there",
                "bring it back, or prepare the set anew");
  const auto expected = static_cast<std::uint64_t>(shard.told.samples);
  const auto refuse = [&](const std::string& where, std::uint64_t samples) {
    throw Error(ErrorKind::data, where,
                "has " + std::to_string(samples) + " samples, and .info counts " + std::to_string(expected), kRemedy);
  };
  const bool has_index = indices_.store().has(index);
  if (has_index) {
    const auto file = indices_.get(i);
    const auto bytes = file->size();
    if (bytes != 8 * (expected + 1)) refuse(index, bytes / 8 - std::min<std::uint64_t>(bytes / 8, 1));
    if (is_url(index)) {  // a request for each sample's place would take as long as the sample
      shard.starts.resize(expected + 1);
      file->read(0, std::as_writable_bytes(std::span(shard.starts)));
    }
    look_behind_index(i);
    if (shard.told.excluded_keys.empty()) return;
  }
  shard.was_indexed_here = !has_index;
  auto archive = formats::index_tar(*tars_.store().open_to_scan(tar));
  keep_parts(archive);
  std::string last;
  std::int64_t number = -1;
  for (const auto& member : archive.members) {
    const auto key = formats::split_member_name(member.name).key;
    if (number >= 0 && key == last) continue;
    last = key;
    ++number;
    if (!has_index) shard.starts.push_back(member.header);
    if (shard.told.excluded_keys.count(key)) shard.excluded.push_back(number);
  }
  if (static_cast<std::uint64_t>(number + 1) != expected) refuse(tar, static_cast<std::uint64_t>(number + 1));
  if (!has_index) shard.starts.push_back(archive.end);
}

// Samples that were put behind an index's last (by `cat`, `tar -A` or `tar -r`) are nowhere else.
void PreparedShards::look_behind_index(std::size_t i) {
  auto& shard = shards_[i];
  const auto& path = tars_.paths()[i];
  if (is_url(path)) return;                    // it takes requests
  const auto file = tars_.store().open(path);  // not kept: nobody may ever read of this shard
  const auto last = (place_in_index(i, shard.told.samples) + 511) / 512 * 512;
  if (last >= file->size()) return;
  const auto more = [&](const std::string& what) {
    shard.warning = path + ": behind the last sample of its index " + what + "; " + kRemedy;
  };
  try {
    auto rest = formats::index_tar(
        *formats::RandomFile::over(std::make_shared<Part>(file, Range{last, file->size() - last}), path),
        formats::OnDamage::report);
    keep_parts(rest);
    if (!rest.members.empty())
      more("come " + std::to_string(rest.members.size()) + " members more, the first \"" +
           ditto::shown(rest.members.front().name) + "\", which are not read");
    else if (!rest.damage.empty())
      more("lie " + std::to_string(file->size() - last) + " bytes that are not read");
  } catch (const Error&) {  // no archive at all
    more("lie " + std::to_string(file->size() - last) + " bytes that are not read");
  }
}

std::uint64_t PreparedShards::place_in_index(std::size_t i, std::int64_t number) const {
  const auto& starts = shards_[i].starts;
  if (!starts.empty()) return starts[static_cast<std::size_t>(number)];
  std::uint64_t place = 0;
  indices_.get(i)->read(8 * static_cast<std::uint64_t>(number), std::as_writable_bytes(std::span(&place, 1)));
  return place;
}

Range PreparedShards::range_of(std::size_t i, std::int64_t number) const {
  const std::array ends{place_in_index(i, number), place_in_index(i, number + 1)};
  const auto size = tars_.get(i)->size();
  if (ends[0] >= ends[1] || ends[1] > size)
    throw Error(ErrorKind::data, shards_[i].told.name + ": sample " + std::to_string(number),
                "lies at bytes " + std::to_string(ends[0]) + " to " + std::to_string(ends[1]) +
                    " by the index, and the shard has " + std::to_string(size),
                kRemedy);
  if (ends[1] - ends[0] > kMostBytes)
    throw Error(
        ErrorKind::data, shards_[i].told.name + ": sample " + std::to_string(number),
        "has " + std::to_string(ends[1] - ends[0]) + " bytes; at most " + std::to_string(kMostBytes) + " are read");
  return {ends[0], ends[1] - ends[0]};
}

RawSample PreparedShards::read(std::int64_t index) const {
  const auto above = std::upper_bound(first_.begin(), first_.end(), index);
  const auto shard = static_cast<std::size_t>(above - first_.begin()) - 1;
  std::int64_t number = index - first_.at(shard);
  for (const auto excluded : shards_[shard].excluded) number += excluded <= number ? 1 : 0;

  const auto range = range_of(shard, number);
  RawSample raw;
  raw.shard = shards_[shard].told.name;
  const auto where = raw.shard + ": sample " + std::to_string(number);
  auto& bytes = raw.bytes.emplace_back(range.size + kEndMark);  // an archive of its own
  tars_.get(shard)->read(range.offset, std::span(bytes).first(range.size), where);
  const auto archive = formats::index_tar(bytes, where);
  const auto samples = formats::shard_samples(archive, where);
  if (samples.size() != 1)
    throw Error(ErrorKind::data, where, "the index points at " + std::to_string(samples.size()) + " samples", kRemedy);
  const auto& sample = samples.front();
  raw.key = sample.key;
  const auto left_out = formats::parts_left_out(archive);
  const auto why = [&](const std::string& extension) {
    const auto found = left_out.find(sample.key + "." + extension);
    return found == left_out.end() ? std::string() : ": this member of it " + found->second;
  };
  const auto part = [&](const formats::ShardMember& member) {
    return std::span<const std::byte>(bytes).subspan(member.offset, member.size);
  };
  if (const auto* member = sample.find("json")) raw.notes = part(*member);
  for (const auto& extension : wanted_.image)
    if (const auto* member = sample.find(extension); member && raw.extension.empty()) {
      raw.extension = extension;
      raw.image = part(*member);
    }
  if (raw.extension.empty())
    throw Error(ErrorKind::data, raw.place(wanted_.image.front()),
                "is not in the shard: the sample has no picture" + why(wanted_.image.front()),
                "set data.image to what its pictures end with");
  // Of a place inside of a JSON text the next one is tried where it lacks it, as Energon does.
  const auto find = [&](const TextPlace& wanted, std::span<const std::byte>& into) -> const Place* {
    for (const auto& place : wanted.any_of) {
      const auto* member = sample.find(place.extension);
      if (!member) continue;
      into = part(*member);
      const std::string_view text(reinterpret_cast<const char*>(into.data()), into.size());
      if (place.path.empty() || &place == &wanted.any_of.back() ||
          formats::json_has(text, place.path, raw.place(place.extension)))
        return &place;
    }
    if (!wanted.wanted()) return nullptr;
    throw Error(ErrorKind::data, raw.place(wanted.extension()),
                "is not in the shard beside the sample's picture" + why(wanted.extension()),
                "set data.label or data.caption to what is there (\"none\": not used)");
  };
  raw.label_from = find(wanted_.label, raw.label);
  raw.caption_from = find(wanted_.caption, raw.caption);
  if (!wanted_.text.empty()) {
    const auto* member = sample.find(wanted_.text);
    if (!member)
      throw Error(ErrorKind::data, raw.place(wanted_.text), "is not in the shard beside the sample's picture",
                  "set data.text to what is there (\"none\": not used)");
    raw.text = part(*member);
  }
  return raw;
}

std::string PreparedShards::names() const {
  std::string text = '\n' + uuid_;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    text += '\n' + shards_[i].told.name + ' ' + std::to_string(shards_[i].told.samples) + ' ' +
            std::to_string(is_url(tars_.paths()[i]) ? tars_.get(i)->size() : fs::file_size(tars_.paths()[i]));
    for (const auto& key : shards_[i].told.excluded_keys) text += '\n' + key;
  }
  return text;
}

std::string PreparedShards::contents() const {
  const auto step = std::max<std::int64_t>((size() + kEndsOf - 1) / kEndsOf, 1);
  return hash_of_files(tars_) + hash_of_ends(tars_, [&](std::size_t shard, const TakeRange& take) {
           for (std::int64_t number = 0; number < shards_[shard].told.samples; number += step) try {
               const auto range = range_of(shard, number);
               const auto sample = std::make_shared<Part>(tars_.get(shard), range);
               for (const auto& member :
                    formats::index_tar(*formats::RandomFile::over(sample, ""), formats::OnDamage::report).members)
                 take({range.offset + member.offset, member.size});
             } catch (const Error&) {  // it is a bad sample
             }
         });
}

}  // namespace webdataset
