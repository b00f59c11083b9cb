#include <filesystem>
#include <fstream>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/reader.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kAbandoned = "abandoned-";

[[noreturn]] void refuse_none(const std::string& path, const Found& found) {
  std::string what = found.skipped.empty() ? "holds no checkpoint" : "holds no checkpoint that can be used: ";
  for (const std::string& line : found.skipped) what += (&line == &found.skipped.front() ? "" : ", ") + line;
  throw Error(ErrorKind::checkpoint, path, what, "give the path of a run, or of one of its checkpoints");
}

// `latest` where the file system has no links is a line that names a folder beside it.
std::string follow_hint(const std::string& path) {
  if (!fs::is_regular_file(path)) return path;
  std::string name;
  std::getline(std::ifstream(path), name);
  return step_of(name) ? (fs::path(path).parent_path() / name).string() : path;
}

std::string plural(size_t count, const char* word) {
  return std::to_string(count) + " " + word + (count == 1 ? "" : "s");
}

}  // namespace

std::vector<std::string> verify(const std::string& path) {
  std::vector<std::string> problems;
  const auto note = [&](auto&& work) {
    try {
      work();
    } catch (const Error& error) {
      problems.push_back(error.what());
    }
  };
  note([&] {
    Reader reader(path);
    for (const FileRecord& file : reader.manifest().files) note([&] { reader.check_file(file.name); });
    for (const auto& [section, tensors] : reader.index().sections)
      for (const auto& [name, tensor] : tensors)
        note([&] {
          for (const auto& part : reader.cover(name, tensor, {Dims(tensor.shape.size(), 0), tensor.shape}))
            if (problems.empty()) reader.view(tensor, part);
        });
  });
  return problems;
}

Found find(const std::string& folder) {
  Found found;
  const Listing listing = list(folder);
  for (auto step = listing.steps.rbegin(); step != listing.steps.rend() && !found.path; ++step) {
    const std::string path = (fs::path(folder) / step->name).string();
    const auto problems = verify(path);
    if (problems.empty()) {
      found.path = path;
    } else {
      found.skipped.push_back(
          "skipped " + step->name + ": " + problems.front() +
          (problems.size() > 1 ? " (and " + plural(problems.size() - 1, "more problem") + ")" : ""));
    }
  }
  for (const std::string& name : listing.unfinished)
    if (step_of(name.substr(0, name.find(".tmp-"))))
      found.skipped.push_back("skipped " + name + ": a save that never ended");
  return found;
}

Found resolve(const std::string& given) {
  const std::string path = follow_hint(given);
  const std::string inner = (fs::path(path) / "checkpoints").string();
  const std::string name = fs::path(path).filename().string();
  if (fs::exists(fs::path(path) / kManifestFile) || step_of(name)) return {path, {}};
  if (fs::is_symlink(path) && !fs::exists(path)) {
    Found found = find(fs::path(path).parent_path().string());
    if (!found.path) refuse_none(path, found);
    found.skipped.insert(found.skipped.begin(), "skipped " + path + ": it points to nothing");
    return found;
  }
  if (!fs::is_directory(path))
    throw Error(ErrorKind::checkpoint, path, "there is no such folder",
                "give the path of a run, or of one of its checkpoints");
  Found found = find(fs::is_directory(inner) ? inner : path);
  if (!found.path) refuse_none(path, found);
  return found;
}

std::vector<std::string> set_aside_later(const std::string& folder, int64_t step) {
  std::vector<std::string> lines;
  for (const StepFolder& later : list(folder).steps) {
    if (later.step <= step) continue;
    const std::string aside = kAbandoned + later.name;
    replace_folder((fs::path(folder) / later.name).string(), (fs::path(folder) / aside).string());
    lines.push_back(later.name + " is after step " + std::to_string(step) + " and is now " + aside);
  }
  return lines;
}

}  // namespace ditto::checkpoint
