#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include <ditto/text.h>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/reader.h"
#include "core/formats/text/json.h"

namespace ditto::checkpoint {

using nlohmann::json;

namespace {

std::map<std::string, Info::Tensor> tensors_of(const Section& section) {
  std::map<std::string, Info::Tensor> tensors;
  for (const auto& [name, tensor] : section) tensors[name] = {tensor.dtype, tensor.shape, tensor.pieces.size()};
  return tensors;
}

int64_t count(const std::map<std::string, Info::Tensor>& tensors) {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += numbers(tensor.shape);
  return total;
}

std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

// Names and notes are the file's.
std::string row(const std::string& name, const std::string& text) {
  const auto value = shown(text, kSentenceShown);
  return name + std::string(name.size() < 12 ? 12 - name.size() : 1, ' ') + value + "\n";
}

std::string summary(const std::map<std::string, Info::Tensor>& tensors) {
  return grouped(count(tensors)) + " numbers in " + std::to_string(tensors.size()) + " tensors";
}

// Of each other network that trains, what of the weights is its own.
std::string networks_of(const std::map<std::string, Info::Tensor>& tensors) {
  std::map<std::string, std::map<std::string, Info::Tensor>> networks;
  const std::string prefix = kNetworkPrefix;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(prefix))
      networks[name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size())][name] = tensor;
  std::string text;
  for (const auto& [name, own] : networks) text += row("of them", "network " + name + ": " + summary(own));
  return text;
}

json tensors_json(const std::map<std::string, Info::Tensor>& tensors) {
  json out = json::object();
  for (const auto& [name, tensor] : tensors)
    out[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", tensor.pieces}};
  return out;
}

}  // namespace

Info describe(const std::string& path) {
  const Reader reader(path);
  Info info{path,
            reader.state().step,
            reader.state().samples,
            reader.state().seed,
            reader.state().ranks,
            reader.state().extra,
            reader.recipe(),
            reader.state().counters,
            tensors_of(reader.index().section(kModel)),
            tensors_of(reader.index().section(kEma)),
            tensors_of(reader.index().section(kOptimizer)),
            {}};
  for (const FileRecord& file : reader.manifest().files) info.files.push_back({file.name, file.bytes});
  return info;
}

std::string to_text(const Info& info) {
  std::string text = row("path", info.path) + row("step", grouped(info.step)) + row("samples", grouped(info.samples)) +
                     row("seed", std::to_string(info.seed)) + row("ranks", std::to_string(info.ranks)) +
                     row("weights", summary(info.model)) + networks_of(info.model) +
                     row("EMA", info.has_ema() ? summary(info.ema) : "none") +
                     row("optimizer", info.optimizer.empty() ? "none" : summary(info.optimizer));
  for (const auto& [name, value] : info.counters)
    text += row("counter", shown(name) + " = " + fmt::format("{}", value));
  for (const auto& [name, value] : info.extra) text += row("note", shown(name) + " = " + value);
  for (const Info::File& file : info.files)
    text += row("file", shown(file.name) + "  " + grouped(static_cast<int64_t>(file.bytes)) + " bytes");
  for (const auto& [name, tensor] : info.model)
    text += row("tensor", shown(name) + "  " + tensor.dtype + " " + to_text(tensor.shape) +
                              (tensor.pieces > 1 ? "  in " + std::to_string(tensor.pieces) + " pieces" : ""));
  return text;
}

std::string to_json(const Info& info) {
  json files = json::array();
  for (const Info::File& file : info.files) files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  return formats::ascii_json(json{{"path", info.path},
                                  {"step", info.step},
                                  {"samples", info.samples},
                                  {"seed", info.seed},
                                  {"ranks", info.ranks},
                                  {"extra", info.extra},
                                  {"counters", to_json(info.counters)},
                                  {"recipe", info.recipe_toml},
                                  {"parameters", count(info.model)},
                                  {"model", tensors_json(info.model)},
                                  {"ema", tensors_json(info.ema)},
                                  {"optimizer", tensors_json(info.optimizer)},
                                  {"files", std::move(files)}},
                             1);
}

}  // namespace ditto::checkpoint
