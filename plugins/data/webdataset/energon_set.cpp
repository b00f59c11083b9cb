#include "energon_set.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/text.h>

#include <ditto/formats/file.h>
#include <ditto/formats/json.h>
#include <ditto/formats/yaml.h>
#include "braces.h"

namespace webdataset {

namespace {

namespace fs = std::filesystem;
namespace formats = ditto::formats;
using ditto::Error;
using ditto::ErrorKind;
using nlohmann::json;

constexpr std::uint64_t kNotesBytes = 16 << 20;
constexpr const char* kRemedy = "prepare the set again with `energon prepare` or `ditto data prepare`";

fs::path notes_of(const std::string& folder) { return fs::path(folder) / ".nv-meta"; }

// The first of these files that is there.
std::string first_of(const EnergonSet& set, const std::vector<std::string>& names, const Store& store) {
  for (const auto& name : names)
    if (const auto path = notes_of(set.folder) / name; store.has(path.string())) return path.string();
  if (const auto dangling = formats::said_of_dangling(set.folder); !dangling.empty())
    throw Error(ErrorKind::config, set.folder, dangling, "bring that back, or set data.path to another folder");
  throw Error(ErrorKind::config, (notes_of(set.folder) / names.front()).string(), "is not there",
              "prepare the set with `energon prepare` or `ditto data prepare`, or name its shards in data.shards");
}

json read_notes(const std::string& path, const Store& store) {
  const auto text = store.read(path, kNotesBytes);
  auto notes = path.ends_with(".json") ? formats::parse_json(text, path, ErrorKind::data)
                                       : formats::parse_yaml(text, path, ErrorKind::data);
  if (!notes.is_object()) throw Error(ErrorKind::data, path, "holds no map of names and values", kRemedy);
  return notes;
}

const json& member(const json& notes, const std::string& name, json::value_t type, const std::string& path) {
  const auto it = notes.find(name);
  if (it == notes.end() || it->type() != type)
    throw Error(ErrorKind::data, path,
                "has no " + std::string(type == json::value_t::array ? "list" : "map") + " \"" + name + "\"", kRemedy);
  return *it;
}

std::string text_of(const json& value, const std::string& path, const std::string& what) {
  if (value.is_string()) return value.get<std::string>();
  throw Error(ErrorKind::data, path, what + " is " + ditto::shown(value.dump(), 60) + ", expected a text", kRemedy);
}

std::string text_in(const json& object, const std::string& name) {
  const auto it = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// The class that makes the samples: Energon's own, by field map; before its version 5 one for each type.
void read_type(const json& notes, const std::string& path, EnergonSet& set) {
  const auto type = notes.find("sample_type");
  const json& from = type == notes.end() ? notes : *type;
  const auto name = text_in(from, "__class__"), module = text_in(from, "__module__");
  const auto maker = text_in(notes, "__class__");
  if (const auto loader = text_in(notes, "sample_loader"); !loader.empty())
    set.made_by = "the Python function " + loader;
  else if (maker.starts_with("Crude"))
    set.made_by = maker + ", whose samples a cooker in Python makes";
  else if (module != "megatron.energon" || name.empty() || (type == notes.end() && !name.ends_with("Webdataset")))
    set.made_by = "the Python class " + (module.empty() ? "" : module + ".") + (name.empty() ? "(none)" : name);
  set.sample_type = name;
  if (type == notes.end() && name.ends_with("Webdataset")) set.sample_type.replace(name.size() - 10, 10, "Sample");
  if (!set.made_by.empty()) return;
  for (const auto& [field, place] : member(notes, "field_map", json::value_t::object, path).items())
    set.field_map[field] = text_of(place, path, "field_map." + field);
}

std::vector<std::string> expanded(const json& list, const std::string& path, const std::string& what) {
  std::vector<std::string> names;
  for (const auto& one : list)
    for (auto& name : with_braces_expanded(text_of(one, path, what), path)) names.push_back(std::move(name));
  return names;
}

}  // namespace

EnergonSet read_energon_set(const std::string& folder, const Store& store) {
  EnergonSet set;
  set.folder = folder;
  const auto path = first_of(set, {"dataset.yaml"}, store);
  read_type(read_notes(path, store), path, set);
  return set;
}

std::vector<PreparedShard> shards_of_split(const EnergonSet& set, const std::string& split, const std::string& option,
                                           const Store& store) {
  const auto info_path = first_of(set, {".info.json", ".info.yaml"}, store);
  const auto info = read_notes(info_path, store);
  std::map<std::string, std::int64_t> counts;
  const json& shard_counts = member(info, "shard_counts", json::value_t::object, info_path);
  for (const auto& [name, count] : shard_counts.items()) {
    if (!count.is_number_integer() || count < 0 || count > std::int64_t{1} << 40)
      throw Error(ErrorKind::data, info_path,
                  "counts " + ditto::shown(count.dump(), 40) + " samples in \"" + name + "\"", kRemedy);
    counts[name] = count.get<std::int64_t>();
  }

  const auto path = first_of(set, {"split.yaml", "split.json"}, store);
  const auto notes = read_notes(path, store);
  const json& parts = member(notes, "split_parts", json::value_t::object, path);
  if (!parts.contains(split)) {
    std::string all;
    for (const auto& [name, shards] : parts.items()) all += (all.empty() ? "" : ", ") + name;
    throw Error(ErrorKind::config, option, "= \"" + split + "\" is no part of " + path, "it has: " + all);
  }
  std::set<std::string> excluded;
  if (const auto it = notes.find("exclude"); it != notes.end() && it->is_array())
    for (auto& name : expanded(*it, path, "exclude")) excluded.insert(std::move(name));
  std::vector<PreparedShard> shards;
  for (auto& name : expanded(member(parts, split, json::value_t::array, path), path, "split_parts." + split)) {
    if (excluded.count(name)) continue;
    const auto counted = counts.find(name);
    if (counted == counts.end())
      throw Error(ErrorKind::data, path,
                  "names the shard \"" + ditto::shown(name, 120) + "\", which " + info_path + " does not count",
                  kRemedy);
    PreparedShard shard{name, counted->second};
    for (auto it = excluded.lower_bound(name + "/"); it != excluded.end() && it->starts_with(name + "/"); ++it)
      shard.excluded_keys.insert(it->substr(name.size() + 1));
    shards.push_back(std::move(shard));
  }
  if (shards.empty())
    throw Error(ErrorKind::config, option, "= \"" + split + "\" has no shard in " + path,
                "choose another part, or split the set anew with `energon prepare`");
  return shards;
}

std::string uuid_of(const EnergonSet& set, const Store& store) {
  const auto path = (notes_of(set.folder) / "index.uuid").string();
  return store.has(path) ? store.read(path, 4096) : std::string();
}

}  // namespace webdataset
