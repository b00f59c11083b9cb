// Control groups: man 7 cgroups; Documentation/admin-guide/cgroup-v2.rst (cpu.max), cgroup-v1 and
// scheduler/sched-bwc.rst (cpu.cfs_quota_us, cpu.cfs_period_us).
#include "core/report/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
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

// "36 35 0:32 /seen /at options - cgroup2 source super-options"
std::vector<Mount> mounts(const fs::path& root) {
  std::vector<Mount> found;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const auto words = words_of(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 4) continue;
    const bool is_v2 = dash[1] == "cgroup2";
    if (is_v2 || (dash[1] == "cgroup" && has_word(dash[3], "cpu"))) found.push_back({is_v2, words[3], words[4]});
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
    if (mount.seen != "/" && group->starts_with(mount.seen)) below = group->substr(mount.seen.size());
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

int usable_processors() {
  static const int count = [] {
    int all = processors_in_mask();
    if (all == 0) all = static_cast<int>(std::thread::hardware_concurrency());
    if (const auto quota = processor_quota()) all = std::min(all, static_cast<int>(std::ceil(*quota)));
    return std::max(all, 1);
  }();
  return count;
}

}  // namespace ditto::report
