#include "core/data/split_folders.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <string_view>

#include <ditto/error.h>

namespace ditto {

namespace {

namespace fs = std::filesystem;

enum class Part { none, learned, held_out };

// A part's name may go on with a number or a word of its own: "train2017", "val_split", "test-images".
Part part_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto is = [&](std::string_view word) {
    if (!name.starts_with(word)) return false;
    const std::string_view rest = std::string_view(name).substr(word.size());
    return rest.empty() || std::isalpha(static_cast<unsigned char>(rest.front())) == 0;
  };
  constexpr std::array kLearned{"train", "training", "trainset", "trn"};
  constexpr std::array kHeldOut{"val",     "valid",   "validation", "test",     "testing", "testset",
                                "dev",     "eval",    "evaluation", "heldout",  "held-out", "held_out",
                                "holdout", "hold-out", "hold_out",  "valset"};
  if (std::any_of(kLearned.begin(), kLearned.end(), is)) return Part::learned;
  return std::any_of(kHeldOut.begin(), kHeldOut.end(), is) ? Part::held_out : Part::none;
}

}  // namespace

void refuse_split_folders(const std::string& folder, const std::vector<fs::path>& pictures) {
  std::map<fs::path, std::set<std::string>> inside;  // folders with pictures below them, by the folder that they are in
  for (const auto& picture : pictures)
    for (fs::path at = picture.lexically_relative(folder).parent_path(); !at.empty() && at != "."; at = at.parent_path())
      inside[at.parent_path()].insert(at.filename().string());
  for (const auto& [where, names] : inside) {
    std::string learned, held_out, other;
    bool has_folders = false;
    for (const auto& name : names) {
      const auto part = part_of(name);
      (part == Part::learned ? learned : part == Part::held_out ? held_out : other) = name;
      has_folders = has_folders || inside.count(where / name) > 0;
    }
    const bool is_one_part = where.empty() && other.empty() && has_folders;
    if (!is_one_part && (learned.empty() || held_out.empty())) continue;
    const auto first = (fs::path(folder) / where / (learned.empty() ? held_out : learned)).lexically_normal().string();
    throw Error(ErrorKind::config, (fs::path(folder) / where).lexically_normal().string(),
                learned.empty() || held_out.empty()
                    ? "holds \"" + (learned.empty() ? held_out : learned) + "\" alone, a part of a set and no class"
                    : "holds \"" + learned + "\" and \"" + held_out +
                          "\", the parts of a set that are learned from and held out, and no classes",
                "give the part to learn from, " + first +
                    ", with --validation 0.05 for a share of it that is held out, or each part by itself");
  }
}

}  // namespace ditto
