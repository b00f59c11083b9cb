#include "core/data/encoded_notes.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/data/shapes.h"
#include "core/formats/file.h"
#include "core/formats/tensor/npz.h"
#include "core/formats/text/json.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMostBytes = uint64_t{64} << 20;  // names of classes are in it
constexpr int64_t kMostNumbered = int64_t{1} << 40;  // order.h
constexpr size_t kMostDifferences = 3;
constexpr int kDeepestParts = 16;

nlohmann::json to_json(const Ordered& ordered) {
  nlohmann::json one{{"samples", ordered.samples}, {"share", ordered.share}};
  for (const auto& part : ordered.parts) one["parts"].push_back(to_json(part));
  return one;
}

Ordered ordered_of(const nlohmann::json& json, const std::string& where, int depth = 0) {
  Ordered ordered{json.at("samples").get<int64_t>(), {}, json.at("share").get<int64_t>()};
  int64_t sum = 0;
  if (json.contains("parts"))
    for (const auto& part : json.at("parts"))
      sum += ordered.parts.emplace_back(ordered_of(part, where, depth + 1)).samples;
  if (depth > kDeepestParts || ordered.samples < 1 || ordered.share < 1 ||
      (!ordered.parts.empty() && sum != ordered.samples))
    throw Error(ErrorKind::data, where, "says an order that no samples have", "encode the recipe again");
  return ordered;
}

nlohmann::json to_json(const EncodedNotes::Part& part) {
  return {{"name", part.name},
          {"samples", part.samples},
          {"first", part.first},
          {"fingerprint", part.fingerprint},
          {"order", to_json(part.ordered)}};
}

EncodedNotes::Part part_of(const nlohmann::json& json, const std::string& where) {
  EncodedNotes::Part part{json.at("name").get<std::string>(), json.at("samples").get<int64_t>(),
                          json.at("first").get<int64_t>(), json.at("fingerprint").get<std::string>(),
                          ordered_of(json.at("order"), where)};
  if (part.samples != part.ordered.samples || part.samples > kMostNumbered || part.first < 0)
    throw Error(ErrorKind::data, where, "says another number of samples than their order has",
                "encode the recipe again");
  return part;
}

void require_version(const nlohmann::json& json, const std::string& where) {
  const auto version = json.value("version", int64_t{1});
  if (version == EncodedNotes::kVersion) return;
  throw Error(ErrorKind::config, where,
              fmt::format("is of version {}, and this ditto reads version {}", version, EncodedNotes::kVersion),
              "encode the recipe again, into another folder");
}

std::string text_of(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : formats::ascii_json(value, -1);
}

}  // namespace

std::string encoded_key(int64_t number) { return fmt::format("{:06}", number); }

std::string EncodedNotes::Part::shard(int64_t number) const { return fmt::format("{}-{:06}.tar", name, number); }

const EncodedNotes::Part* EncodedNotes::part(SplitOf split) const {
  const auto* name = split == SplitOf::train ? "train" : "validation";
  const auto found = std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return part.name == name; });
  return found == parts.end() ? nullptr : &*found;
}

const EncodedNotes::Encoder* EncodedNotes::encoder(const std::string& section) const {
  const auto found =
      std::find_if(encoders.begin(), encoders.end(), [&](const Encoder& one) { return one.section == section; });
  return found == encoders.end() ? nullptr : &*found;
}

nlohmann::json to_json(const EncodedNotes& notes) {
  nlohmann::json json{{"version", EncodedNotes::kVersion},
                      {"format", notes.format},
                      {"batch", notes.batch},
                      {"shard_samples", notes.shard_samples},
                      {"flip", notes.flip},
                      {"numerics", notes.numerics},
                      {"data", nlohmann::json::object()},
                      {"encoders", nlohmann::json::object()},
                      {"source", json_of(notes.source)},
                      {"kept", json_of(notes.kept)},
                      {"made", json_of(notes.made)},
                      {"turn", notes.turn},
                      {"parts", nlohmann::json::array()}};
  for (const auto& [key, value] : notes.data) json["data"][key.substr(key.find('.') + 1)] = value;
  for (const auto& one : notes.encoders)
    json["encoders"][one.section] = {{"plugin", one.plugin},       {"fingerprint", one.fingerprint},
                                     {"precision", one.precision}, {"takes", one.takes},
                                     {"caches", one.caches},       {"makes", one.makes},
                                     {"options", one.options}};
  for (const auto& part : notes.parts) json["parts"].push_back(to_json(part));
  return json;
}

EncodedNotes encoded_notes(const std::string& text, const std::string& where) {
  const auto json = formats::parse_json(text, where, ErrorKind::data);
  try {
    EncodedNotes notes;
    require_version(json, where);
    notes.format = json.at("format").get<std::string>();
    notes.batch = json.at("batch").get<int64_t>();
    notes.shard_samples = json.at("shard_samples").get<int64_t>();
    notes.flip = json.at("flip").get<bool>();
    notes.numerics = json.at("numerics").get<std::string>();
    for (const auto& [key, value] : json.at("data").items()) notes.data["data." + key] = value.get<std::string>();
    for (const auto& [section, one] : json.at("encoders").items())
      notes.encoders.push_back({section, one.at("plugin").get<std::string>(), one.at("fingerprint").get<std::string>(),
                                one.at("precision").get<std::string>(), one.at("takes").get<std::string>(),
                                one.at("caches").get<std::string>(), one.at("makes").get<std::string>(),
                                one.at("options").get<std::map<std::string, std::string>>()});
    notes.source = specs_of(json.at("source"), where, ErrorKind::data);
    notes.kept = specs_of(json.at("kept"), where, ErrorKind::data);
    notes.made = specs_of(json.at("made"), where, ErrorKind::data);
    notes.turn = json.at("turn").get<std::set<std::string>>();
    for (const auto& part : json.at("parts")) notes.parts.push_back(part_of(part, where));
    if (notes.shard_samples < 1 || notes.shard_samples > EncodedNotes::kMostOfShard)
      throw Error(ErrorKind::data, where, fmt::format("says shards of {} samples", notes.shard_samples),
                  "encode the recipe again");
    return notes;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::data, where, "is not what `ditto encode` writes: " + formats::plain_reason(error),
                "encode the recipe again");
  }
}

EncodedNotes read_encoded_notes(const std::string& folder) {
  const auto path = (fs::path(folder) / EncodedNotes::kFile).string();
  std::error_code ignored;
  if (fs::exists(path, ignored)) return encoded_notes(formats::read_file(path, ErrorKind::data, kMostBytes), path);
  if (fs::exists(fs::path(folder) / EncodedNotes::kUnfinished, ignored))
    throw Error(ErrorKind::config, folder, "is half-written: `ditto encode` has not ended",
                "give its command again, which goes on from there");
  throw Error(ErrorKind::config, folder, "holds no " + std::string(EncodedNotes::kFile),
              "make it with `ditto encode RECIPE --out FOLDER`, or leave loader.encoded out");
}

std::string id_of(const EncodedNotes& notes) {
  const auto text = to_json(notes).dump();
  return fmt::format("{:08x}", formats::crc32(std::as_bytes(std::span(text))));
}

std::string difference(const nlohmann::json& theirs, const nlohmann::json& ours) {
  const auto there = theirs.flatten(), here = ours.flatten();
  std::vector<std::string> parts;
  const auto said = [&](const nlohmann::json& in, const std::string& key) {
    return in.contains(key) ? text_of(in.at(key)) : std::string("unset");
  };
  const auto compare = [&](const std::string& key) {
    if (there.contains(key) && here.contains(key) && there.at(key) == here.at(key)) return;
    auto name = key.substr(std::min<size_t>(1, key.size()));
    std::replace(name.begin(), name.end(), '/', '.');
    parts.push_back(
        shown(fmt::format("{} is {} there and {} here", name, said(there, key), said(here, key)), kSentenceShown));
  };
  for (const auto& [key, value] : there.items()) compare(key);
  for (const auto& [key, value] : here.items())
    if (!there.contains(key)) compare(key);
  std::string text;
  for (size_t i = 0; i < std::min(parts.size(), kMostDifferences); ++i) text += (i == 0 ? "" : ", ") + parts[i];
  return text + (parts.size() > kMostDifferences ? fmt::format(", and {} more", parts.size() - kMostDifferences) : "");
}

}  // namespace ditto
