#include "core/train/resume.h"

#include <algorithm>

#include <ditto/error.h>

namespace ditto {

std::vector<std::string> compare_recipes(const formats::Table& saved, const formats::Table& now,
                                         const std::vector<std::string>& allowed) {
  std::vector<std::string> lines;
  for (const auto& change : differences(saved, now)) {
    if (change.key.starts_with("record.")) continue;
    const auto kind = change_kind(change.key);
    std::string line = change.key + ": " + change.before + " -> " + change.after;
    if (kind == ChangeKind::sharing) line += " (bit for bit with the same micro-batches, else equal within rounding)";
    if (kind == ChangeKind::rounding) line += " (equal within rounding from here on, not bit for bit)";
    const bool is_allowed = std::any_of(allowed.begin(), allowed.end(), [&](const std::string& key) {
      return change.key == key || change.key.starts_with(key + ".");
    });
    if (kind == ChangeKind::learning && !is_allowed)
      throw Error(ErrorKind::config, change.key,
                  "was " + change.before + " in the run to be resumed, and is " + change.after + " now",
                  "it changes what is learned: give --allow-change " + change.key +
                      ", or --resume never and another output folder");
    if (kind == ChangeKind::learning) line += " (allowed)";
    lines.push_back(line);
  }
  return lines;
}

}  // namespace ditto
