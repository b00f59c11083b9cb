#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <ditto/text.h>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/reader.h"
#include "core/config/include.h"
#include "core/formats/file.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr size_t kKeptAside = 3;
constexpr const char* kGivePath = "give the path of a run, or of one of its checkpoints";

// What another project keeps weights in: a file, or a folder with a configuration of a model or of a whole pipeline.
bool is_foreign(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    return fs::exists(path / "model_index.json", ignored) || fs::exists(path / "config.json", ignored);
  const auto kind = path.extension();
  return kind == ".safetensors" || kind == ".ckpt" || kind == ".pt" || kind == ".pth" || kind == ".bin";
}

std::string remedy(const std::string& path) {
  if (const auto stages = remedy_of_cascade(path); !stages.empty()) return stages;
  if (!is_foreign(path)) return kGivePath;
  return "if it holds another project's weights, make a checkpoint of them: `ditto checkpoint import " + shown(path) +
         " --format … --out DIR`";
}

[[noreturn]] void refuse_none(const std::string& path, const Found& found) {
  std::string what = found.skipped.empty() ? "holds no checkpoint" : "holds no checkpoint that can be used: ";
  for (const std::string& line : found.skipped) what += (&line == &found.skipped.front() ? "" : ", ") + line;
  throw Error(ErrorKind::checkpoint, path, what, remedy(path));
}

// `latest` where the file system has no links is a line that names a folder beside it.
std::string follow_hint(const std::string& path) {
  if (!fs::is_regular_file(path)) return path;
  char line[64] = "";  // the rest of a longer one, of any file that somebody names, is not read
  std::ifstream(path).getline(line, sizeof line);
  const std::string name = line;
  return step_of(name) ? (fs::path(path).parent_path() / name).string() : path;
}

bool is_step(const std::string& path) {
  return fs::exists(fs::path(path) / kManifestFile) || step_of(fs::path(path).filename().string());
}

// Of a run's folder, or itself.
std::string folder_of_steps(const std::string& path) {
  const auto inner = fs::path(path) / "checkpoints";
  return fs::is_directory(inner) ? inner.string() : path;
}

std::string plural(size_t count, const char* word) {
  return std::to_string(count) + " " + word + (count == 1 ? "" : "s");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// The lines of all ranks, each line once.
std::vector<std::string> join_lines(const Group& ranks, const std::vector<std::string>& mine) {
  std::vector<std::string> all;
  std::set<std::string> known;
  for (const std::string& text : ranks.all_gather_text(text_of(mine)))
    for (const std::string& line : lines_of(text))
      if (known.insert(line).second) all.push_back(line);
  return all;
}

// The steps as the first rank sees them: on shared storage another may see one earlier or later.
std::vector<std::string> newest_first(const Listing& listing, const Group& ranks) {
  std::vector<std::string> names;
  for (auto step = listing.steps.rbegin(); step != listing.steps.rend(); ++step) names.push_back(step->name);
  return lines_of(ranks.all_gather_text(text_of(names))[0]);
}

// What one rank has to say. Chunks are dealt out; who has the first of a file compares its header with the index.
std::vector<std::string> verify_share(const std::string& path, const Group& ranks) {
  std::vector<std::string> problems;
  const auto note = [&](auto&& work) {
    try {
      work();
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  };
  note([&] {
    Reader reader(path);
    const auto size = static_cast<size_t>(ranks.size());
    size_t turn = static_cast<size_t>(ranks.rank());
    std::set<std::string> left_to_others;
    for (const FileRecord& file : reader.manifest().files) {
      const size_t first = turn++ % size;
      if (first > 0) left_to_others.insert(file.name);
      note([&] { reader.check_file(file.name, first, size); });
    }
    for (const auto& [section, tensors] : reader.index().sections)
      for (const auto& [name, tensor] : tensors)
        note([&, &name = name, &tensor = tensor] {
          if (turn++ % size == 0) reader.cover(name, tensor, {Dims(tensor.shape.size(), 0), tensor.shape});
          for (const Piece& piece : tensor.pieces)
            if (problems.empty() && !left_to_others.count(piece.file)) reader.entry(tensor, piece);
        });
    for (auto& line : reader.changed()) problems.push_back(std::move(line));
  });
  return problems;
}

}  // namespace

std::vector<std::string> verify(const std::string& path, const Group& ranks) {
  return join_lines(ranks, verify_share(path, ranks));
}

Found find(const std::string& folder, const Group& ranks) {
  Found found;
  const Listing listing = list(folder);
  for (const std::string& name : newest_first(listing, ranks)) {
    const std::string path = (fs::path(folder) / name).string();
    const auto problems = verify(path, ranks);
    if (problems.empty()) {
      found.path = path;
      break;
    }
    found.skipped.push_back("skipped " + shown(name) + ": " + problems.front() +
                            (problems.size() > 1 ? " (and " + plural(problems.size() - 1, "more problem") + ")" : ""));
  }
  for (const std::string& name : listing.unfinished)
    if (step_of(name.substr(0, name.find(".tmp-"))))
      found.skipped.push_back("skipped " + shown(name) + ": a save that never ended");
  return found;
}

Found resolve(const std::string& given, const Group& ranks) {
  const std::string path = follow_hint(given);
  if (is_step(path)) return {path, {}};
  if (fs::is_symlink(path) && !fs::exists(path)) {
    Found found = find(fs::path(path).parent_path().string(), ranks);
    if (!found.path && found.skipped.empty())
      throw Error(ErrorKind::checkpoint, path, formats::said_of_dangling(path), kGivePath);
    if (!found.path) refuse_none(path, found);
    found.skipped.insert(found.skipped.begin(), "skipped " + path + ": it points to nothing");
    return found;
  }
  if (!fs::is_directory(path))
    throw Error(ErrorKind::checkpoint, path,
                fs::exists(path) ? "is a file, and runs and checkpoints are folders" : "there is no such folder",
                fs::exists(path) ? remedy(path) : kGivePath);
  Found found = find(folder_of_steps(path), ranks);
  if (!found.path) refuse_none(path, found);
  return found;
}

bool is_of_a_run(const std::string& given) {
  const std::string path = follow_hint(given), folder = folder_of_steps(path);
  return is_step(path) || folder != path || (fs::is_directory(folder) && !list(folder).steps.empty());
}

std::string newest(const std::string& given) {
  const std::string path = follow_hint(given);
  const std::string folder = folder_of_steps(path);
  if (const auto dangling = formats::said_of_dangling(path); !dangling.empty())
    throw Error(ErrorKind::checkpoint, path, dangling, kGivePath);
  if (is_step(path) || !fs::is_directory(folder)) return path;
  const auto steps = list(folder).steps;
  if (steps.empty()) refuse_none(path, {});
  return (fs::path(folder) / steps.back().name).string();
}

std::vector<std::string> set_aside_later(const std::string& folder, int64_t step) {
  std::vector<std::string> lines;
  for (const StepFolder& later : list(folder).steps) {
    if (later.step <= step) continue;
    std::string aside = std::string(kAbandoned) + later.name;
    for (int again = 2; fs::exists(fs::symlink_status(fs::path(folder) / aside)); ++again)
      aside = std::string(kAbandoned) + later.name + "-" + std::to_string(again);
    set_aside((fs::path(folder) / later.name).string(), (fs::path(folder) / aside).string());
    lines.push_back(later.name + (step < 0 ? " is" : " is after step " + std::to_string(step) + " and is") + " now " +
                    aside);
  }
  if (lines.empty()) return lines;
  for (const std::string& name : older_aside(folder, kKeptAside))
    or_warn([&](const std::string& line) { lines.push_back("warning: " + line); },
            [&] {
              remove_folder((fs::path(folder) / name).string());
              lines.push_back(name + " is removed: of steps that were set aside the last " +
                              std::to_string(kKeptAside) + " stay");
            });
  return lines;
}

}  // namespace ditto::checkpoint
