#include "shard_index.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include <ditto/error.h>
#include <ditto/text.h>

#include <ditto/formats/junk_name.h>
#include <ditto/formats/names.h>
#include <ditto/formats/saved_tensor.h>
#include <ditto/formats/video_name.h>
#include "braces.h"
#include "class_notes.h"

namespace webdataset {

namespace {

using ditto::Error;
using ditto::ErrorKind;
using ditto::formats::ShardSample;

constexpr std::size_t kThreads = 8;  // mostly waiting for the disk

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

// Whether junk stands where the pattern leaves open what does: what it names itself is meant.
bool stands_for_junk(const std::filesystem::path& pattern, const std::filesystem::path& match) {
  const auto is_named = [](std::string asked, const std::string& found) {
    std::erase(asked, '\\');
    return asked == found;
  };
  for (auto asked = pattern.begin(), found = match.begin(); asked != pattern.end() && found != match.end();
       ++asked, ++found)
    if (ditto::formats::is_junk_name(found->string()) && !is_named(asked->string(), found->string())) return true;
  return false;
}

// The folder is as it is, whatever characters it has.
std::vector<std::string> matches_of(const std::string& folder, const std::string& pattern) {
  std::string as_it_is;
  for (const char c : folder) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) as_it_is += '\\';
    as_it_is += c;
  }
  const auto whole = joined(as_it_is, pattern);
  glob_t found{};
  std::vector<std::string> out;
  if (::glob(whole.c_str(), 0, nullptr, &found) == 0) out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::erase_if(out, [&](const std::string& match) { return stands_for_junk(whole, match); });
  return out;
}

// Labels beyond data.classes.
struct TooLarge {
  std::int64_t count = 0, largest = 0;
  std::string first;  // "train-000000.tar:0007.cls is 9"
};

struct OneShard {
  std::vector<Item> items;
  std::vector<std::string> warnings;
  TooLarge labels;
  std::vector<Range> notes;        // member "json" of each item; of size 0: there is none
  std::vector<ClassNote> classes;  // of the first item of each label that has some
  std::string beside;              // a video or tensor beside a picture that nobody asked for: "0007.mp4"
};

Range range_of(const ditto::formats::ShardMember& member) { return {member.offset, member.size}; }

// A text that is no JSON has it, too: that is said when the sample is read.
bool has_value(const ditto::formats::RandomFile& file, const ditto::formats::ShardMember& member, const Place& place) {
  try {
    const auto bytes = ditto::formats::read_member(file, member.offset, member.size, file.path());
    return ditto::formats::json_has({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, place.path,
                                    file.path());
  } catch (const Error&) {
    return true;
  }
}

// What the sample lacks: "" for nothing, otherwise the extension.
std::string fill(Item& item, const ditto::formats::RandomFile& file, const ShardSample& sample, const Wanted& wanted) {
  for (const auto& extension : wanted.image) {
    if (const auto* member = sample.find(extension)) {
      item.extension = extension;
      item.image = range_of(*member);
      break;
    }
  }
  if (item.extension.empty()) return wanted.image.front();
  // Of a place inside of a JSON text the next one is tried where it lacks it, as Energon does.
  const auto find = [&](const TextPlace& wanted_text, Range& range, std::uint32_t& from) {
    const ditto::formats::ShardMember* found = nullptr;
    for (std::uint32_t i = 0; i < wanted_text.any_of.size(); ++i) {
      const auto& place = wanted_text.any_of[i];
      const auto* member = sample.find(place.extension);
      if (!member) continue;
      found = member;
      from = i;
      if (place.path.empty() || i + 1 == wanted_text.any_of.size() || has_value(file, *member, place)) break;
    }
    if (found) range = range_of(*found);
    return found || !wanted_text.wanted();
  };
  if (!find(wanted.label, item.label, item.label_from)) return wanted.label.extension();
  if (!find(wanted.caption, item.caption, item.caption_from)) return wanted.caption.extension();
  if (!wanted.text.empty()) {
    const auto* member = sample.find(wanted.text);
    if (!member) return wanted.text;
    item.text = range_of(*member);
  }
  return {};
}

// Which of them a mask is the recipe has to say.
void refuse_several_images(const ShardSample& sample, const Wanted& wanted, const std::string& path) {
  constexpr std::array<std::string_view, 7> kOthers{"tif", "tiff", "gif", "bmp", "heic", "jp2", "jxl"};
  if (!wanted.one_image) return;
  std::vector<std::string> there;
  for (const auto& extension : wanted.image)
    if (sample.find(extension)) there.push_back(extension);
  if (there.empty()) return;
  for (const auto& extension : kOthers)
    if (sample.find(std::string(extension))) there.emplace_back(extension);
  if (there.size() < 2) return;
  throw Error(ErrorKind::config, "data.image",
              "does not say which picture is the sample's, and " + file_name(path) + " has " + sample.key + "." +
                  there[0] + " and " + sample.key + "." + there[1],
              "set data.image = [\"" + there[0] + "\"] or [\"" + there[1] + "\"]");
}

// A member that data.image could name as well.
std::string other_kind_beside(const ShardSample& sample, const Wanted& wanted) {
  if (!wanted.one_image) return {};
  for (const auto& member : sample.members)
    if (ditto::formats::is_video_name(member.extension) ||
        (wanted.text.empty() && ditto::formats::is_tensor_name(member.extension)))
      return sample.key + "." + member.extension;
  return {};
}

void check_labels(const ditto::formats::RandomFile& file, const Wanted& wanted, OneShard& shard) {
  const auto& path = file.path();
  std::set<std::int64_t> noted;
  for (std::size_t i = 0; i < shard.items.size(); ++i) {
    Item& item = shard.items[i];
    const auto& from = wanted.label.any_of[item.label_from];
    const auto place = file_name(path) + ":" + item.key + "." + from.extension;
    std::int64_t label = 0;
    try {
      label = label_in(ditto::formats::read_member(file, item.label.offset, item.label.size, place), from, place);
    } catch (const Error&) {
      continue;  // said when the sample is read
    }
    item.label_read = label;
    if (const auto& notes = shard.notes[i]; notes.size > 0 && !is_url(path) && noted.insert(label).second) {
      const auto where = file_name(path) + ":" + item.key + ".json";
      if (auto note = class_note(label, ditto::formats::read_member(file, notes.offset, notes.size, where), where))
        shard.classes.push_back(std::move(*note));
    }
    if (label < wanted.classes) continue;
    if (shard.labels.count++ == 0) shard.labels.first = place + " is " + std::to_string(label);
    shard.labels.largest = std::max(shard.labels.largest, label);
  }
}

void refuse_labels(const std::vector<OneShard>& shards, std::int64_t classes) {
  TooLarge all;
  std::size_t samples = 0;
  for (const auto& shard : shards) {
    if (all.count == 0) all.first = shard.labels.first;
    all.count += shard.labels.count;
    all.largest = std::max(all.largest, shard.labels.largest);
    samples += shard.items.size();
  }
  if (all.count == 0) return;
  throw Error(ErrorKind::config, "data.classes",
              "is " + std::to_string(classes) + ", which allows labels 0 to " + std::to_string(classes - 1) + ", but " +
                  std::to_string(all.count) + " of " + std::to_string(samples) + " labels are larger, up to " +
                  std::to_string(all.largest) + "; the first: " + all.first,
              "set it to the number of classes, or correct the labels");
}

OneShard index_one(const ditto::formats::RandomFile& file, std::uint32_t number, const Wanted& wanted) {
  const auto& path = file.path();
  const auto tar = ditto::formats::index_tar(file, ditto::formats::OnDamage::report);
  const auto samples = ditto::formats::shard_samples(
      tar, path, {ditto::formats::is_meant_part, [&](const ditto::formats::TarMember& member, const Error&) {
                    return wanted.reads(ditto::formats::split_member_name(member.name).extension);
                  }});
  auto left_out = ditto::formats::parts_left_out(tar);
  std::erase_if(left_out, [&](const auto& part) {
    return !wanted.reads(ditto::formats::split_member_name(part.first).extension);
  });
  OneShard out;
  std::size_t without_picture = 0;
  std::string first_without;
  for (const auto& sample : samples) {
    Item item{number, sample.key, {}, {}, {}, {}, {}};
    refuse_several_images(sample, wanted, path);
    const std::string missing = fill(item, file, sample, wanted);
    if (missing.empty()) {
      const auto* notes = sample.find("json");
      out.notes.push_back(notes ? range_of(*notes) : Range{});
      if (out.beside.empty()) out.beside = other_kind_beside(sample, wanted);
      out.items.push_back(std::move(item));
    } else if (!tar.damage.empty() && &sample == &samples.back()) {
      break;  // the damage took the rest of this sample
    } else if (item.extension.empty()) {
      if (without_picture++ == 0) first_without = sample.key;
    } else {
      const auto why = left_out.find(sample.key + "." + missing);
      throw Error(
          ErrorKind::data, path + ":" + sample.key + "." + item.extension,
          "this picture has no member \"" + sample.key + "." + missing + "\" beside it" +
              (why == left_out.end() ? "" : ": that one " + why->second),
          "add it to the shard, or set data.label, data.caption or data.text to what is there (\"none\": not used)");
    }
  }
  if (wanted.label.wanted()) check_labels(file, wanted, out);
  if (!tar.damage.empty())
    out.warnings.push_back(path + ": " + tar.damage + "; " + std::to_string(out.items.size()) +
                           " samples before it kept");
  if (!left_out.empty())
    out.warnings.push_back(path + ":" + ditto::shown(left_out.begin()->first) + " " + left_out.begin()->second + "; " +
                           std::to_string(left_out.size()) + " such members left out");
  if (without_picture > 0)
    out.warnings.push_back(path + ":" + first_without + " has no picture; " + std::to_string(without_picture) +
                           " such samples left out");
  return out;
}

std::vector<OneShard> index_all(ShardIndex& index, const Wanted& wanted, const Store& store) {
  std::vector<OneShard> shards(index.paths.size());
  index.bytes.resize(index.paths.size());
  for_each_shard(index.paths.size(), [&](std::size_t i) {
    const auto file = store.open_to_scan(index.paths[i]);
    index.bytes[i] = file->size();
    shards[i] = index_one(*file, static_cast<std::uint32_t>(i), wanted);
  });
  return shards;
}

}  // namespace

bool Wanted::reads(std::string_view extension) const {
  const auto is_it = [&](const auto& place) { return place.extension == extension; };
  return std::find(image.begin(), image.end(), extension) != image.end() || extension == text ||
         std::any_of(label.any_of.begin(), label.any_of.end(), is_it) ||
         std::any_of(caption.any_of.begin(), caption.any_of.end(), is_it);
}

void for_each_shard(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i; (i = next++) < count;) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < std::min(kThreads, count); ++i) threads.emplace_back(run);
    run();
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

std::string ShardIndex::file_name(std::size_t shard) const { return webdataset::file_name(paths[shard]); }

std::span<const Item> ShardIndex::items_of(std::size_t shard) const {
  const auto [first, last] =
      std::equal_range(items.begin(), items.end(), Item{static_cast<std::uint32_t>(shard), {}, {}, {}, {}, {}, {}},
                       [](const Item& a, const Item& b) { return a.shard < b.shard; });
  return {first, last};
}

std::vector<std::string> expand_shards(const std::vector<std::string>& patterns, const std::string& folder,
                                       const std::string& option) {
  std::vector<std::string> paths;
  std::map<std::string, std::string> seen;
  for (const auto& pattern : patterns) {
    std::vector<std::string> found;
    for (const auto& one : with_braces_expanded(pattern, option))
      for (auto& match : is_url(one) ? std::vector{one} : matches_of(folder, one)) found.push_back(std::move(match));
    if (found.empty())
      throw Error(ErrorKind::config, option, "no file matches \"" + joined(folder, pattern) + "\"",
                  "check the path (a recipe's relative ones start at its folder, those of --set where it is typed; *, "
                  "?, [0-9] and {000..127} are understood)");
    for (const auto& path : found) {
      const auto [first, is_new] = seen.emplace(ditto::formats::identity_of(path), path);
      if (!is_new)
        throw Error(ErrorKind::config, option,
                    "shard \"" + path + "\" is named twice" +
                        (first->second == path ? "" : ", also as \"" + first->second + "\""),
                    "name it once");
      paths.push_back(path);
    }
  }
  return paths;
}

void require_apart(const std::vector<std::string>& learned, const std::vector<std::string>& held_out_patterns,
                   const std::string& folder) {
  const std::string option = "data.validation_shards";
  std::map<std::string, std::string> by_identity;
  for (const auto& path : learned) by_identity.emplace(ditto::formats::identity_of(path), path);
  for (const auto& pattern : held_out_patterns)
    for (const auto& one : with_braces_expanded(pattern, option))
      for (const auto& path : is_url(one) ? std::vector{one} : matches_of(folder, one))
        if (const auto found = by_identity.find(ditto::formats::identity_of(path)); found != by_identity.end())
          throw Error(ErrorKind::config, option,
                      "holds out \"" + path + "\", which data.shards learns from" +
                          (found->second == path ? "" : ", as \"" + found->second + "\""),
                      "name it in one of them");
}

std::vector<std::string> notes_on_shards(const std::vector<std::string>& paths) {
  std::string held_out, other;
  for (const auto& path : paths) {
    using ditto::formats::SetPart;
    auto part = ditto::formats::part_of_set(file_name(path));
    if (part == SetPart::none && !is_url(path))
      part = ditto::formats::part_of_set(std::filesystem::path(path).parent_path().filename().string());
    (part == SetPart::held_out ? held_out : other) = path;
  }
  if (held_out.empty() || other.empty()) return {};
  return {"\"" + ditto::shown(held_out) + "\", held out by its name or its folder's, is learned from as \"" +
          ditto::shown(other) + "\" is: data.shards names both"};
}

std::vector<std::string> folders_of_shards(const std::vector<std::string>& patterns, const std::string& folder,
                                           const std::string& option) {
  std::vector<std::string> folders;
  for (const auto& pattern : patterns)
    for (const auto& one : with_braces_expanded(pattern, option)) {
      const auto above = std::filesystem::path(one).parent_path().string();
      const auto found = is_url(one)     ? std::vector{above}
                         : above.empty() ? std::vector{folder}
                                         : matches_of(folder, above);
      for (const auto& path : found)
        if (std::find(folders.begin(), folders.end(), path) == folders.end()) folders.push_back(path);
    }
  return folders;
}

ShardIndex index_shards(std::vector<std::string> paths, const Wanted& wanted, const Store& store) {
  ShardIndex index;
  index.paths = std::move(paths);
  auto shards = index_all(index, wanted, store);
  refuse_labels(shards, wanted.classes);
  std::vector<ClassNote> classes;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::move(shards[i].classes.begin(), shards[i].classes.end(), std::back_inserter(classes));
    if (index.notes.empty() && !shards[i].beside.empty())
      index.notes.push_back("samples have more than their pictures, which are taken: " + index.file_name(i) + ":" +
                            ditto::shown(shards[i].beside) + "; data.image names what else is to be learned");
  }
  for (auto& note : compare_class_notes(classes, wanted.names)) index.notes.push_back(std::move(note));
  for (auto& shard : shards) {
    std::move(shard.items.begin(), shard.items.end(), std::back_inserter(index.items));
    std::move(shard.warnings.begin(), shard.warnings.end(), std::back_inserter(index.warnings));
  }
  ditto::formats::PartsSeen parts;
  for (const auto& item : index.items) parts.add(item.key);
  if (auto said = parts.sentence(); !said.empty()) index.notes.push_back("of the samples " + said);
  if (index.items.empty())
    throw Error(ErrorKind::data, index.paths.front(),
                "none of the " + std::to_string(index.paths.size()) + " shards holds a whole sample" +
                    (index.warnings.empty() ? "" : " (" + index.warnings.front() + ")"),
                "look inside with `ditto data inspect`");
  return index;
}

}  // namespace webdataset
