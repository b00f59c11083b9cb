#include "core/checkpoint/agree.h"

#include <exception>

#include <ditto/error.h>

#include "core/formats/text/json.h"

namespace ditto::checkpoint {

namespace {

constexpr char kDone = '+', kFailed = '-';

std::string attempt(const std::function<std::string()>& work) {
  try {
    return kDone + work();
  } catch (const std::exception& error) {
    return kFailed + formats::plain_reason(error);
  }
}

}  // namespace

std::vector<std::string> agree(const Group& group, const std::string& where, const std::function<std::string()>& work) {
  std::vector<std::string> results = group.all_gather_text(attempt(work));
  std::string failures;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const bool failed = results[rank].front() == kFailed;
    results[rank].erase(0, 1);
    if (!failed) continue;
    failures += failures.empty() ? "the save failed" : ", and";
    if (results.size() > 1) failures += " on rank " + std::to_string(rank);
    failures += ": " + results[rank];
  }
  if (!failures.empty()) throw Error(ErrorKind::checkpoint, where, failures, "the checkpoints before it are untouched");
  return results;
}

}  // namespace ditto::checkpoint
