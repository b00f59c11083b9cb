#include "core/exchange/foreign_folder.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include <ditto/text.h>

#include "core/exchange/foreign_file.h"
#include "core/formats/file.h"
#include "core/formats/limits.h"
#include "core/formats/output_folder.h"
#include "core/formats/text/json.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char *kWeightsFile = "diffusion_pytorch_model.safetensors", *kConfigFile = "config.json",
                     *kSchedulerConfigFile = "scheduler_config.json", *kSchedulerFolder = "scheduler",
                     *kSubfolder = "transformer", *kCard = "README.md", *kIndex = ".index.json",
                     *kSuffix = ".safetensors", *kIndexWord = "index";
constexpr uint64_t kMostConfigBytes = uint64_t{1} << 20;  // bytes: diffusers' have one or two thousand

template <class T, class Is>
bool read_list(const json& list, Is is, std::optional<OptionValue>& into) {
  if (!std::all_of(list.begin(), list.end(), is)) return false;
  into = list.get<std::vector<T>>();
  return true;
}

std::optional<OptionValue> config_value(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  std::optional<OptionValue> list;
  if (!value.is_array()) return list;
  if (!value.empty() && std::all_of(value.begin(), value.end(), [](const json& one) { return one.is_boolean(); })) {
    std::vector<int64_t> flags;
    for (const auto& one : value) flags.push_back(one.get<bool>() ? 1 : 0);
    return flags;
  }
  const bool is_plain = read_list<int64_t>(
                            value, [](const json& one) { return one.is_number_integer(); }, list) ||
                        read_list<double>(
                            value, [](const json& one) { return one.is_number(); }, list) ||
                        read_list<std::string>(
                            value, [](const json& one) { return one.is_string(); }, list);
  return is_plain ? list : std::nullopt;
}

// What was imported with the model, where it says null or what no plugin knows, is what the next export says.
std::string json_text(const ForeignConfig& config, const std::string& kept = {}) {
  if (config.empty()) return {};
  json object = kept.empty() ? json::object() : formats::parse_json(kept, kConfigFile, ErrorKind::checkpoint);
  const bool is_new = kept.empty();
  for (const auto& [key, value] : config) {
    const auto found = object.find(key);
    const bool is_said = found != object.end() && !found->is_null();
    // What is read as this value stays as it was written: [true, false] is [1, 0].
    if (is_new || (is_said && config_value(*found) != value))
      std::visit([&, k = key](const auto& v) { object[k] = v; }, value);
  }
  return formats::ascii_json(object) + '\n';
}

bool lies_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// "NAME-00001-of-00003.safetensors", as of 1.
std::string shard_of(const std::string& weights, size_t number, size_t count) {
  char text[32];
  std::snprintf(text, sizeof(text), "-%05zu-of-%05zu", number, count);
  return weights.substr(0, weights.size() - std::string_view(kSuffix).size()) + text + kSuffix;
}

// Runs of names whose tensors take at most so many bytes.
std::vector<NamedTensors> in_shards(const NamedTensors& tensors, uint64_t most_bytes) {
  std::vector<NamedTensors> shards(1);
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!shards.back().empty() && bytes + tensor.nbytes() > most_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.nbytes();
    shards.back()[name] = tensor;
  }
  return shards;
}

// A name of weights as diffusers and transformers write it: STEM[.VARIANT].SUFFIX, or an index of parts,
// STEM.SUFFIX.index[.VARIANT].json. (The parts, STEM-00001-of-00003.SUFFIX, are named by the index alone.)
struct WeightsName {
  bool is_of_diffusers, is_safetensors, is_index, is_variant;
};

std::optional<WeightsName> weights_name(const std::string& name) {
  std::vector<std::string> words;
  std::istringstream parts(name);
  for (std::string word; std::getline(parts, word, '.');) words.push_back(word);
  WeightsName found{};
  if (words.size() > 1 && words.back() == "json") {
    words.pop_back();
    found.is_variant = words.size() > 1 && words.back() != kIndexWord;
    if (found.is_variant) words.pop_back();
    if (words.back() != kIndexWord) return std::nullopt;
    found.is_index = true;
    words.pop_back();
  }
  if (words.size() == 3) {
    if (found.is_variant) return std::nullopt;
    found.is_variant = true;
    words.erase(words.begin() + 1);
  }
  if (words.size() != 2) return std::nullopt;
  found.is_of_diffusers = words[0] == "diffusion_pytorch_model";
  found.is_safetensors = words[1] == "safetensors";
  const bool is_of_transformers = words[0] == (found.is_safetensors ? "model" : "pytorch_model");
  if (!(found.is_of_diffusers || is_of_transformers) || !(found.is_safetensors || words[1] == "bin"))
    return std::nullopt;
  return found;
}

// Sorted. One that leads nowhere is a file: weights that were never fetched are no reason to take others.
std::vector<std::string> names_in(const std::string& folder, std::error_code& error,
                                  bool (*is_wanted)(bool is_folder)) {
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code broken;
    if (is_wanted(it->is_directory(broken))) names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}
std::vector<std::string> files_in(const std::string& folder, std::error_code& error) {
  return names_in(folder, error, [](bool is_folder) { return !is_folder; });
}
std::vector<std::string> folders_in(const std::string& folder, std::error_code& error) {
  return names_in(folder, error, [](bool is_folder) { return is_folder; });
}

[[noreturn]] void refuse_two(const std::string& folder, const std::string& one, const std::string& other) {
  throw Error(ErrorKind::checkpoint, folder,
              "has two sets of weights, " + shown(one) + " and " + shown(other) +
                  ", of which some programs read one and some the other",
              "name the one that is meant, or move the other away");
}

[[noreturn]] void refuse_two_of_a_class(const std::string& folder, const std::string& one, const std::string& other) {
  throw Error(ErrorKind::checkpoint, folder,
              "has weights of one class in two folders, " + shown(one) + "/ and " + shown(other) + "/",
              "name the folder that is meant");
}

// Whether an index says that the file holds some of its tensors.
bool lists(const std::string& index, const std::string& file) {
  const auto json = formats::parse_json(formats::read_file(index, ErrorKind::checkpoint, kMostIndexBytes), index,
                                        ErrorKind::checkpoint);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  return map != json.end() && std::any_of(map->begin(), map->end(), [&](const auto& one) { return one == file; });
}

// No file: it has none.
FoundWeights weights_found_in(const std::string& folder) {
  std::error_code error;
  FoundWeights found;
  std::vector<std::pair<std::string, WeightsName>> whole;
  for (const auto& name : files_in(folder, error))
    if (const auto one = weights_name(name); one && one->is_variant)
      found.not_read.push_back(name);
    else if (one)
      whole.emplace_back(name, *one);
  if (error)
    throw Error(ErrorKind::checkpoint, folder, "cannot be read: " + error.message(), "name the file of weights");
  if (whole.empty()) return {};
  for (const auto& [name, one] : whole)
    if (one.is_of_diffusers != whole.front().second.is_of_diffusers) refuse_two(folder, whole.front().first, name);
  const bool has_safetensors =
      std::any_of(whole.begin(), whole.end(), [](const auto& item) { return item.second.is_safetensors; });
  const auto path = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  for (const auto& [name, one] : whole)
    if (one.is_safetensors != has_safetensors)
      found.not_read.push_back(name);
    else if (found.file.empty() || (one.is_index && lists(path(name), found.file)))  // "x" comes before "x.index.json"
      found.file = name;
    else
      refuse_two(folder, found.file, name);
  found.file = path(found.file);
  return found;
}

// What the config.json beside a file of weights says that they are of; none: it says nothing.
std::vector<std::string> classes_beside(const std::string& weights) {
  ForeignShapes beside;
  read_config_beside(weights, beside);
  std::vector<std::string> classes;
  if (const auto of = beside.config.find("_class_name"); of != beside.config.end())
    if (const auto* name = std::get_if<std::string>(&of->second)) classes.push_back(*name);
  if (const auto of = beside.config.find("architectures"); of != beside.config.end())
    if (const auto* names = std::get_if<std::vector<std::string>>(&of->second))
      classes.insert(classes.end(), names->begin(), names->end());
  return classes;
}

bool is_one_of(const std::vector<std::string>& said, const std::vector<std::string>& classes) {
  return std::any_of(said.begin(), said.end(),
                     [&](const auto& one) { return std::find(classes.begin(), classes.end(), one) != classes.end(); });
}

void require_class(const std::string& weights, const std::vector<std::string>& classes) {
  const auto said = classes_beside(weights);
  if (said.empty() || is_one_of(said, classes)) return;
  std::string expected;
  for (const auto& one : classes) expected += (expected.empty() ? "" : ", ") + one;
  throw Error(ErrorKind::checkpoint, (fs::path(weights).parent_path() / kConfigFile).string(),
              "says that the weights are of " + shown(said.front()) + ", expected one of: " + expected,
              "name the folder of weights that are meant, or another plugin");
}

// What there is instead, so that it can be named.
[[noreturn]] void refuse_none(const std::string& path) {
  std::error_code ignored;
  std::string what;
  const auto add = [&](const std::string& name) { what += (what.empty() ? "; it has " : ", ") + shown(name); };
  const auto has_weights = [&](const std::string& folder) {
    const auto names = files_in(folder, ignored);
    return std::any_of(names.begin(), names.end(), [](const auto& name) { return weights_name(name).has_value(); });
  };
  for (const auto& name : files_in(path, ignored))
    if (weights_name(name)) add(name);
  for (const auto& folder : folders_in(path, ignored))
    if (has_weights((fs::path(path) / folder).string())) add(folder + "/");
  throw Error(ErrorKind::checkpoint, path, std::string("is a folder without ") + kWeightsFile + what,
              what.empty() ? "name the file of weights" : "name the one that is meant");
}

}  // namespace

FoundWeights find_foreign_weights(const std::string& path, const std::vector<std::string>& classes) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (!classes.empty()) require_class(path, classes);
    return {path, {}};
  }
  auto found = weights_found_in(path);
  for (const auto& folder : folders_in(path, ignored)) {
    if (classes.empty() && !folder.starts_with(kSubfolder)) continue;
    auto there = weights_found_in((fs::path(path) / folder).string());
    if (there.file.empty() || (!classes.empty() && !is_one_of(classes_beside(there.file), classes))) continue;
    const auto first = fs::path(found.file).lexically_relative(path);
    if (!found.file.empty() && !classes.empty() && first.has_parent_path())
      refuse_two_of_a_class(path, first.parent_path().string(), folder);
    if (!found.file.empty()) refuse_two(path, first.string(), folder + "/");
    found = std::move(there);
  }
  if (found.file.empty()) refuse_none(path);
  if (!classes.empty()) require_class(found.file, classes);
  return found;
}

std::string foreign_weights(const std::string& path) { return find_foreign_weights(path).file; }

std::string reading_of(const std::string& path, const FoundWeights& found) {
  if (found.file == path) return {};
  std::string text = "reads " + shown(found.file);
  for (const auto& name : found.not_read)
    text += (&name == &found.not_read.front() ? ", and not " : ", ") + shown(name);
  return text;
}

std::string read_config_beside(const std::string& weights, ForeignShapes& into) {
  const auto path = (fs::path(weights).parent_path() / kConfigFile).string();
  if (!lies_there(path)) return {};
  auto text = formats::read_file(path, ErrorKind::checkpoint, kMostConfigBytes);
  const auto object = formats::parse_json(text, path, ErrorKind::checkpoint);
  if (!object.is_object())
    throw Error(ErrorKind::checkpoint, path, "is no JSON object", "take the model's config.json");
  into.config_file = path;
  for (const auto& [key, value] : object.items())
    if (auto one = config_value(value)) into.config[key] = std::move(*one);
  return text;
}

void require_schedule(const std::string& pipeline, const ForeignConfig& ours) {
  const auto path = (fs::path(pipeline) / kSchedulerFolder / kSchedulerConfigFile).string();
  if (!lies_there(path)) return;
  const auto object = formats::parse_json(formats::read_file(path, ErrorKind::checkpoint, kMostConfigBytes), path,
                                          ErrorKind::checkpoint);
  const auto compare = [&](const std::string& key, const std::optional<OptionValue>& theirs,
                           const std::optional<OptionValue>& mine) {
    if (theirs && mine && *theirs != *mine)
      throw Error(ErrorKind::config, path,
                  "says " + key + " = " + ditto::to_text(*theirs) + ", and [scheduler] makes it " +
                      ditto::to_text(*mine) + ": these weights would be taken for others",
                  "set [scheduler] as the weights were trained, or name their own folder");
  };
  const auto theirs = [&](const char* key) { return object.contains(key) ? config_value(object[key]) : std::nullopt; };
  const auto mine = [&](const char* key) {
    const auto found = ours.find(key);
    return found == ours.end() ? std::nullopt : std::optional<OptionValue>(found->second);
  };
  const std::string of_flow = "FlowMatch", own = "_class_name";
  const auto class_of = [](const std::optional<OptionValue>& name) {
    const auto* text = name ? std::get_if<std::string>(&*name) : nullptr;
    return text ? *text : std::string();
  };
  if (const auto said = class_of(theirs(own.c_str())), made = class_of(mine(own.c_str()));
      !said.empty() && (made.empty() || said.starts_with(of_flow) != made.starts_with(of_flow)))
    throw Error(ErrorKind::config, path,
                "says " + shown(said) + ", and [scheduler] is " +
                    (made.empty() ? "none of diffusers'" : "what is " + made + " there") +
                    ": these weights would be taken for others",
                "set [scheduler] as the weights were trained, or name their own folder");
  for (const char* key : {"num_train_timesteps", "beta_schedule", "beta_start", "beta_end", "prediction_type"})
    compare(key, theirs(key), mine(key));
  // Who does not say it does not do it.
  constexpr const char* zero = "rescale_betas_zero_snr";
  if (!ours.empty()) compare(zero, theirs(zero).value_or(false), mine(zero).value_or(false));
}

ExportPlace::ExportPlace(const std::string& out, const Configs& configs)
    : is_folder_(!out.ends_with(kSuffix)), out_(out), weights_(out) {
  const auto& model = configs.model;
  if (is_folder_ && model.empty())
    throw Error(ErrorKind::config, "--out " + out, "is a folder, and weights of this format are one file",
                "name it: --out " + out + ".safetensors");
  const auto folder = is_folder_ ? fs::path(out) : fs::path(out).parent_path();
  if (is_folder_) weights_ = (folder / kWeightsFile).string();
  if (!model.empty())
    configs_ = {{(folder / kConfigFile).string(), json_text(model, configs.kept)},
                {(folder / kSchedulerConfigFile).string(), json_text(configs.scheduler)}};
  std::error_code ignored;
  for (const auto& file : configs_)
    if (lies_there(file.path) && (fs::file_size(file.path, ignored) != file.text.size() ||
                                  formats::read_file(file.path, ErrorKind::checkpoint, kMostConfigBytes) != file.text))
      throw Error(ErrorKind::config, file.path,
                  "is there, of another model or schedule, and would be read with these weights",
                  "export into another folder, or remove the file");
  if (is_folder_) formats::make_output_folder(out, "--out");
}

void ExportPlace::write_weights(const NamedTensors& tensors, const formats::Metadata& notes,
                                uint64_t most_bytes) const {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  const bool is_sharded = most_bytes > 0 && bytes > most_bytes;
  if (const auto other = is_sharded ? weights_ : weights_ + kIndex; lies_there(other))
    throw Error(ErrorKind::config, other, "is there, and would be read in the place of these weights",
                "export into another folder, or remove the file");
  if (!is_sharded) return write_tensors(weights_, tensors, notes, ErrorKind::checkpoint, formats::Sync::fsync);
  const auto shards = in_shards(tensors, most_bytes);
  json map = json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto file = shard_of(weights_, i + 1, shards.size());
    write_tensors(file, shards[i], notes, ErrorKind::checkpoint, formats::Sync::fsync);
    for (const auto& [name, tensor] : shards[i]) map[name] = fs::path(file).filename().string();
  }
  const auto text = formats::ascii_json(json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}) + '\n';
  formats::write_file(weights_ + kIndex, std::as_bytes(std::span(text)), ErrorKind::checkpoint, formats::Sync::fsync);
}

std::string ExportPlace::card() const {
  if (is_folder_) return (fs::path(out_) / kCard).string();
  return fs::path(out_).replace_extension(".md").string();
}

void ExportPlace::write_configs() const {
  for (const auto& file : configs_)
    if (!file.text.empty())
      formats::write_file(file.path, std::as_bytes(std::span(file.text)), ErrorKind::checkpoint, formats::Sync::fsync);
}

}  // namespace ditto::checkpoint
