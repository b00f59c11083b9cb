#include "core/doctor/doctor.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>

#include <ditto/text.h>
#include <ditto/version.h>

#include "core/config/numerics.h"
#include "core/console/progress.h"
#include "core/measure/libtorch.h"
#include "core/measure/surroundings.h"
#include "core/plugin/kinds.h"
#include "core/plugin/registry.h"

extern char** environ;

namespace ditto::report {

namespace {

using Json = nlohmann::ordered_json;
using Level = Finding::Level;

std::string library_of(const void* symbol) {
  Dl_info info{};
  if (::dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "?";
  std::error_code ignored;
  const auto path = std::filesystem::canonical(info.dli_fname, ignored);
  return path.empty() ? info.dli_fname : path.string();
}

std::string build_mode_text() {
  const uint32_t bits = build_mode();
  std::string text = bits & kBuildDebug ? "debug" : "release";
  if (bits & kBuildAddressSanitizer) text += ", address sanitizer";
  if (bits & kBuildThreadSanitizer) text += ", thread sanitizer";
  return text;
}

std::string diagnose_versions(Diagnosis& out) {
  Json abis;
  for_each_kind([&](auto tag) { abis[decltype(tag)::type::kKind] = decltype(tag)::type::kAbi; });
  const std::string torch = library_of(reinterpret_cast<const void*>(&at::get_num_threads));
  out.facts["ditto"] = {{"version", kVersion},
                        {"numerics_epoch", kNumericsEpoch},
                        {"abi", abis},
                        {"build", build_mode_text()},
                        {"compiler", __VERSION__},
                        {"program", std::filesystem::read_symlink("/proc/self/exe").string()}};
  out.facts["libtorch"] = {{"version", loaded_libtorch()},
                           {"built_with", TORCH_VERSION},
                           {"build", libtorch_build()},
                           {"library", torch},
                           {"processor", at::get_cpu_capability()}};
  utsname system{};
  ::uname(&system);
  out.facts["system"] = {{"kernel", std::string(system.sysname) + " " + system.release},
                         {"machine", system.machine},
                         {"glibc", ::gnu_get_libc_version()},
                         {"host", system.nodename}};
  return std::filesystem::path(torch).parent_path().string();
}

void list_plugins(Diagnosis& out, const Registry& plugins) {
  std::map<std::string, Json> kinds;
  Json refused = Json::array();
  for (const auto& file : plugins.files()) {
    if (file.refusal.empty()) {
      kinds[file.kind].push_back(file.id);
    } else {
      refused.push_back(file.path);
      out.add(Level::warning, "plugin " + file.path + " is refused: " + file.refusal);
    }
  }
  Json& facts = out.facts["plugins"] = Json::object();
  for (auto& [kind, ids] : kinds) facts[kind] = std::move(ids);
  if (!refused.empty()) facts["refused"] = refused;
  if (kinds.empty())
    out.add(Level::problem, "no plugin was found",
            "set DITTO_PLUGIN_PATH to the folder that holds them, or install again");
}

void diagnose_plugins(Diagnosis& out) {
  try {
    list_plugins(out, Registry());
  } catch (const Error& error) {
    out.add(Level::problem, error.what());
  }
}

void diagnose_limits(Diagnosis& out) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const auto text = [](rlim_t value) { return value == RLIM_INFINITY ? Json("unlimited") : Json(value); };
  out.facts["limits"] = {{"open_files", text(files.rlim_cur)}, {"open_files_at_most", text(files.rlim_max)}};
  if (files.rlim_cur != RLIM_INFINITY && files.rlim_cur < 1024)
    out.add(Level::warning, fmt::format("only {} files may be open, which many shards or ranks exceed", files.rlim_cur),
            "ulimit -n 4096");
}

// One that a program without a path of its own to LibTorch would load.
std::string other_libtorch() {
  const char* folders = std::getenv("LD_LIBRARY_PATH");
  std::istringstream all(folders ? folders : "");
  std::error_code ignored;
  for (std::string folder; std::getline(all, folder, ':');)
    for (const char* name : {"libtorch_cpu.so", "libc10.so"}) {
      const auto path = std::filesystem::path(folder.empty() ? "." : folder) / name;
      const bool is_own =
          std::filesystem::equivalent(path, library_of(reinterpret_cast<const void*>(&at::get_num_threads)), ignored);
      if (std::filesystem::exists(path, ignored) && !is_own) return path.string();
    }
  return {};
}

void diagnose_arithmetic(Diagnosis& out) {
  Json& facts = out.facts["arithmetic"] = {{"variables", arithmetic_variables()}};
  for (const auto& [library, build] : arithmetic_libraries()) facts[library] = build;
}

// The variables that change what a run does; never all of them, which may hold secrets.
void diagnose_environment(Diagnosis& out) {
  static constexpr std::string_view kPrefixes[] = {"ATEN_",
                                                   "CUBLAS_",
                                                   "DNNL_",
                                                   "GLIBC_TUNABLES=",
                                                   "LD_AUDIT=",
                                                   "NVIDIA_TF32",
                                                   "OMP_",
                                                   "ONEDNN_",
                                                   "MKL_",
                                                   "KMP_",
                                                   "GOMP_",
                                                   "MASTER_",
                                                   "RANK=",
                                                   "WORLD_SIZE=",
                                                   "LOCAL_RANK=",
                                                   "LOCAL_WORLD_SIZE=",
                                                   "SLURM_JOB",
                                                   "SLURM_NTASKS",
                                                   "SLURM_NNODES",
                                                   "SLURM_PROCID",
                                                   "SLURM_LOCALID",
                                                   "SLURM_NODELIST",
                                                   "TORCHELASTIC_",
                                                   "TORCH_",
                                                   "CUDA_",
                                                   "NCCL_",
                                                   "GLOO_",
                                                   "DITTO_",
                                                   "LD_LIBRARY_PATH=",
                                                   "LD_PRELOAD=",
                                                   "MALLOC_"};
  std::vector<std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    for (const auto prefix : kPrefixes) {
      if (text.starts_with(prefix)) {
        found.emplace_back(text);
        break;
      }
    }
  }
  std::sort(found.begin(), found.end());
  Json& facts = out.facts["environment"] = Json::object();
  for (const auto& text : found) facts[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  const bool master = facts.contains("MASTER_ADDR");
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    if (master && !facts.contains(name))
      out.add(Level::warning, fmt::format("MASTER_ADDR is set, but {} is not", name),
              "start ranks by torchrun or srun, or unset MASTER_ADDR");
  }
  if (const auto variables = arithmetic_variables(); variables != "none")
    out.add(
        Level::note,
        variables + ": chooses how libraries compute; a run is noted with it, and without it its bits may be others");
  if (const auto other = other_libtorch(); !other.empty())
    out.add(Level::note, "LD_LIBRARY_PATH leads to another LibTorch, " + other + ", which is not used");
  if (facts.contains("OMP_NUM_THREADS"))
    out.add(Level::note, "OMP_NUM_THREADS = " + facts["OMP_NUM_THREADS"].get<std::string>() +
                             " decides the number of threads where run.threads = 0");
}

std::string fact_text(const std::string& key, const Json& value) {
  if (key.ends_with("_bytes") && value.is_number()) return bytes_text(value.get<int64_t>());
  if (value.is_string()) return shown(value.get<std::string>(), kSentenceShown);
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const auto& one : value) text += (text.empty() ? "" : ", ") + fact_text("", one);
  return text.empty() ? "none" : text;
}

void add_section(std::string& text, const std::string& name, const Json& values) {
  text += name + "\n";
  if (values.empty()) text += "  none\n";
  for (const auto& [key, value] : values.items()) {
    const std::string label = key.ends_with("_bytes") ? key.substr(0, key.size() - 6) : key;
    text += fmt::format("  {:<20} {}\n", shown(label), fact_text(key, value));
  }
}

const char* level_name(Level level) {
  switch (level) {
    case Level::note: return "note";
    case Level::warning: return "warning";
    case Level::problem: return "problem";
  }
  return "";
}

}  // namespace

bool Diagnosis::has_problem() const {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& one) { return one.level == Level::problem; });
}

Diagnosis diagnose(const std::string& output) {
  Diagnosis out;
  const std::string libtorch = diagnose_versions(out);
  diagnose_processor(out);
  diagnose_cuda(out, libtorch);
  diagnose_plugins(out);
  diagnose_disk(out, output);
  diagnose_limits(out);
  diagnose_arithmetic(out);
  diagnose_environment(out);
  return out;
}

std::string to_text(const Diagnosis& diagnosis) {
  std::string text;
  for (const auto& [name, values] : diagnosis.facts.items()) add_section(text, name, values);
  text += "findings\n";
  if (diagnosis.findings.empty()) text += "  nothing that would trouble a run\n";
  for (const Finding& one : diagnosis.findings)
    text += fmt::format("  {}: {}{}{}\n", level_name(one.level), shown(one.what, kSentenceShown),
                        one.remedy.empty() ? "" : "; ", shown(one.remedy, kSentenceShown));
  return text;
}

Json to_json(const Diagnosis& diagnosis) {
  Json out = diagnosis.facts;
  Json& findings = out["findings"] = Json::array();
  for (const Finding& one : diagnosis.findings)
    findings.push_back({{"level", level_name(one.level)}, {"what", one.what}, {"remedy", one.remedy}});
  return out;
}

}  // namespace ditto::report
