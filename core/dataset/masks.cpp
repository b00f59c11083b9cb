#include "core/dataset/masks.h"

#include <array>
#include <map>
#include <string_view>

#include "core/dataset/picture_notes.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

// Of folders, and behind a - or _ of files.
constexpr std::array<std::string_view, 10> kMaskWords{"mask",         "masks",       "label", "labels",      "seg",
                                                      "segmentation", "annotations", "gt",    "groundtruth", "matte"};

bool is_mask_word(const std::string& word) {
  for (const auto known : kMaskWords)
    if (word == known) return true;
  return false;
}

// "a/0" of "a/0_mask"; empty: the name has no such end.
std::string pictured_by(const fs::path& mask) {
  const auto stem = mask.filename().string();
  const auto at = stem.find_last_of("-_");
  if (at == std::string::npos || at == 0 || !is_mask_word(lower_case(stem.substr(at + 1)))) return {};
  return (mask.parent_path() / stem.substr(0, at)).string();
}

// Names without suffixes, below the folders of the first level; by the folder.
using Stems = std::map<std::string, std::map<std::string, const fs::path*>>;

}  // namespace

std::string of_masks(const std::vector<fs::path>& pictures, const fs::path& folder) {
  Stems stems;
  std::map<std::string, const fs::path*> all;
  for (const auto& picture : pictures) {
    const auto name = picture.lexically_relative(folder).replace_extension();
    all.emplace(name.string(), &picture);
    if (name.has_parent_path()) stems[name.begin()->string()].emplace(name.lexically_relative(*name.begin()), &picture);
  }
  long long many = 0;
  std::string first;
  const auto found = [&](const fs::path& mask, const fs::path& of) {
    if (many++ == 0) first = mask.lexically_relative(folder).string() + " of " + of.lexically_relative(folder).string();
  };
  for (const auto& [name, path] : all)
    if (const auto of = all.find(pictured_by(name)); of != all.end()) found(*path, *of->second);
  for (const auto& [top, masks] : stems) {
    if (!is_mask_word(lower_case(top))) continue;
    for (const auto& [name, path] : masks)
      for (const auto& [other, beside] : stems) {
        const auto of = beside.find(name);
        if (is_mask_word(lower_case(other)) || of == beside.end()) continue;
        found(*path, *of->second);
        break;
      }
  }
  if (many == 0) return {};
  return std::to_string(many) +
         (many == 1 ? " picture looks like a mask of another (" : " pictures look like masks of others (") + first +
         "): each is a sample of its own, and is learned from; name the folder of the pictures alone, or move masks "
         "out";
}

}  // namespace ditto
