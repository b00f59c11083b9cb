#include "core/encode/encoded_folder.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/data/encoded_set.h"
#include "core/dataset/nv_meta.h"
#include "core/formats/archive/shard.h"
#include "core/formats/output_folder.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMeta = ".nv-meta";
constexpr const char* kBeside = ".unfinished";
constexpr uint64_t kMostNotes = uint64_t{64} << 20;

// What a killed command leaves beside the names that files would have had.
bool is_stale(const std::string& name) {
  return name != EncodedNotes::kUnfinished && (name.find(kBeside) != name.npos || name.find(".tmp-") != name.npos);
}

bool is_of_set(const std::string& name) {
  return name.starts_with("train-") || name.starts_with("validation-") || name.starts_with(EncodedNotes::kFile);
}

}  // namespace

EncodedFolder::EncodedFolder(std::string folder, EncodedNotes notes)
    : folder_(std::move(folder)), notes_(std::move(notes)) {
  for (const auto& part : notes_.parts)
    for (int64_t i = 0; i < part.shards(notes_.shard_samples); ++i) {
      const auto first = i * notes_.shard_samples;
      shards_.push_back({part.shard(i), &part, first, std::min(notes_.shard_samples, part.samples - first)});
    }
}

std::string EncodedFolder::path(const std::string& name) const { return (fs::path(folder_) / name).string(); }

bool EncodedFolder::has_notes(const char* name) const {
  std::error_code ignored;
  if (!fs::exists(path(name), ignored)) return false;
  const auto theirs = encoded_notes(formats::read_file(path(name), ErrorKind::data, kMostNotes), path(name));
  const auto apart = difference(to_json(theirs), to_json(notes_));
  if (!apart.empty())
    throw Error(ErrorKind::config, "--out " + folder_, "holds what was encoded otherwise: " + apart,
                "name another folder, or give the command and the recipe by which it was made");
  return true;
}

void EncodedFolder::refuse_others() const {
  std::error_code ignored;
  for (const auto& shard : shards_)
    if (fs::exists(fs::symlink_status(path(shard.name), ignored)))
      throw Error(ErrorKind::config, "--out " + folder_,
                  "holds " + shard.name + ", which no " + EncodedNotes::kFile + " is of, and would be replaced",
                  "name another folder, or move that file away");
}

void EncodedFolder::remove_stale() const {
  std::error_code ignored;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder_, ignored))
    if (const auto name = entry.path().filename().string(); is_of_set(name) && is_stale(name))
      stale.push_back(entry.path());
  for (const auto& entry : fs::directory_iterator(path(kMeta), ignored))
    if (is_stale(entry.path().filename().string())) stale.push_back(entry.path());
  for (const auto& file : stale) fs::remove(file, ignored);
}

std::vector<uint8_t> EncodedFolder::prepare() {
  formats::make_output_folder(folder_, "--out");
  claim_ = formats::claim_output_folder(folder_, "--out");
  if (!has_notes(EncodedNotes::kFile) && !has_notes(EncodedNotes::kUnfinished)) {
    refuse_others();
    const auto text = to_json(notes_).dump(2) + "\n";
    formats::write_file(path(EncodedNotes::kUnfinished), std::as_bytes(std::span(text)), ErrorKind::data,
                        formats::Sync::fsync);
  }
  remove_stale();
  std::vector<uint8_t> there;
  std::error_code ignored;
  for (const auto& shard : shards_) there.push_back(fs::is_regular_file(path(shard.name), ignored));
  return there;
}

EncodedFolder::Writer::Writer(const EncodedFolder& folder, const Shard& shard)
    : path_(folder.path(shard.name)),
      beside_(path_ + kBeside + "-" + std::to_string(::getpid())),
      tar_(std::make_unique<formats::TarWriter>(beside_)) {}

EncodedFolder::Writer::~Writer() {
  if (!tar_) return;
  tar_.reset();
  std::error_code ignored;
  fs::remove(beside_, ignored);
}

void EncodedFolder::Writer::finish() {
  tar_->finish(formats::Sync::fsync);
  std::error_code error;
  fs::rename(beside_, path_, error);
  if (error) throw Error(ErrorKind::data, path_, "cannot be given its name: " + error.message());
  tar_.reset();
  formats::sync_parent(path_, ErrorKind::data);
}

int64_t EncodedFolder::bad_samples() const {
  int64_t bad = 0;
  for (const auto& shard : shards_) {
    bad += shard.samples;
    for (const auto& sample : formats::shard_samples(formats::index_tar(path(shard.name)), shard.name))
      bad -= sample.find(EncodedSet::kBad) == nullptr;
  }
  return bad;
}

void EncodedFolder::finish() const {
  std::error_code ignored;
  if (!fs::exists(path(EncodedNotes::kFile), ignored)) {
    write_energon_notes();
    const auto text = to_json(notes_).dump(2) + "\n";
    formats::write_file(path(EncodedNotes::kFile), std::as_bytes(std::span(text)), ErrorKind::data,
                        formats::Sync::fsync);
  }
  fs::remove(path(EncodedNotes::kUnfinished), ignored);
  formats::sync_file(folder_, ErrorKind::data);
}

void EncodedFolder::write_energon_notes() const {
  formats::make_output_folder(path(kMeta), "--out");
  std::vector<std::string> files;
  NvMeta meta(
      [&](const std::string& name) {
        files.push_back(path(name));
        return files.back() + kBeside;
      },
      NvMeta::Fields::none);
  for (const auto& shard : shards_)
    meta.add(shard.name, path(shard.name), shard.part->name == "train" ? "train" : "val");
  meta.finish();
  for (const auto& file : files) {
    std::error_code error;
    fs::rename(file + kBeside, file, error);
    if (error) throw Error(ErrorKind::data, file, "cannot be given its name: " + error.message());
  }
  formats::sync_file(path(kMeta), ErrorKind::data);
}

}  // namespace ditto
