#include "core/data/shard_writer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <ditto/error.h>

namespace ditto {

namespace {

constexpr const char* kUnfinished = ".unfinished";

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
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) throw Error(ErrorKind::config, options.out, "cannot be made: " + error.message(), "choose another --out");
  for (const auto& entry : std::filesystem::directory_iterator(options.out))
    if (is_shard_of_ours(entry.path().filename().string()))
      throw Error(ErrorKind::config, entry.path().string(), "is there already", "choose an empty folder for --out");
}

// The k-th sample of a class is held out where the share, counted over its samples 0 … k, reaches the next whole
// number.
bool ShardWriter::held_out(std::int64_t label) {
  const auto whole = [&](std::int64_t n) { return std::floor(static_cast<double>(n) * options_.validation + 1e-9); };
  const std::int64_t n = of_class_[label]++;
  return whole(n + 1) > whole(n);
}

void ShardWriter::add(const std::vector<Member>& members, std::int64_t label) {
  add_to(held_out(label) ? validation_ : train_, members);
  ++samples_;
}

void ShardWriter::add_to(Part& part, const std::vector<Member>& members) {
  if (part.samples % options_.shard_samples == 0) {
    close(part);
    const auto name = part.name + "-" + numbered(part.samples / options_.shard_samples) + ".tar";
    part.path = (std::filesystem::path(options_.out) / name).string();
    part.tar = std::make_unique<formats::TarWriter>(part.path + kUnfinished);
  }
  const auto key = numbered(samples_);
  for (const auto& member : members) part.tar->add(key + "." + member.extension, member.bytes);
  ++part.samples;
}

void ShardWriter::close(Part& part) {
  if (!part.tar) return;
  part.tar->finish();
  part.tar.reset();
  std::filesystem::rename(part.path + kUnfinished, part.path);
  prepared_.shards.push_back(part.path);
}

ShardWriter::~ShardWriter() {
  for (Part* part : {&train_, &validation_}) {
    if (!part->tar) continue;
    part->tar.reset();
    std::error_code ignored;
    std::filesystem::remove(part->path + kUnfinished, ignored);
  }
}

Prepared ShardWriter::finish() {
  close(train_);
  close(validation_);
  std::sort(prepared_.shards.begin(), prepared_.shards.end());
  prepared_.train = train_.samples;
  prepared_.validation = validation_.samples;
  return std::move(prepared_);
}

}  // namespace ditto
