// Control groups: man 7 cgroups; Documentation/admin-guide/cgroup-v2.rst (cpu.max), cgroup-v1 and
// scheduler/sched-bwc.rst (cpu.cfs_quota_us, cpu.cfs_period_us).
#include "core/measure/processors.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace ditto::report {

namespace {

namespace fs = std::filesystem;

// A mounted hierarchy of groups: which of its folders is seen, and where.
struct Mount {
  bool is_v2 = false;
  std::string seen, at;
};

std::vector<std::string> words_of(const std::string& line, char separator) {
  std::vector<std::string> words;
  std::istringstream text(line);
  for (std::string word; std::getline(text, word, separator);) words.push_back(word);
  return words;
}

bool has_word(const std::string& list, const std::string& word) {
  const auto words = words_of(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// "\\040" of mountinfo is a blank.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_code = text[i] == '\\' && text.find_first_not_of("01234567", i + 1) >= i + 4 && i + 3 < text.size();
    plain += is_code ? static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8)) : text[i];
    if (is_code) i += 3;
  }
  return plain;
}

// "36 35 0:32 /seen /at options - cgroup2 source super-options"
std::vector<Mount> mounts(const fs::path& root) {
  std::vector<Mount> found;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const auto words = words_of(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 4) continue;
    const bool is_v2 = dash[1] == "cgroup2";
    if (is_v2 || (dash[1] == "cgroup" && has_word(dash[3], "cpu")))
      found.push_back({is_v2, unescaped(words[3]), unescaped(words[4])});
  }
  return found;
}

// "0::/group" of version 2, "4:cpu,cpuacct:/group" of version 1.
std::optional<std::string> own_group(const fs::path& root, bool is_v2) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    if (is_v2 ? controllers.empty() : has_word(controllers, "cpu")) return line.substr(second + 1);
  }
  return {};
}

std::optional<double> number_in(const fs::path& path) {
  std::ifstream file(path);
  double number = 0;
  if (file >> number) return number;
  return {};
}

std::optional<double> quota_in(const fs::path& folder, bool is_v2) {
  std::optional<double> quota, period;
  if (is_v2) {
    std::ifstream file(folder / "cpu.max");  // "200000 100000", or "max 100000"
    double time = 0, of = 0;
    if (file >> time >> of) quota = time, period = of;
  } else {
    quota = number_in(folder / "cpu.cfs_quota_us");  // -1: none
    period = number_in(folder / "cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return {};
  return *quota / *period;
}

// "RANK=3": what says which rank this process is, as launchers set it (core/ranks/launch.cpp). A launcher that is
// itself started by another (torchrun by srun) has that one's.
std::string rank_in_environment() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* value = std::getenv(name)) return name + std::string("=") + value;
  return {};
}

bool has_variable(const fs::path& root, int process, const std::string& variable) {
  std::ifstream file(root / "proc" / std::to_string(process) / "environ");
  for (std::string entry; std::getline(file, entry, '\0');)
    if (entry == variable) return true;
  return false;
}

int parent_of(const fs::path& root, int process) {
  std::ifstream file(root / "proc" / std::to_string(process) / "status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("PPid:")) return std::atoi(line.c_str() + 5);
  return 0;
}

}  // namespace

int processors_in_mask(int process) {
  for (int many = CPU_SETSIZE; many <= (1 << 20); many *= 2) {
    cpu_set_t* set = CPU_ALLOC(many);
    if (!set) return 0;
    const size_t bytes = CPU_ALLOC_SIZE(many);
    const bool known = ::sched_getaffinity(process, bytes, set) == 0;  // else the machine may have more
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return count;
  }
  return 0;
}

std::optional<double> processor_quota(const std::string& root) {
  std::optional<double> least;
  for (const auto& mount : mounts(root)) {
    const auto group = own_group(root, mount.is_v2);
    if (!group) continue;
    // What is mounted may be a group below the hierarchy's own root, as in a container.
    fs::path below = *group;
    if (mount.seen == *group || group->starts_with(mount.seen + "/")) below = group->substr(mount.seen.size());
    const fs::path top = fs::path(root) / fs::path(mount.at).relative_path();
    for (below = below.relative_path().lexically_normal();; below = below.parent_path()) {
      const bool outside = below.begin() != below.end() && *below.begin() == "..";
      if (const auto quota = outside ? std::nullopt : quota_in(top / below, mount.is_v2); quota)
        least = std::min(least.value_or(*quota), *quota);
      if (below.empty()) break;
    }
  }
  return least;
}

int processors_of_launcher(const std::string& root, const std::function<int(int)>& mask) {
  const auto own = rank_in_environment();
  const char* of_job = own.starts_with("SLURM") ? std::getenv("SLURM_CPUS_ON_NODE") : nullptr;
  if (of_job) return std::max(0, std::atoi(of_job));
  int process = ::getppid();
  while (process > 1 && !own.empty() && has_variable(root, process, own)) process = parent_of(root, process);
  return process > 0 ? mask(process) : 0;
}

int share_of_processors(int in_mask, std::optional<double> quota, int of_launcher, int ranks) {
  if (ranks < 1) ranks = 1;
  int share = std::min(in_mask, std::max(of_launcher, in_mask) / ranks);
  if (quota) share = std::min(share, static_cast<int>(std::ceil(*quota)) / ranks);
  return share;
}

namespace {

struct Known {
  int in_mask = processors_in_mask();
  std::optional<double> quota = processor_quota();
  Known() {
    if (in_mask == 0) in_mask = static_cast<int>(std::thread::hardware_concurrency());
  }
};

const Known& known() {
  static const Known only;
  return only;
}

}  // namespace

int usable_processors() { return std::max(1, share_of_processors(known().in_mask, known().quota, 0, 1)); }

int said_threads() {
  const char* said = std::getenv("OMP_NUM_THREADS");
  return said ? std::max(0, std::atoi(said)) : 0;
}

int processors_of_rank(int ranks) {
  const int of_launcher = ranks > 1 ? processors_of_launcher() : 0;
  return share_of_processors(known().in_mask, known().quota, of_launcher, ranks);
}

}  // namespace ditto::report
