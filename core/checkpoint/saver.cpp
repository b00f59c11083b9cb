#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/checkpoint/agree.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/snapshot.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

struct Saver::Snapshot : checkpoint::Snapshot {};
struct Saver::Buffers : HostBuffers {};

namespace {

// What a rank tells the others about the files it wrote.
std::string report_of(const std::vector<FileRecord>& files, const Index& index) {
  return json{{"files", to_json(Manifest{files})}, {"index", to_json(index)}}.dump();
}

struct Written {
  std::vector<FileRecord> files;
  Index index;
};

Written join_reports(const std::vector<std::string>& reports, const std::string& where) {
  Written all;
  for (const std::string& text : reports) {
    const json report = json::parse(text);
    const Manifest manifest = parse_manifest(report.at("files").get<std::string>(), where);
    all.files.insert(all.files.end(), manifest.files.begin(), manifest.files.end());
    merge(all.index, parse_index(report.at("index").get<std::string>(), where), where);
  }
  return all;
}

void require_visible(const std::string& folder, const std::vector<FileRecord>& files) {
  for (const FileRecord& file : files) {
    std::error_code error;
    const auto bytes = fs::file_size(fs::path(folder) / file.name, error);
    if (error || bytes != file.bytes)
      throw Error(ErrorKind::checkpoint, (fs::path(folder) / file.name).string(),
                  "another rank wrote it, and rank 0 does not see it whole",
                  "put the run's folder on storage that all ranks share");
  }
}

// Counts only up to the step just saved: later ones are of another line of training, which is not ours to judge.
void retain(const std::string& folder, const Retention& retention, int64_t saved, const Warn& warn) {
  std::vector<StepFolder> steps = list(folder).steps;
  std::erase_if(steps, [&](const StepFolder& step) { return step.step > saved; });
  const auto keep = static_cast<size_t>(std::max<int64_t>(retention.keep_last, 1));
  if (steps.size() > keep)
    steps.resize(steps.size() - keep);
  else
    return;
  for (const StepFolder& step : steps)
    if (retention.keep_every <= 0 || step.step % retention.keep_every != 0)
      or_warn(warn, [&] { remove_folder((fs::path(folder) / step.name).string()); });
}

}  // namespace

Saver::Saver(std::string folder, Retention retention, const Mesh& mesh, Group ranks,
             std::function<void(const std::string&)> warn)
    : folder_(std::move(folder)),
      retention_(retention),
      mesh_(&mesh),
      ranks_(std::move(ranks)),
      warn_(std::move(warn)),
      buffers_(std::make_unique<Buffers>()) {
  if (ranks_.rank() != 0) return;
  make_folder(folder_);
  remove_unfinished(folder_, [this](const std::string& line) { warn_once(line); });
}

Saver::~Saver() { join(); }

void Saver::join() {
  if (thread_.joinable()) thread_.join();
}

void Saver::wait() {
  join();
  if (auto failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
}

void Saver::save(const TrainState& state) {
  wait();
  auto snapshot = std::make_shared<Snapshot>(Snapshot{take_snapshot(state, mesh_, *buffers_)});
  thread_ = std::jthread([this, snapshot] {
    try {
      write(*snapshot);
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

void Saver::warn_once(const std::string& line) {
  if (warn_ && warned_.insert(line).second) warn_(line);
}

void Saver::write(const Snapshot& snapshot) {
  const std::string name = step_name(snapshot.state.step), place = (fs::path(folder_) / name).string();
  const bool first = ranks_.rank() == 0;
  const std::string beside = agree(ranks_, place, [&] {
    const std::string fresh = place + ".tmp-" + std::to_string(::getpid());
    if (first) {
      fs::remove_all(fresh);
      make_folder(fresh);
    }
    return fresh;
  })[0];
  try {
    const auto reports =
        agree(ranks_, place, [&] { return report_of(write_shards(beside, snapshot), snapshot.index); });
    agree(ranks_, place, [&] {
      if (!first) return std::string();
      Written all = join_reports(reports, place);
      require_visible(beside, all.files);
      write_manifest(beside, std::move(all.files), all.index, snapshot);
      const Warn warn = [this](const std::string& line) { warn_once(line); };
      replace_folder(beside, place, warn);  // durable from here on
      or_warn(warn, [&] { point_latest(folder_, name); });
      or_warn(warn, [&] { retain(folder_, retention_, snapshot.state.step, warn); });
      return std::string();
    });
  } catch (...) {
    std::error_code ignored;  // what is left is removed at the next start
    if (first) fs::remove_all(beside, ignored);
    throw;
  }
}

void save_weights(const std::string& folder, Layout& layout, const std::string& recipe_toml,
                  const std::map<std::string, std::string>& extra,
                  const std::function<void(const std::string&)>& warn) {
  TrainState state;
  state.layout = &layout;
  state.extra = extra;
  state.recipe_toml = recipe_toml;
  save_state(folder, state, warn);
}

void save_state(const std::string& folder, const TrainState& state,
                const std::function<void(const std::string&)>& warn) {
  const std::string place = fs::path(folder).lexically_normal().string();
  if (fs::is_symlink(place)) throw Error(ErrorKind::checkpoint, place, "is a link", "give the name of a new folder");
  if (fs::exists(place) && !fs::is_empty(place) && !fs::exists(fs::path(place) / kManifestFile))
    throw Error(ErrorKind::checkpoint, place, "is there already and is no checkpoint", "give the name of a new folder");
  if (fs::exists(fs::path(place) / kManifestFile) && !describe(place).optimizer.empty())
    throw Error(ErrorKind::checkpoint, place, "is the checkpoint of a training, with its optimizer's states",
                "give the name of a new folder, or remove it before");
  HostBuffers buffers;
  const checkpoint::Snapshot snapshot = take_snapshot(state, nullptr, buffers);
  const std::string beside = place + ".tmp-" + std::to_string(::getpid());
  try {
    fs::remove_all(beside);
    make_folder(beside);
    write_manifest(beside, write_shards(beside, snapshot), snapshot.index, snapshot);
    replace_folder(beside, place, warn);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw;
  }
}

}  // namespace ditto::checkpoint
