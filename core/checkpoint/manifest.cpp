#include "core/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include <ditto/error.h>

#include "core/formats/text/json.h"

namespace ditto::checkpoint {

using nlohmann::json;

namespace {

constexpr const char* kOtherCheckpoint = "use another checkpoint";
constexpr int64_t kManifestFormat = 2, kStateFormat = 1;
constexpr std::string_view kBeforeSelf = ",\n\"xxh3_128_of_the_text_above\": \"", kAfterSelf = "\"\n}\n";
constexpr size_t kHexDigits = 32;
constexpr uint64_t kMostChunkBytes = uint64_t{64} << 20;  // are held in memory
constexpr int64_t kMostSteps = 999'999'999'999'999'999;   // as many digits as a folder's name may have

std::string self_line(std::string_view body) {
  return std::string(kBeforeSelf) + checksum(std::as_bytes(std::span(body))) + std::string(kAfterSelf);
}

bool plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

void check_format(const json& root, int64_t format, const std::string& where) {
  if (root.at("format").get<int64_t>() != format)
    throw Error(ErrorKind::checkpoint, where,
                "has format " + root.at("format").dump() + ", this program reads format " + std::to_string(format),
                "use the version of ditto that wrote it");
}

// Reads a JSON object whose every field is checked, and says which is not as it should be.
class Fields {
 public:
  Fields(const json& object, const std::string& where, const char* what) : object_(object), where_(where) {
    if (!object.is_object()) throw Error(ErrorKind::checkpoint, where, std::string("is not ") + what, kOtherCheckpoint);
  }

  const json& at(const std::string& key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(key, "is missing");
    return *found;
  }
  int64_t whole(const std::string& key, int64_t least, int64_t most) const {
    const json& value = at(key);
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) ||
        value.get<int64_t>() < least || value.get<int64_t>() > most)
      fail(key, "is " + shown(value) + "; a whole number from " + std::to_string(least) + " to " +
                    std::to_string(most) + " is expected");
    return value.get<int64_t>();
  }
  double number(const std::string& key) const {
    const json& value = at(key);
    if (!value.is_number()) fail(key, "is " + shown(value) + "; a number is expected");
    return value.get<double>();
  }
  uint64_t unsigned_whole(const std::string& key) const {
    const json& value = at(key);
    if (!value.is_number_unsigned()) fail(key, "is " + shown(value) + "; a whole number, 0 or more, is expected");
    return value.get<uint64_t>();
  }
  const json& object(const std::string& key) const {
    const json& value = at(key);
    if (!value.is_object()) fail(key, "is " + shown(value) + "; an object is expected");
    return value;
  }
  std::string text(const std::string& key) const {
    const json& value = at(key);
    if (!value.is_string()) fail(key, "is " + shown(value) + "; a string is expected");
    return value.get<std::string>();
  }

 private:
  static std::string shown(const json& value) {
    const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    return text.size() <= 40 ? text : text.substr(0, 40) + "…";
  }
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw Error(ErrorKind::checkpoint, where_, "its \"" + key + "\" " + what, kOtherCheckpoint);
  }
  const json& object_;
  const std::string& where_;
};

bool by_name(const FileRecord& a, const FileRecord& b) { return a.name < b.name; }

FileRecord parse_record(const json& item, uint64_t chunk_bytes, const std::string& where) {
  FileRecord file{item.at("name"), item.at("bytes"), item.at("xxh3_128")};
  if (!plain_name(file.name))
    throw Error(ErrorKind::checkpoint, where, "lists a file that is not in the checkpoint's folder");
  const uint64_t chunks = file.bytes / chunk_bytes + (file.bytes % chunk_bytes > 0);
  if (file.xxh3_128.size() != chunks)
    throw Error(ErrorKind::checkpoint, where,
                "has " + std::to_string(file.xxh3_128.size()) + " checksums for the " + std::to_string(chunks) +
                    " chunks of " + file.name);
  return file;
}

}  // namespace

const FileRecord* Manifest::find(const std::string& name) const {
  const auto it =
      std::lower_bound(files.begin(), files.end(), name,
                       [](const FileRecord& file, const std::string& wanted) { return file.name < wanted; });
  return it == files.end() || it->name != name ? nullptr : &*it;
}

std::string to_json(const Manifest& manifest) {
  std::string body = "{\n\"format\": " + std::to_string(kManifestFormat) +
                     ",\n\"chunk_bytes\": " + std::to_string(manifest.chunk_bytes) + ",\n\"files\": [";
  for (const FileRecord& file : manifest.files)
    body += (body.back() == '[' ? "\n" : ",\n") +
            json{{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.xxh3_128}}.dump();
  body += "\n]";
  return body + self_line(body);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const size_t tail = kBeforeSelf.size() + kHexDigits + kAfterSelf.size();
  if (text.size() < tail || text.substr(text.size() - tail) != self_line(text.substr(0, text.size() - tail)))
    throw Error(ErrorKind::checkpoint, where, "is damaged: the checksum of its own text does not hold",
                "use another checkpoint");
  const json root = formats::parse_json(text, where, ErrorKind::checkpoint);
  try {
    check_format(root, kManifestFormat, where);
    Manifest manifest{{}, root.at("chunk_bytes")};
    if (manifest.chunk_bytes == 0 || manifest.chunk_bytes > kMostChunkBytes)
      throw Error(ErrorKind::checkpoint, where,
                  "has chunks of " + std::to_string(manifest.chunk_bytes) + " bytes; 1 to " +
                      std::to_string(kMostChunkBytes) + " are read");
    for (const json& item : root.at("files")) manifest.files.push_back(parse_record(item, manifest.chunk_bytes, where));
    std::sort(manifest.files.begin(), manifest.files.end(), by_name);
    for (size_t i = 1; i < manifest.files.size(); ++i)
      if (!by_name(manifest.files[i - 1], manifest.files[i]))
        throw Error(ErrorKind::checkpoint, where, "lists " + manifest.files[i].name + " twice", kOtherCheckpoint);
    return manifest;
  } catch (const json::exception& error) {
    throw Error(ErrorKind::checkpoint, where, "is not a manifest: " + formats::plain_reason(error));
  }
}

nlohmann::json to_json(const std::map<std::string, double>& counters) {
  json all = json::object();
  for (const auto& [name, value] : counters) {
    const bool whole = std::abs(value) < 0x1p53 && value == std::trunc(value);
    all[name] = whole ? json(static_cast<int64_t>(value)) : json(value);
  }
  return all;
}

std::string to_json(const SavedState& state) {
  const json root{
      {"format", kStateFormat}, {"step", state.step},   {"samples", state.samples},           {"seed", state.seed},
      {"ranks", state.ranks},   {"extra", state.extra}, {"counters", to_json(state.counters)}};
  try {
    return root.dump(1) + "\n";
  } catch (const json::exception&) {
    throw Error(ErrorKind::checkpoint, kStateFile, "the run's own notes are not UTF-8 text");
  }
}

SavedState parse_state(std::string_view text, const std::string& where) {
  const json root = formats::parse_json(text, where, ErrorKind::checkpoint);
  const Fields fields(root, where, "a run's state");
  fields.whole("format", INT64_MIN, INT64_MAX);
  check_format(root, kStateFormat, where);
  SavedState state;
  state.step = fields.whole("step", 0, kMostSteps);
  state.samples = fields.whole("samples", 0, kMostSteps);
  state.seed = fields.unsigned_whole("seed");
  state.ranks = fields.whole("ranks", 1, INT32_MAX);
  const Fields counters(fields.object("counters"), where, ""), extra(fields.object("extra"), where, "");
  for (const auto& item : root["counters"].items()) state.counters[item.key()] = counters.number(item.key());
  for (const auto& item : root["extra"].items()) state.extra[item.key()] = extra.text(item.key());
  return state;
}

}  // namespace ditto::checkpoint
