#include "core/checkpoint/foreign_folder.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/formats/file.h"
#include "core/formats/json.h"
#include "core/formats/limits.h"
#include "core/formats/output_folder.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char *kWeightsFile = "diffusion_pytorch_model.safetensors", *kConfigFile = "config.json",
                     *kSchedulerConfigFile = "scheduler_config.json", *kSubfolder = "transformer", *kCard = "README.md",
                     *kIndex = ".index.json", *kSuffix = ".safetensors";
constexpr std::array<const char*, 4> kKnownWeights{kWeightsFile, "model.safetensors", "diffusion_pytorch_model.bin",
                                                   "pytorch_model.bin"};
constexpr uint64_t kMostConfigBytes = uint64_t{1} << 20;  // bytes: diffusers' have one or two thousand

// What was imported with the model, where it says null or what no plugin knows, is what the next export says.
std::string json_text(const ForeignConfig& config, const std::string& kept = {}) {
  if (config.empty()) return {};
  json object = kept.empty() ? json::object() : formats::parse_json(kept, kConfigFile, ErrorKind::checkpoint);
  const bool is_new = kept.empty();
  for (const auto& [key, value] : config) {
    const auto found = object.find(key);
    if (is_new || (found != object.end() && !found->is_null()))
      std::visit([&, k = key](const auto& v) { object[k] = v; }, value);
  }
  return formats::ascii_json(object) + '\n';
}

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
  const bool is_plain = read_list<int64_t>(
                            value, [](const json& one) { return one.is_number_integer(); }, list) ||
                        read_list<double>(
                            value, [](const json& one) { return one.is_number(); }, list) ||
                        read_list<std::string>(
                            value, [](const json& one) { return one.is_string(); }, list);
  return is_plain ? list : std::nullopt;
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

}  // namespace

std::string foreign_weights(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const auto& folder : {fs::path(path), fs::path(path) / kSubfolder})
    for (const char* name : kKnownWeights)
      for (const char* index : {"", kIndex})
        if (const auto file = (folder / name).string() + index; fs::exists(file, ignored)) return file;
  throw Error(ErrorKind::checkpoint, path, std::string("is a folder without ") + kWeightsFile,
              "name the file of weights");
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
