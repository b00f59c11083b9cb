#include "core/dataset/inspect.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include <ditto/error.h>
#include <ditto/text.h>
#include <ditto/video_decoder.h>

#include "core/formats/archive/shard.h"
#include "core/formats/file.h"
#include "core/formats/junk_name.h"
#include "core/formats/limits.h"
#include "core/formats/names.h"
#include "core/formats/picture/picture.h"
#include "core/formats/picture/picture_resize.h"
#include "core/formats/tensor/saved_tensor.h"
#include "core/formats/text/json.h"
#include "core/formats/text/utf8.h"
#include "core/formats/video_name.h"
#include "core/sample/grid.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;
using formats::ShardMember;

constexpr std::array<const char*, 9> kPictures{"png", "jpg", "jpeg", "webp", "avif", "tif", "tiff", "gif", "bmp"};

bool is_picture(const std::string& extension) {
  return std::find(kPictures.begin(), kPictures.end(), extension) != kPictures.end();
}

std::string nearest_aspect(const formats::Picture& picture) {
  static constexpr std::array<std::pair<int, int>, 11> kAspects{
      {{1, 3}, {1, 2}, {9, 16}, {2, 3}, {3, 4}, {1, 1}, {4, 3}, {3, 2}, {16, 9}, {2, 1}, {3, 1}}};
  const double log = std::log(static_cast<double>(picture.width) / picture.height);
  const auto away = [&](const auto& aspect) {
    return std::abs(log - std::log(static_cast<double>(aspect.first) / aspect.second));
  };
  const auto nearest = std::min_element(kAspects.begin(), kAspects.end(),
                                        [&](const auto& a, const auto& b) { return away(a) < away(b); });
  return std::to_string(nearest->first) + ":" + std::to_string(nearest->second);
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What prepare wrote there, and other programs too: captions.
bool look_at_notes(const formats::ShardSample& sample, const std::vector<std::byte>& bytes, const std::string& where,
                   ShardReport& report) {
  const auto notes = formats::parse_json(text_of(bytes), where, ErrorKind::data);
  if (!notes.is_object()) return false;
  const auto text = [&](const char* name) {
    const auto it = notes.find(name);
    return it != notes.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  if (const auto file = text("file"); !file.empty()) report.files.emplace_back(sample.key, file);
  return !text("text").empty() || !text("caption").empty();
}

void look_at_picture(const std::vector<std::byte>& bytes, const std::string& where, Depth depth, ShardReport& report) {
  const auto picture =
      depth == Depth::whole ? formats::decode_picture(bytes, where) : formats::picture_size(bytes, where);
  ++report.sizes[std::to_string(picture.height) + " x " + std::to_string(picture.width) + " x " +
                 std::to_string(picture.channels)];
  ++report.aspects[nearest_aspect(picture)];
}

void look_at_tensor(const std::vector<std::byte>& bytes, const std::string& where, Depth depth, ShardReport& report) {
  const auto shape = depth == Depth::whole ? formats::read_saved_tensor(bytes, where).shape
                                           : formats::saved_tensor_shape(bytes, where).shape;
  std::string text;
  for (const auto side : shape) text += (text.empty() ? "" : " x ") + std::to_string(side);
  ++report.tensors[text];
}

// All of its frames, one after another.
void look_at_video(const std::vector<std::byte>& bytes, const VideoDecoder& decoder, const std::string& where,
                   ShardReport& report) {
  const auto video =
      decoder.open({where, bytes.size(), [&](std::uint64_t offset, std::span<std::byte> into) {
                      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
                    }});
  const auto frames = video->frames();
  video->decode({0, frames, 1}, [](const VideoFrame&) {});
  ++report.videos[std::to_string(frames) + " x " + std::to_string(video->height()) + " x " +
                  std::to_string(video->width())];
}

// What samples are held against, besides themselves.
struct Against {
  Depth depth;
  std::shared_ptr<VideoDecoder> decoder;  // null: videos are not decoded
  std::vector<std::string> classes;       // that classes.json beside the shard names; none: there is no such file
};

// The class's name by its number, where both stand there.
void look_at_class(std::int64_t label, const std::vector<std::byte>& notes, const std::string& where,
                   const Against& against, ShardReport& report) {
  const auto json = formats::parse_json(text_of(notes), where, ErrorKind::data);
  const auto it = json.is_object() ? json.find("class") : json.end();
  if (!json.is_object() || it == json.end() || !it->is_string()) return;
  const auto name = it->get<std::string>();
  report.classes.emplace(label, name);
  const auto number = static_cast<size_t>(label);
  if (number < against.classes.size() && !formats::is_same_name(against.classes[number], name))
    throw Error(ErrorKind::data, where,
                "calls label " + std::to_string(label) + " \"" + shown(name) +
                    "\", and classes.json beside the shard \"" + shown(against.classes[number]) + "\"");
}

void check_label(std::int64_t label, const std::vector<std::string>& classes, const std::string& where) {
  if (!classes.empty() && label >= static_cast<std::int64_t>(classes.size()))
    throw Error(ErrorKind::data, where,
                "is " + std::to_string(label) + ", and classes.json beside the shard names " +
                    std::to_string(classes.size()) + " classes: 0 to " + std::to_string(classes.size() - 1));
}

void look_at(const formats::ShardSample& sample, const formats::RandomFile& file, const Against& against,
             ShardReport& report) {
  const auto depth = against.depth;
  bool has_caption = false;
  std::int64_t label = -1;
  for (const ShardMember& member : sample.members) {
    ++report.members[member.extension];
    const std::string where = report.path + ":" + sample.key + "." + member.extension;
    const auto bytes = [&] { return formats::read_member(file, member.offset, member.size, where); };
    try {
      if (is_picture(member.extension)) {
        look_at_picture(bytes(), where, depth, report);
      } else if (formats::is_tensor_name(member.extension)) {
        look_at_tensor(bytes(), where, depth, report);
      } else if (against.decoder && formats::is_video_name(member.extension)) {
        look_at_video(bytes(), *against.decoder, where, report);
      } else if (member.extension == "cls") {
        label = formats::parse_label(text_of(bytes()), where);
        ++report.labels[label];
        check_label(label, against.classes, where);
      } else if (member.extension == "txt") {
        const bool has_text =
            depth == Depth::whole ? !formats::plain_text(text_of(bytes()), where).empty() : member.size > 0;
        has_caption = has_caption || has_text;
      } else if (member.extension == "json") {
        const auto notes = bytes();
        has_caption = look_at_notes(sample, notes, where, report) || has_caption;
        if (label >= 0) look_at_class(label, notes, where, against, report);
      }
    } catch (const Error& error) {
      report.problems.emplace_back(error.what());
    }
  }
  report.captions += has_caption ? 1 : 0;
}

// Where most samples have a member of a kind, one without it is a problem: a run would refuse it.
void find_missing(const std::vector<formats::ShardSample>& samples, const std::map<std::string, std::string>& left_out,
                  ShardReport& report) {
  const auto has_picture = [](const auto& sample) {
    return std::any_of(sample.members.begin(), sample.members.end(), [](const auto& m) {
      return is_picture(m.extension) || formats::is_tensor_name(m.extension) || formats::is_video_name(m.extension);
    });
  };
  for (const auto& sample : samples) {
    const std::string where = report.path + ":" + sample.key;
    if (!has_picture(sample)) report.problems.push_back(where + ": has no picture, latent or video");
    for (const char* wanted : {"cls", "txt", "json"})
      if (2 * report.members[wanted] > report.samples && !sample.find(wanted)) {
        const auto name = sample.key + "." + wanted;
        const auto why = left_out.find(name);
        report.problems.push_back(where + ": has no member \"" + name + "\", most samples have one" +
                                  (why == left_out.end() ? "" : " (it " + why->second + ")"));
      }
  }
  std::erase_if(report.members, [](const auto& entry) { return entry.second == 0; });
}

std::vector<std::string> classes_of_shard(const std::string& path, ShardReport& report) {
  const auto file = (fs::path(path).parent_path() / "classes.json").string();
  if (!fs::exists(file)) return {};
  try {
    const auto list = formats::parse_json(formats::read_file(file, ErrorKind::data, formats::limits::kRecipeBytes),
                                          file, ErrorKind::data);
    if (list.is_array() && std::all_of(list.begin(), list.end(), [](const auto& name) { return name.is_string(); }))
      return list.get<std::vector<std::string>>();
    report.problems.push_back(file + ": is no list of names");
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
  }
  return {};
}

bool has_videos(const std::vector<formats::ShardSample>& samples) {
  return std::any_of(samples.begin(), samples.end(), [](const auto& sample) {
    return std::any_of(sample.members.begin(), sample.members.end(),
                       [](const auto& member) { return formats::is_video_name(member.extension); });
  });
}

}  // namespace

ShardReport inspect_shard(const std::string& path, Depth depth,
                          const std::function<std::shared_ptr<VideoDecoder>()>& decoder) {
  ShardReport report;
  report.path = path;
  const auto file = formats::RandomFile::open(path);
  report.bytes = file->size();
  const auto tar = formats::index_tar(path, formats::OnDamage::report);
  if (!tar.damage.empty()) report.problems.push_back(path + ": " + tar.damage);
  for (const auto& member : tar.members)
    if (!formats::is_meant_part(member.name)) ++report.others[shown(member.name, 200)];
  for (const auto& one : tar.left_out) ++report.unread[shown(one.name, 200) + " " + one.why];
  const auto samples =
      formats::shard_samples(tar, path, {formats::is_meant_part, [&](const formats::TarMember&, const Error& error) {
                                           report.problems.emplace_back(error.what());
                                           return false;
                                         }});
  report.samples = static_cast<std::int64_t>(samples.size());
  Against against{depth, {}, {}};
  if (depth == Depth::whole) against.classes = classes_of_shard(path, report);
  if (depth == Depth::whole && decoder && has_videos(samples)) against.decoder = decoder();
  for (const auto& sample : samples) look_at(sample, *file, against, report);
  find_missing(samples, formats::parts_left_out(tar), report);
  return report;
}

formats::Picture contact_sheet(const std::vector<std::string>& shards, int64_t pictures) {
  constexpr int kCell = 96;
  std::vector<std::pair<size_t, formats::ShardSample>> samples;
  for (size_t i = 0; i < shards.size(); ++i)
    for (auto& sample : formats::shard_samples(formats::index_tar(shards[i], formats::OnDamage::report), shards[i],
                                               {formats::is_meant_part}))
      samples.emplace_back(i, std::move(sample));
  const auto all = static_cast<int64_t>(samples.size());
  std::vector<formats::Picture> cells;
  for (int64_t k = 0; k < std::min(all, pictures); ++k) {
    const auto& [shard, sample] = samples[static_cast<size_t>(k * all / std::min(all, pictures))];
    for (const auto& member : sample.members) try {
        if (!is_picture(member.extension)) continue;
        const auto where = shards[shard] + ":" + sample.key + "." + member.extension;
        const auto bytes =
            formats::read_member(*formats::RandomFile::open(shards[shard]), member.offset, member.size, where);
        auto picture = formats::decode_picture(bytes, where, {.covers = kCell});
        cells.push_back(std::min(picture.width, picture.height) >= kCell
                            ? formats::cover(std::move(picture), kCell, kCell)
                            : std::move(picture));
        break;
      } catch (const Error&) {  // its place stays out: verify names it
      }
  }
  if (cells.empty())
    throw Error(ErrorKind::data, shards.front(), "holds no picture that decodes", "look with `ditto data verify`");
  return report::make_sheet(cells, {.min_cell = kCell});
}

std::vector<std::string> shards_in(const std::string& folder) {
  std::vector<std::string> shards;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (std::error_code gone; it->is_regular_file(gone) && it->path().extension() == ".tar" &&
                              !formats::is_junk_name(it->path().filename().string()))
      shards.push_back(it->path().string());
  if (error) throw Error(ErrorKind::config, folder, "cannot be read: " + error.message(), "check the path");
  std::sort(shards.begin(), shards.end());
  return shards;
}

std::vector<std::string> shards_named(const std::vector<std::string>& paths) {
  std::vector<std::string> shards;
  for (const auto& path : paths) {
    const auto named = fs::is_directory(path) ? shards_in(path) : std::vector{path};
    shards.insert(shards.end(), named.begin(), named.end());
  }
  if (shards.empty())
    throw Error(ErrorKind::config, paths.empty() ? "SHARDS" : paths.front(), "holds no .tar file",
                "name shards, or folders with shards");
  return shards;
}

}  // namespace ditto
