#include "core/dataset/split_folders.h"

#include <algorithm>
#include <map>
#include <set>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/formats/names.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;
using formats::part_of_set;
using formats::SetPart;

// Names by what part they say.
struct PartNames {
  std::set<std::string> all;             // of folders alone
  std::string learned, held_out, other;  // one of each
  void add(const std::string& name) {
    const auto part = part_of_set(name);
    auto& one = part == SetPart::learned ? learned : part == SetPart::held_out ? held_out : other;
    if (one.empty()) one = name;
  }
  bool has_both() const { return !learned.empty() && !held_out.empty(); }
  const std::string& any_part() const { return learned.empty() ? held_out : learned; }
};

struct LaidOut {
  std::map<fs::path, PartNames> folders, pictures;  // by the folder that they are in, relative to the set's

  LaidOut(const std::string& folder, const std::vector<fs::path>& all) {
    fs::path last;
    for (const auto& picture : all) {
      const auto inside = picture.lexically_relative(folder);
      pictures[inside.parent_path()].add(inside.stem().string());
      if (inside.parent_path() == last) continue;
      last = inside.parent_path();
      for (auto at = last; !at.empty(); at = at.parent_path())
        if (auto& beside = folders[at.parent_path()]; beside.all.insert(at.filename().string()).second)
          beside.add(at.filename().string());
    }
  }

  const PartNames* inside(const fs::path& folder) const {
    const auto found = folders.find(folder);
    return found == folders.end() ? nullptr : &found->second;
  }

  // "test", which holds "cat" and "dog" as the set does itself.
  std::string part_with_names_beside(const fs::path& where) const {
    const auto& beside = folders.at(where).all;
    for (const auto& name : beside)
      if (const auto* own = inside(where / name); own && part_of_set(name) != SetPart::none)
        if (std::any_of(own->all.begin(), own->all.end(), [&](const auto& one) { return beside.count(one) > 0; }))
          return name;
    return {};
  }

  // Nothing but parts, with folders in them.
  bool is_parts_alone(const fs::path& where) const {
    const auto& names = folders.at(where);
    return where.empty() && names.other.empty() &&
           std::any_of(names.all.begin(), names.all.end(), [&](const auto& name) { return inside(where / name); });
  }

  // Folders of both parts in different places: "A/train" and "B/val". Empty: there are none.
  std::pair<std::string, std::string> apart() const {
    std::pair<std::string, std::string> found;
    for (const auto& [where, names] : folders) {
      if (found.first.empty() && !names.learned.empty()) found.first = (where / names.learned).string();
      if (found.second.empty() && !names.held_out.empty()) found.second = (where / names.held_out).string();
    }
    return found.first.empty() || found.second.empty() ? std::pair<std::string, std::string>() : found;
  }

  // "train" with folders for its classes, beside another folder. Empty: there is none.
  std::string part_with_classes() const {
    const auto found = folders.find({});
    if (found == folders.end()) return {};
    for (const auto& name : found->second.all)
      if (const auto* own = inside(name); own && own->all.size() > 1 && part_of_set(name) != SetPart::none) return name;
    return {};
  }

  // Whether one folder after another leads there, so that it is all of the set.
  bool is_all(fs::path where) const {
    for (; !where.empty(); where = where.parent_path())
      if (folders.at(where.parent_path()).all.size() > 1) return false;
    return true;
  }
};

constexpr const char* kMeant = ", or give --splits-as-classes where all of it is to be learned from, as it lies there";

[[noreturn]] void refuse_layout(const fs::path& where, const std::string& what, const std::string& remedy) {
  throw Error(ErrorKind::config, where.lexically_normal().string(), what, remedy + kMeant);
}

}  // namespace

void refuse_split_folders(const std::string& folder, const std::vector<fs::path>& pictures) {
  const LaidOut set(folder, pictures);
  const auto quoted = [](const std::string& name) { return '"' + shown(name) + '"'; };
  for (const auto& [where, names] : set.folders) {
    const auto place = where.empty() ? fs::path(folder) : fs::path(folder) / where;
    const auto part = (place / names.any_part()).lexically_normal().string();
    const auto remedy = set.is_all(where)
                            ? "name the part to learn from, " + shown(part) +
                                  ", of which --validation 0.05 holds a share out (`ditto init` does so by itself)"
                            : std::string("put the parts to learn from into a folder of their own, and name that");
    if (names.has_both())
      refuse_layout(place,
                    "holds " + quoted(names.learned) + " and " + quoted(names.held_out) +
                        ", the parts of a set that are learned from and held out, and no classes",
                    remedy);
    if (set.is_parts_alone(where))
      refuse_layout(place, "holds " + quoted(names.any_part()) + " alone, a part of a set and no class", remedy);
    if (const auto beside = set.part_with_names_beside(where); !beside.empty())
      refuse_layout(place,
                    "holds " + quoted(beside) + " beside folders that are in it too: a part of the set, and no class",
                    "put it into a folder of its own");
  }
  if (const auto [learned, held_out] = set.apart(); !learned.empty())
    refuse_layout(folder,
                  "holds " + quoted(learned) + " and " + quoted(held_out) +
                      ", the parts of a set that are learned from and held out, and no classes",
                  "put the parts to learn from into a folder of their own, and name that");
  if (const auto part = set.part_with_classes(); !part.empty())
    refuse_layout(folder, "holds " + quoted(part) + ", a part of a set with folders for its classes, beside others",
                  "name the part to learn from, " + shown((fs::path(folder) / part).lexically_normal().string()) +
                      ", of which --validation 0.05 holds a share out");
  for (const auto& [where, names] : set.pictures)
    if (names.has_both() && names.other.empty())
      refuse_layout(fs::path(folder) / where,
                    "holds " + quoted(names.learned) + " and " + quoted(names.held_out) +
                        ", pictures to learn from and pictures held out by their names",
                    "put each part into a folder of its own, and name the one to learn from");
}

}  // namespace ditto
