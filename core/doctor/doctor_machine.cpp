// The parts of `ditto doctor` that look at the machine: all by reading files, none by asking a device.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "core/console/progress.h"
#include "core/doctor/doctor.h"
#include "core/measure/processors.h"

namespace ditto::report {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;
using Level = Finding::Level;

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// "MemTotal:  123 kB" and "flags\t\t: fpu vme …" alike.
std::string value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == line.npos || line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != key) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == line.npos ? "" : line.substr(start);
  }
  return "";
}

int64_t kilobytes(const std::string& key) { return 1024 * std::atoll(value_of("/proc/meminfo", key).c_str()); }

Json instruction_sets() {
  std::istringstream flags(value_of("/proc/cpuinfo", "flags"));
  const std::set<std::string> have{std::istream_iterator<std::string>(flags), {}};
  Json found = Json::array();
  for (const char* one : {"avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
                          "amx_bf16", "amx_int8"}) {
    if (have.count(one)) found.push_back(one);
  }
  return found;
}

int64_t memory_limit() { return std::atoll(first_line("/sys/fs/cgroup/memory.max").c_str()); }  // "max": 0

fs::path existing_parent(fs::path path) {
  std::error_code ignored;
  path = fs::absolute(path, ignored).lexically_normal();
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

struct WriteTrial {
  double bytes_per_s = 0, sync_s = 0;
  int error = 0;
};

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

WriteTrial try_writing(const std::string& folder) {
  std::string name = folder + "/.ditto_doctor_XXXXXX";
  const int file = ::mkstemp(name.data());
  if (file < 0) return {0, 0, errno};
  ::unlink(name.c_str());
  const std::string block(1 << 20, 'd');
  const auto start = Clock::now();
  WriteTrial trial;
  for (int i = 0; i < 16 && trial.error == 0; ++i)
    if (::write(file, block.data(), block.size()) != static_cast<ssize_t>(block.size()))
      trial.error = errno ? errno : ENOSPC;
  if (trial.error == 0 && ::fsync(file) != 0) trial.error = errno;
  trial.bytes_per_s = 16.0 * (1 << 20) / since(start);
  const auto small = Clock::now();
  if (trial.error == 0 && (::pwrite(file, "x", 1, 0) != 1 || ::fsync(file) != 0)) trial.error = errno;
  trial.sync_s = since(small);
  ::close(file);
  return trial;
}

std::vector<std::string> library_folders() {
  std::vector<std::string> folders{
      "/usr/lib/x86_64-linux-gnu", "/usr/lib64",      "/usr/lib", "/usr/local/nvidia/lib64",
      "/usr/local/cuda/lib64",     "/usr/lib/wsl/lib"};
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
    std::istringstream parts(path);
    for (std::string part; std::getline(parts, part, ':');)
      if (!part.empty()) folders.insert(folders.begin(), part);
  }
  return folders;
}

std::string find_library(const std::string& name, const std::vector<std::string>& folders) {
  std::error_code ignored;
  for (const auto& folder : folders)
    if (fs::exists(folder + "/" + name, ignored)) return folder + "/" + name;
  return "";
}

int device_files() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    count += name.size() > 6 && name.starts_with("nvidia") && name.find_first_not_of("0123456789", 6) == name.npos;
  }
  return count;
}

}  // namespace

void diagnose_processor(Diagnosis& out) {
  const int cores = processors_in_mask();
  Json& facts = out.facts["processor"] = {{"model", value_of("/proc/cpuinfo", "model name")},
                                          {"cores", std::thread::hardware_concurrency()},
                                          {"cores_usable", cores},
                                          {"threads", usable_processors()}};
  if (const auto quota = processor_quota()) {
    facts["cores_quota"] = *quota;
    if (*quota < cores)
      out.add(
          Level::warning, fmt::format("this container may use the time of {:.1f} of {} cores", *quota, cores),
          fmt::format("{} threads compute, where run.threads and OMP_NUM_THREADS say nothing", usable_processors()));
  }
  facts["instructions"] = instruction_sets();
  if (std::find(facts["instructions"].begin(), facts["instructions"].end(), "avx2") == facts["instructions"].end())
    out.add(Level::warning, "the processor has no AVX2: matrix products are several times slower");
  const int64_t available = kilobytes("MemAvailable"), limit = memory_limit();
  Json& memory = out.facts["memory"] = {{"total_bytes", kilobytes("MemTotal")}, {"available_bytes", available}};
  if (limit > 0) memory["limit_bytes"] = limit;
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0)
    memory["dev_shm_bytes"] = static_cast<int64_t>(shared.f_blocks * shared.f_frsize);
  if (available > 0 && available < (int64_t{1} << 30))
    out.add(Level::warning, "less than 1 GiB of memory is available: " + bytes_text(available));
}

void diagnose_cuda(Diagnosis& out, const std::string& libtorch_folder) {
  const auto folders = library_folders();
  const std::string torch = find_library("libtorch_cuda.so", {libtorch_folder});
  const std::string driver = find_library("libcuda.so.1", folders);
  const int devices = device_files();
  const auto shown = [](const std::string& path) { return path.empty() ? Json("none") : Json(path); };
  out.facts["cuda"] = {{"libtorch_cuda", shown(torch)},
                       {"driver_library", shown(driver)},
                       {"driver", shown(first_line("/proc/driver/nvidia/version"))},
                       {"devices", devices}};
  Json missing = Json::array();
  for (const char* name :
       {"libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2"}) {
    auto places = folders;
    places.push_back(libtorch_folder);
    if (find_library(name, places).empty()) missing.push_back(name);
  }
  out.facts["cuda"]["libraries_missing"] = missing;
  if (devices == 0) return;  // a machine without a graphics card misses nothing
  if (torch.empty())
    out.add(Level::warning, "there is a CUDA device, but LibTorch is built without CUDA", "use a LibTorch with CUDA");
  else if (driver.empty())
    out.add(Level::warning, "there is a CUDA device, but no libcuda.so.1", "install NVIDIA's driver library");
}

void diagnose_disk(Diagnosis& out, const std::string& folder) {
  const std::string place = existing_parent(folder).string();
  Json& facts = out.facts["disk"] = {{"folder", place}};
  struct statvfs disk {};
  if (::statvfs(place.c_str(), &disk) == 0 && disk.f_blocks > 0) {
    const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
    facts["free_bytes"] = free;
    if (free < (int64_t{1} << 30)) out.add(Level::warning, place + " has less than 1 GiB left: " + bytes_text(free));
  }
  const WriteTrial trial = try_writing(place);
  if (trial.error != 0) {
    out.add(Level::problem, place + " cannot be written: " + std::strerror(trial.error),
            "set run.output to a folder that can, or run from another folder");
    return;
  }
  facts["second_of_writing_bytes"] = static_cast<int64_t>(trial.bytes_per_s);
  facts["sync_ms"] = std::round(trial.sync_s * 1e4) / 10;
  if (trial.sync_s > 0.1)
    out.add(Level::warning,
            fmt::format("one fsync in {} takes {:.0f} ms, and a checkpoint makes several", place, 1e3 * trial.sync_s));
}

}  // namespace ditto::report
