#include "core/train/resume.h"

#include <algorithm>

#include <ditto/error.h>

namespace ditto {

ChangeKind change_kind(const std::string& key) {
  const auto in = [&](std::initializer_list<const char*> prefixes) {
    return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* prefix) { return key.starts_with(prefix); });
  };
  if (in({"model.", "objective.", "scheduler.", "encoder.", "data.", "loader.shuffle", "loader.flip", "run.batch",
          "run.seed"}))
    return ChangeKind::learning;
  if (in({"parallel.timeout_s", "parallel.hang_s"})) return ChangeKind::harmless;
  if (in({"parallel.replicate", "parallel.shard", "parallel.prefetch", "parallel.pipeline", "parallel.virtual_stages",
          "parallel.recompute"}))
    return ChangeKind::sharing;
  if (in({"run.threads", "run.precision", "run.device", "run.micro_batch", "run.deterministic", "kernels.",
          "plugins.kernels", "parallel."}))
    return ChangeKind::rounding;
  return ChangeKind::harmless;
}

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
