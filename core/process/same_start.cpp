#include "core/process/same_start.h"

#include <filesystem>

#include <torch/version.h>
#include <boost/dll/runtime_symbol_info.hpp>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <ditto/text.h>
#include <ditto/version.h>

#include "core/checkpoint/disk.h"
#include "core/config/differences.h"
#include "core/formats/file.h"
#include "core/measure/libtorch.h"

namespace ditto {

namespace {

constexpr size_t kMostNamed = 3;     // differences in a message
constexpr size_t kValueShown = 100;  // bytes of one of their values

std::string hash(const std::string& text) { return checkpoint::checksum(std::as_bytes(std::span(text))); }

std::string hash_of_file(const std::string& path, ErrorKind kind) { return hash(formats::read_file(path, kind)); }

std::string value(const Facts& facts, const std::string& name) {
  const auto it = facts.find(name);
  return it == facts.end() ? "none" : shown(it->second, kValueShown);
}

std::string differences(const Facts& here, const Facts& on_rank_0) {
  Facts names = here;
  names.insert(on_rank_0.begin(), on_rank_0.end());
  std::string text;
  size_t count = 0;
  for (const auto& [name, unused] : names) {
    const auto a = here.find(name), b = on_rank_0.find(name);
    if (a != here.end() && b != on_rank_0.end() && a->second == b->second) continue;
    if (++count > kMostNamed) continue;
    text += (count > 1 ? ", " : "") + name + " = " + value(here, name) + ", but rank 0 has " + value(on_rank_0, name);
  }
  return count > kMostNamed ? text + ", and " + std::to_string(count - kMostNamed) + " more" : text;
}

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

Facts facts_of(const Recipe& recipe, const Registry& registry) {
  Facts facts;
  for (const auto& [key, value] : flat(recipe.resolved()))
    if (!key.starts_with("record.") && !recipe.effects().is_place(key)) facts[key] = value;
  for (const auto& file : registry.opened())
    facts["plugin " + plugin_name(file.kind, file.id)] =
        file.version + " " + hash_of_file(file.path, ErrorKind::plugin);
  // What runs here, whatever its place holds by now.
  facts["ditto"] = std::string(kVersion) + " " + hash_of_file("/proc/self/exe", ErrorKind::plugin);
  facts["libditto_sdk"] = hash_of_file(
      boost::dll::symbol_location_ptr(reinterpret_cast<const void*>(&nearest)).string(), ErrorKind::plugin);
  facts["LibTorch"] = std::string(TORCH_VERSION) + ", " + report::libtorch_build();
  return facts;
}

Facts facts_of(const Source& source, const std::string& name) {
  Facts facts{{name, source.fingerprint()}, {name + ", samples", std::to_string(source.size())}};
  for (const auto& tensor : source.makes())
    facts[name + ", " + tensor.name] = std::string(c10::toString(tensor.dtype)) + " " +
                                       to_text(OptionValue(tensor.shape)) +
                                       (tensor.values > 0 ? " of " + std::to_string(tensor.values) : "");
  return facts;
}

Facts facts_of_checkpoint(const std::string& path) {
  const std::filesystem::path folder(path);
  return {{"checkpoint", folder.filename().string()},
          {"its manifest", hash_of_file((folder / "manifest.json").string(), ErrorKind::checkpoint)}};
}

void expect_same(c10d::Store& store, int rank, const std::string& topic, const Facts& facts, ErrorKind kind,
                 const std::string& where) {
  const auto all = nlohmann::json(facts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto mine = hash(all), key = "same/" + topic;
  if (rank == 0) {
    store.set(key + "/facts", bytes(all));
    store.set(key, bytes(mine));
    return;
  }
  if (text(store.get(key)) == mine) return;
  const auto on_rank_0 = nlohmann::json::parse(text(store.get(key + "/facts"))).get<Facts>();
  throw Error(kind, where, differences(facts, on_rank_0), "start all ranks with the same " + topic);
}

}  // namespace ditto
