#include "core/assembly/run_notes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/version.h>

#include "core/checkpoint/manifest.h"
#include "core/config/numerics.h"
#include "core/measure/libtorch.h"
#include "core/measure/surroundings.h"
#include "core/network/adapter.h"
#include "core/process/device.h"

namespace ditto {

namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

constexpr std::array<std::pair<std::string_view, const char*>, 9> kMatters{
    {{"processor", "another processor may round differently"},
     {"gpu", "another GPU may round differently"},
     {"cpu_capability", "other vector instructions round differently"},
     {"threads", "another number of threads may sum in another order"},
     {"torch", "another LibTorch may compute differently"},
     {"torch_build", "another build of LibTorch may compute differently"},
     {"variables", "they choose how libraries compute"},
     {"ditto", "another version of Ditto may compute differently"},
     {"numerics_epoch", "Ditto's numbers have changed"}}};
constexpr std::string_view kLibrary = "library.";  // and its name
constexpr const char* kEpoch = "numerics_epoch";

// None: no bits of a run depend on it.
std::string why_it_matters(const std::string& key, bool one_number) {
  const bool is_library = key.starts_with(kLibrary);
  if (is_library && report::decodes_pictures(key.substr(kLibrary.size())))
    return "another build of it may decode pictures differently";
  if (one_number && key != "ditto" && key != kEpoch) return {};
  if (is_library) return "another build of it may round differently";
  const auto found = std::find_if(kMatters.begin(), kMatters.end(), [&](const auto& one) { return one.first == key; });
  return found == kMatters.end() ? "" : found->second;
}

}  // namespace

std::map<std::string, std::string> machine_record(torch::Device device) {
  std::map<std::string, std::string> record{{"processor", processor()},
                                            {"cpu_capability", at::get_cpu_capability()},
                                            {"threads", std::to_string(torch::get_num_threads())},
                                            {"torch", TORCH_VERSION},
                                            {"torch_build", report::libtorch_build()},
                                            {"variables", report::arithmetic_variables()},
                                            {"ditto", kVersion},
                                            {kEpoch, std::to_string(kNumericsEpoch)}};
  for (const auto& [name, build] : report::arithmetic_libraries()) record[std::string(kLibrary) + name] = build;
  if (device.is_cuda()) record["gpu"] = gpu_name(device);
  return record;
}

void compare_machines(const std::map<std::string, std::string>& saved, const std::map<std::string, std::string>& now,
                      bool one_number, const std::function<void(const std::string&)>& say) {
  const bool by_epoch = one_number && saved.contains(kEpoch) && now.contains(kEpoch);  // whatever the version
  for (const auto& [key, before] : saved) {
    if (by_epoch && key == "ditto") continue;
    const auto after = now.find(key);
    const auto why = why_it_matters(key, one_number);
    if (!why.empty() && after != now.end() && before != after->second)
      say("changed since: " + key + ": " + before + " -> " + after->second + " (" + why +
          ": equal within rounding from here on, not bit for bit)");
  }
}

RunNotes::RunNotes(const std::map<std::string, std::string>& notes, std::string path)
    : notes_(notes), path_(std::move(path)) {
  if (!notes_.contains("updates"))
    throw Error(ErrorKind::checkpoint, path_, "holds weights and nothing else of a run, as imported ones do",
                "start a run from them with --set run.init_from=" + path_);
}

const std::string& RunNotes::text(const std::string& name) const {
  const auto found = notes_.find(name);
  if (found == notes_.end()) refuse(name, "it is missing");
  return found->second;
}

void RunNotes::refuse(const std::string& name, const char* what) const {
  throw Error(ErrorKind::checkpoint, path_ + "/" + checkpoint::kStateFile, "its note '" + name + "': " + what,
              "use another checkpoint");
}

int64_t RunNotes::whole(const std::string& name) const {
  const std::string& digits = text(name);
  int64_t value = -1;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc() || end != digits.data() + digits.size() || value < 0)
    refuse(name, "a whole number, 0 or more, is expected");
  return value;
}

double RunNotes::positive(const std::string& name) const {
  const std::string& digits = text(name);
  double value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value) || value <= 0)
    refuse(name, "a number above 0 is expected");
  return value;
}

// "3,9,17", ascending.
std::set<int64_t> RunNotes::numbers(const std::string& name, int64_t end) const {
  std::set<int64_t> all;
  const auto found = notes_.find(name);
  if (found == notes_.end()) return all;
  const char *at = found->second.data(), *const last = at + found->second.size();
  while (true) {
    int64_t number = -1;
    const auto [next, code] = std::from_chars(at, last, number);
    if (code != std::errc() || number < 0 || number >= end || (!all.empty() && number <= *all.rbegin()) ||
        (next != last && *next != ','))
      refuse(name, "numbers of the data's samples, ascending and with commas between them, are expected");
    all.insert(all.end(), number);
    if (next == last) return all;
    at = next + 1;
  }
}

namespace {

std::string choices_of(const std::string& kernels) { return "kernels." + kernels + ": "; }  // and what for

}  // namespace

std::map<std::string, std::string> notes_of(const std::map<std::string, KernelChoices>& kept) {
  std::map<std::string, std::string> notes;
  for (const auto& [kernels, choices] : kept)
    for (const auto& [what, choice] : choices) notes[choices_of(kernels) + what] = choice;
  return notes;
}

std::map<std::string, KernelChoices> kept_in(const formats::Table& run_toml) {
  std::map<std::string, KernelChoices> all;
  const auto* record = run_toml.find_path("record.kept");
  const auto* sets = record ? record->as<formats::Table>() : nullptr;
  for (const auto& set : sets ? sets->entries() : std::vector<formats::Entry>()) {
    const auto* choices = set.value.as<formats::Table>();
    for (const auto& choice : choices ? choices->entries() : std::vector<formats::Entry>())
      if (const auto* text = choice.value.as<std::string>()) all[set.key][choice.key] = *text;
  }
  return all;
}

KernelChoices kept_by(const std::string& kernels, const std::map<std::string, std::string>& notes) {
  const auto begin = choices_of(kernels);
  KernelChoices choices;
  for (auto at = notes.lower_bound(begin); at != notes.end() && at->first.starts_with(begin); ++at)
    choices[at->first.substr(begin.size())] = at->second;
  return choices;
}

namespace {

// Whether a fingerprint is what was noted, with more behind it (", contents 0123"); of a blend, whose parts' stand in
// brackets, with more behind any of them.
bool goes_on(std::string_view noted, std::string_view now) {
  std::size_t at = 0;
  for (const char c : noted) {
    if (c == ')' && now.substr(at).starts_with(", ")) at = std::min(now.find_first_of("()", at), now.size());
    if (at == now.size() || now[at++] != c) return false;
  }
  const auto rest = now.substr(at);
  return rest.empty() || (rest.starts_with(", ") && !noted.starts_with("blend of "));
}

}  // namespace

bool RunNotes::knows(const std::string& fingerprint) const {
  const auto noted = notes_.find("source");
  return noted == notes_.end() || goes_on(noted->second, fingerprint);
}

void RunNotes::require_network(const std::string& name, const std::string& fingerprint) const {
  require_weights("network." + name, fingerprint);
}

void RunNotes::require_weights(const std::string& section, const std::string& fingerprint) const {
  if (text(section) == fingerprint) return;
  const auto dot = section.find('.');
  throw Error(ErrorKind::checkpoint, path_,
              "its " + section.substr(0, dot) + " \"" + section.substr(dot + 1) + "\" had other weights than [" +
                  section + "] now",
              "name the same weights, or go on with others by --allow-change " + section + ".weights");
}

void RunNotes::require_adapter_base(const std::map<std::string, std::string>& now) const {
  const auto before = adapter_base(notes_), after = adapter_base(now);
  if (!after) return;  // that one of them has no adapter their recipes have said
  if (before && before->fingerprint == after->fingerprint && before->which == after->which) return;
  throw Error(ErrorKind::checkpoint, path_,
              "its adapter was learned on the " + (before ? before->which + " of " + before->path : "weights of none") +
                  ", and run.init_from names the " + after->which + " of " + after->path,
              before ? "give --set run.init_from=" + before->path + " --set run.init_weights=" + before->which
                     : "use another checkpoint");
}

void RunNotes::require_data(const std::string& fingerprint, const std::function<void(const std::string&)>& say) const {
  const auto noted = notes_.find("source");
  if (noted == notes_.end() || noted->second == fingerprint) return;
  if (knows(fingerprint)) return say("the data is as far the same as this checkpoint noted: " + noted->second);
  throw Error(ErrorKind::config, path_,
              "the run learned from other data than is there now: " + noted->second + "; and now " + fingerprint,
              "give --allow-change data if that is meant");
}

std::map<std::string, std::string> plugin_record(Recipe& recipe, const Registry& registry) {
  std::map<std::string, std::string> record;
  for (const auto& [section, component] : recipe.components()) {
    if (!*component) continue;
    const auto kind = kind_of(section);
    for (const auto& file : registry.files())
      if (file.kind == kind && file.id == component->plugin && file.refusal.empty())
        record[kind + "-" + file.id] = file.version + ", " + file.licence;
  }
  return record;
}

std::string run_toml(const Assembly& assembly, const Registry& registry) {
  formats::Table table = assembly.recipe.resolved();
  for (const auto& [key, value] : machine_record(assembly.main->ctx->device))
    table.set_path("record." + key, formats::Node{value, {}});
  for (const auto& [plugin, version] : plugin_record(assembly.recipe, registry))
    table.set_path("record.plugins." + plugin, formats::Node{version, {}});
  for (const auto& [query, variant] : assembly.networks->table->chosen())
    table.set_path("record.kernels." + query, formats::Node{variant, {}});
  for (const auto& [kernels, choices] : assembly.components.kept())
    for (const auto& [what, choice] : choices)
      table.set_path("record.kept." + kernels + "." + what, formats::Node{choice, {}});
  return formats::render_toml(table);
}

}  // namespace ditto
