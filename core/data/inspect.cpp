#include "core/data/inspect.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <ditto/error.h>

#include "core/formats/picture.h"
#include "core/formats/shard.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;
using formats::ShardMember;

constexpr std::array<const char*, 4> kPictures{"png", "jpg", "jpeg", "webp"};

bool is_picture(const std::string& extension) {
  return std::find(kPictures.begin(), kPictures.end(), extension) != kPictures.end();
}

void look_at_picture(const std::vector<std::byte>& bytes, const std::string& where, Depth depth, ShardReport& report) {
  const auto picture =
      depth == Depth::whole ? formats::decode_picture(bytes, where) : formats::picture_size(bytes, where);
  ++report.sizes[std::to_string(picture.height) + " x " + std::to_string(picture.width) + " x " +
                 std::to_string(picture.channels)];
}

void look_at_label(const std::vector<std::byte>& bytes, const std::string& where, ShardReport& report) {
  ++report.labels[formats::parse_label({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where)];
}

void look_at(const formats::ShardSample& sample, const formats::RandomFile& file, Depth depth, ShardReport& report) {
  for (const ShardMember& member : sample.members) {
    ++report.members[member.extension];
    const std::string where = report.path + ":" + sample.key + "." + member.extension;
    try {
      if (is_picture(member.extension)) {
        look_at_picture(formats::read_member(file, member.offset, member.size, where), where, depth, report);
      } else if (member.extension == "cls") {
        look_at_label(formats::read_member(file, member.offset, member.size, where), where, report);
      }
    } catch (const Error& error) {
      report.problems.emplace_back(error.what());
    }
  }
}

// Where most samples have a member of a kind, one without it is a problem: a run would refuse it.
void find_missing(const std::vector<formats::ShardSample>& samples, ShardReport& report) {
  const auto has_picture = [](const auto& sample) {
    return std::any_of(sample.members.begin(), sample.members.end(),
                       [](const auto& m) { return is_picture(m.extension); });
  };
  for (const auto& sample : samples) {
    const std::string where = report.path + ":" + sample.key;
    if (!has_picture(sample)) report.problems.push_back(where + ": has no picture");
    for (const char* wanted : {"cls", "txt", "json"})
      if (2 * report.members[wanted] > report.samples && !sample.find(wanted))
        report.problems.push_back(where + ": has no member \"" + sample.key + "." + wanted +
                                  "\", most samples have one");
  }
  std::erase_if(report.members, [](const auto& entry) { return entry.second == 0; });
}

}  // namespace

ShardReport inspect_shard(const std::string& path, Depth depth) {
  ShardReport report;
  report.path = path;
  const auto file = formats::RandomFile::open(path);
  report.bytes = file->size();
  const auto tar = formats::index_tar(path, formats::OnDamage::report);
  if (!tar.damage.empty()) report.problems.push_back(path + ": " + tar.damage);
  std::vector<formats::ShardSample> samples;
  try {
    samples = formats::shard_samples(tar, path);
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
    return report;
  }
  report.samples = static_cast<std::int64_t>(samples.size());
  for (const auto& sample : samples) look_at(sample, *file, depth, report);
  find_missing(samples, report);
  return report;
}

std::vector<std::string> shards_named(const std::vector<std::string>& paths) {
  std::vector<std::string> shards;
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) {
      shards.push_back(path);
      continue;
    }
    const auto before = static_cast<std::ptrdiff_t>(shards.size());
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.is_regular_file() && entry.path().extension() == ".tar") shards.push_back(entry.path().string());
    std::sort(shards.begin() + before, shards.end());
  }
  if (shards.empty())
    throw Error(ErrorKind::config, paths.empty() ? "SHARDS" : paths.front(), "holds no .tar file",
                "name shards, or folders with shards");
  return shards;
}

}  // namespace ditto
