#include "core/checkpoint/foreign_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/formats/file.h"
#include "core/formats/json.h"
#include "core/formats/limits.h"
#include "core/formats/output_folder.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char *kWeightsFile = "diffusion_pytorch_model.safetensors", *kOthersWeightsFile = "model.safetensors",
                     *kConfigFile = "config.json", *kSchedulerConfigFile = "scheduler_config.json",
                     *kSubfolder = "transformer";
constexpr uint64_t kMostConfig = uint64_t{1} << 20;  // bytes: diffusers' have one or two thousand

std::string json_text(const ForeignConfig& config) {
  if (config.empty()) return {};
  json object = json::object();
  for (const auto& [key, value] : config) std::visit([&, k = key](const auto& v) { object[k] = v; }, value);
  return formats::ascii_json(object) + '\n';
}

std::optional<OptionValue> plain(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  return std::nullopt;
}

}  // namespace

std::string foreign_weights(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const auto& folder : {fs::path(path), fs::path(path) / kSubfolder})
    for (const char* name : {kWeightsFile, kOthersWeightsFile})
      for (const char* index : {"", ".index.json"})
        if (const auto file = (folder / name).string() + index; fs::exists(file, ignored)) return file;
  throw Error(ErrorKind::checkpoint, path, std::string("is a folder without ") + kWeightsFile,
              "name the file of weights");
}

void read_config_beside(const std::string& weights, ForeignShapes& into) {
  const auto path = (fs::path(weights).parent_path() / kConfigFile).string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  const auto object =
      formats::parse_json(formats::read_file(path, ErrorKind::checkpoint, kMostConfig), path, ErrorKind::checkpoint);
  if (!object.is_object())
    throw Error(ErrorKind::checkpoint, path, "is no JSON object", "take the model's config.json");
  into.config_file = path;
  for (const auto& [key, value] : object.items())
    if (auto one = plain(value)) into.config[key] = std::move(*one);
}

ExportPlace::ExportPlace(const std::string& out, const ForeignConfig& model, const ForeignConfig& scheduler)
    : weights_(out) {
  const bool is_file = out.ends_with(".safetensors");
  if (!is_file && model.empty())
    throw Error(ErrorKind::config, "--out " + out, "is a folder, and weights of this format are one file",
                "name it: --out " + out + ".safetensors");
  const auto folder = is_file ? fs::path(out).parent_path() : fs::path(out);
  if (!is_file) weights_ = (folder / kWeightsFile).string();
  if (!model.empty())
    configs_ = {{(folder / kConfigFile).string(), json_text(model)},
                {(folder / kSchedulerConfigFile).string(), json_text(scheduler)}};
  std::error_code ignored;
  for (const auto& file : configs_)
    if (fs::exists(file.path, ignored) &&
        (fs::file_size(file.path, ignored) != file.text.size() ||
         formats::read_file(file.path, ErrorKind::checkpoint, kMostConfig) != file.text))
      throw Error(ErrorKind::config, file.path,
                  "is there, of another model or schedule, and would be read with these weights",
                  "export into another folder, or remove the file");
  if (!is_file) formats::make_output_folder(out, "--out");
}

void ExportPlace::write_configs() const {
  for (const auto& file : configs_)
    if (!file.text.empty())
      formats::write_file(file.path, std::as_bytes(std::span(file.text)), ErrorKind::checkpoint, formats::Sync::fsync);
}

}  // namespace ditto::checkpoint
