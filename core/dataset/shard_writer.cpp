#include "core/dataset/shard_writer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <ditto/error.h>

#include "core/dataset/inspect.h"
#include "core/formats/file.h"
#include "core/formats/output_folder.h"
#include "core/formats/sha256.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUnfinished = ".unfinished";
constexpr const char* kNotes = ".nv-meta";

std::string unfinished(const std::string& file) { return file + std::string(kUnfinished); }

std::string numbered(std::int64_t number) {
  std::string digits = std::to_string(number);
  return digits.size() >= 6 ? digits : std::string(6 - digits.size(), '0') + digits;
}

bool is_shard_of_ours(const std::string& name) {
  return name.ends_with(".tar") && (name.starts_with("train-") || name.starts_with("validation-"));
}

}  // namespace

ShardWriter::ShardWriter(const PrepareOptions& options) : options_(options) {
  if (options.shard_samples < 1)
    throw Error(ErrorKind::config, "--shard-samples", "is " + std::to_string(options.shard_samples),
                "expected at least 1");
  if (!(options.validation >= 0 && options.validation < 1))
    throw Error(ErrorKind::config, "--validation", "is " + std::to_string(options.validation),
                "expected a share of the samples, 0 or more and below 1");
  formats::make_output_folder(options.out, "--out");
  std::error_code error;
  std::vector<fs::path> stale;  // of a command that was killed
  for (fs::directory_iterator it(options.out, error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    if (is_shard_of_ours(name))
      throw Error(ErrorKind::config, it->path().string(), "is there already", "choose an empty folder for --out");
    if (name.ends_with(kUnfinished) && (name.starts_with("train-") || name.starts_with("validation-")))
      stale.push_back(it->path());
  }
  if (error) throw Error(ErrorKind::config, options.out, "cannot be read: " + error.message(), "choose another --out");
  const auto notes = fs::path(options.out) / kNotes;
  for (fs::directory_iterator it(notes, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().string().ends_with(kUnfinished))
      throw Error(ErrorKind::config, it->path().string(), "is there already", "choose an empty folder for --out");
    stale.push_back(it->path());
  }
  for (const auto& path : stale) fs::remove(path, error);
  formats::make_output_folder(notes.string(), "--out");
  notes_ = std::make_unique<NvMeta>([this](const std::string& name) { return begin_file(name); });
}

// The k-th sample of a class is held out where the share, counted over its samples 0 … k, reaches the next whole
// number.
bool ShardWriter::held_out(std::int64_t label) {
  const auto whole = [&](std::int64_t n) { return std::floor(static_cast<double>(n) * options_.validation + 1e-9); };
  const std::int64_t n = of_class_[label]++;
  return whole(n + 1) > whole(n);
}

std::string ShardWriter::add(const std::vector<Member>& members, std::int64_t label) {
  return add_to(held_out(label) ? validation_ : train_, members);
}

std::string ShardWriter::add_to_train(const std::vector<Member>& members) { return add_to(train_, members); }
std::string ShardWriter::add_to_validation(const std::vector<Member>& members) { return add_to(validation_, members); }

std::string ShardWriter::add_to(Part& part, const std::vector<Member>& members) {
  if (part.samples % options_.shard_samples == 0) {
    close(part);
    part.shard = part.name + "-" + numbered(part.samples / options_.shard_samples) + ".tar";
    part.tar = std::make_unique<formats::TarWriter>(begin_file(part.shard));
  }
  const auto key = numbered(samples_++);
  for (const auto& member : members) part.tar->add(key + "." + member.extension, member.bytes);
  ++part.samples;
  return part.shard + ":" + key;
}

std::string ShardWriter::begin_file(const std::string& name) {
  files_.push_back((fs::path(options_.out) / name).string());
  return unfinished(files_.back());
}

void ShardWriter::add_file(const std::string& name, std::string_view text) {
  formats::write_file(begin_file(name), std::as_bytes(std::span(text)), ErrorKind::data, formats::Sync::fsync);
}

void ShardWriter::close(Part& part) {
  if (!part.tar) return;
  part.tar->finish(formats::Sync::fsync);
  part.tar.reset();
  notes_->add(part.shard, unfinished((fs::path(options_.out) / part.shard).string()), part.split);
}

ShardWriter::~ShardWriter() {
  std::error_code ignored;
  for (Part* part : {&train_, &validation_}) part->tar.reset();
  notes_.reset();
  for (const auto& file : files_) fs::remove(unfinished(file), ignored);
  fs::remove(fs::path(options_.out) / kNotes, ignored);  // if nothing is in it
}

Prepared ShardWriter::finish() {
  close(train_);
  close(validation_);
  notes_->finish();
  std::string sums;
  std::sort(files_.begin(), files_.end());
  for (const auto& file : files_)
    sums += formats::sha256_of_file(unfinished(file)) + "  " +
            fs::path(file).lexically_relative(options_.out).string() + "\n";
  add_file(kSumsName, sums);
  Prepared prepared{{}, train_.samples, validation_.samples, {}, {}, {}, {}};
  for (size_t i = 0; i < files_.size(); ++i) {
    std::error_code error, ignored;
    fs::rename(unfinished(files_[i]), files_[i], error);
    if (!error) continue;
    for (size_t done = 0; done < i; ++done) fs::remove(files_[done], ignored);  // a part would train as if it were all
    throw Error(ErrorKind::data, files_[i], "cannot be given its name: " + error.message());
  }
  for (const auto& folder : {fs::path(options_.out) / kNotes, fs::path(options_.out)})
    formats::sync_file(folder.string(), ErrorKind::data);
  for (const auto& file : files_)
    if (is_shard_of_ours(fs::path(file).filename().string())) prepared.shards.push_back(file);
  files_.clear();
  std::sort(prepared.shards.begin(), prepared.shards.end());
  return prepared;
}

}  // namespace ditto
