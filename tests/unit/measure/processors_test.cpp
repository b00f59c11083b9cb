// How many processors a process may use, by made-up folders of proc and sys.
#include "core/measure/processors.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "support/files.h"

using namespace ditto;
using report::processor_quota;
using report::processors_in_mask;
using report::processors_of_launcher;
using report::share_of_processors;

namespace {

using Files = std::map<std::string, std::string>;
using Quota = std::optional<double>;

struct Machine : test::TemporaryFolder {
  explicit Machine(const Files& files) {
    for (const auto& [name, text] : files) {
      std::filesystem::create_directories((path() / name).parent_path());
      test::write_text(path() / name, text);
    }
  }
  std::string root() const { return path().string(); }
};

Quota quota(const Files& files) { return processor_quota(Machine(files).root()); }

const std::string kV2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
const std::string kV1 =
    "24 18 0:21 / /sys rw - sysfs sysfs rw\n"
    "33 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 24 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
const std::string kV1Group = "5:memory:/other\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n";

Files v2(const std::string& group, const Files& limits, const std::string& mounts = kV2) {
  Files files{{"proc/self/cgroup", "0::" + group + "\n"}, {"proc/self/mountinfo", mounts}};
  for (const auto& [folder, limit] : limits) files["sys/fs/cgroup" + folder + "/cpu.max"] = limit;
  return files;
}

Files v1(const std::string& folder, const std::string& time, const std::string& period,
         const std::string& mounts = kV1) {
  const auto place = "sys/fs/cgroup/cpu,cpuacct" + folder;
  return {{"proc/self/cgroup", kV1Group},
          {"proc/self/mountinfo", mounts},
          {place + "/cpu.cfs_quota_us", time},
          {place + "/cpu.cfs_period_us", period},
          {"sys/fs/cgroup/memory/other/cpu.cfs_quota_us", "1"},
          {"sys/fs/cgroup/memory/other/cpu.cfs_period_us", "100000"}};
}

// The mask of each process; 0 of others.
auto masks(std::map<int, int> known) {
  return [known = std::move(known)](int process) {
    const auto found = known.find(process);
    return found == known.end() ? 0 : found->second;
  };
}

struct Variables {
  explicit Variables(Files given) : names(std::move(given)) {
    for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_CPUS_ON_NODE"}) {
      if (const char* value = std::getenv(name)) before[name] = value;
      ::unsetenv(name);
    }
    for (const auto& [name, value] : names) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : names) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  Files names, before;
};

}  // namespace

TEST_CASE("a quota of control groups of version 2 is that of the group, or of the least above it") {
  CHECK(quota(v2("/a/b", {{"/a/b", "150000 100000\n"}})) == 1.5);
  CHECK(quota(v2("/a/b", {{"/a/b", "400000 100000"}, {"/a", "200000 100000"}})) == 2);
  CHECK(quota(v2("/a/b", {{"/a/b", "max 100000"}, {"/a", "50000 200000"}})) == 0.25);
  CHECK(quota(v2("/a/b", {{"/a/b", "max 100000"}})) == Quota());
  CHECK(quota(v2("/a/b", {{"/a/c", "100000 100000"}})) == Quota());
  CHECK(quota(v2("/", {{"", "300000 100000"}})) == 3);  // in a namespace of its own
  CHECK(quota(v2("/a/b", {{"", "300000 100000"}})) == 3);
  CHECK(quota(v2("/", {})) == Quota());
  for (const char* broken : {"", "x", "100000", "-1 100000", "100000 0", "0 100000"})
    CHECK_MESSAGE(quota(v2("/a", {{"/a", broken}})) == Quota(), broken);
}

TEST_CASE("of a mounted part of the groups, as a container sees it, the rest of the path counts") {
  const std::string part = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  CHECK(quota(v2("/docker/abc", {{"", "200000 100000"}}, part)) == 2);
  CHECK(quota(v2("/docker/abc/in", {{"/in", "100000 100000"}, {"", "200000 100000"}}, part)) == 1);
  CHECK(quota(v2("/docker/abcd", {{"/docker/abcd", "100000 100000"}}, part)) == 1);  // no part of abc
  CHECK(quota(v2("/../other", {{"", "200000 100000"}}, part)) == 2);
  const std::string blank = "30 23 0:26 / /sys/fs\\040x/cgroup rw - cgroup2 cgroup2 rw\n";
  CHECK(quota({{"proc/self/cgroup", "0::/a\n"},
               {"proc/self/mountinfo", blank},
               {"sys/fs x/cgroup/a/cpu.max", "100000 100000"}}) == 1);
}

TEST_CASE("a quota of control groups of version 1 is that of the controller cpu") {
  CHECK(quota(v1("/docker/abc", "250000", "100000")) == 2.5);
  CHECK(quota(v1("/docker", "250000", "100000")) == 2.5);
  CHECK(quota(v1("/docker/abc", "-1", "100000")) == Quota());
  CHECK(quota(v1("/other", "100000", "100000")) == Quota());
  const std::string part = "34 24 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
  CHECK(quota(v1("", "50000", "100000", part)) == 0.5);
  auto both = v1("/docker/abc", "250000", "100000", kV1 + kV2);  // the controller is with version 1
  both["proc/self/cgroup"] += "0::/docker/abc\n";
  CHECK(quota(both) == 2.5);
}

TEST_CASE("without proc, or with what is no proc, there is no quota") {
  CHECK(quota({}) == Quota());
  CHECK(quota({{"proc/self/cgroup", "nonsense\n::\n"},
               {"proc/self/mountinfo", "a b c\n- cgroup2\n30 - cgroup2 x\n"}}) == Quota());
}

TEST_CASE("a mask of one processor is one processor") {
  CHECK(processors_in_mask() >= 1);
  CHECK(processors_in_mask(::getpid()) == processors_in_mask());
  CHECK(processors_in_mask(1 << 29) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    ::sched_setaffinity(0, sizeof one, &one);
    ::_exit(processors_in_mask());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 1);
}

TEST_CASE("ranks share what their launcher may use, and one that is bound to its own keeps them") {
  CHECK(share_of_processors(16, {}, 16, 1) == 16);
  CHECK(share_of_processors(16, {}, 16, 4) == 4);
  CHECK(share_of_processors(4, {}, 16, 4) == 4);   // bound, each to its own
  CHECK(share_of_processors(16, {}, 32, 4) == 8);  // two to each half of the machine
  CHECK(share_of_processors(1, {}, 16, 4) == 1);   // mpirun's binding to a core
  CHECK(share_of_processors(16, {}, 0, 4) == 4);   // the launcher's are unknown
  CHECK(share_of_processors(2, {}, 2, 4) == 0);    // they take turns
  CHECK(share_of_processors(16, 2.5, 16, 1) == 3);
  CHECK(share_of_processors(16, 8, 16, 4) == 2);
  CHECK(share_of_processors(4, 8, 16, 4) == 2);
  CHECK(share_of_processors(16, 0.5, 16, 1) == 1);
}

TEST_CASE("a launcher is the nearest process above that is not of the same rank") {
  const int parent = ::getppid();
  const auto at = [](int process, const char* file) { return "proc/" + std::to_string(process) + "/" + file; };
  const auto environ = [](const std::string& text) {
    return std::string("HOME=/\0", 7) + text + std::string("\0X=1\0", 5);
  };
  const auto known = masks({{parent, 4}, {1000001, 4}, {1000002, 16}, {1000003, 64}});
  const Files wrapped{
      {at(parent, "environ"), environ("RANK=3")},   {at(parent, "status"), "Name:\tbash\nPPid:\t1000001\n"},
      {at(1000001, "environ"), environ("RANK=3")},  {at(1000001, "status"), "Name:\tnumactl\nPPid:\t1000002\n"},
      {at(1000002, "environ"), environ("RANK=33")}, {at(1000002, "status"), "Name:\ttorchrun\nPPid:\t1000003\n"}};
  const Machine machine(wrapped);
  {
    const Variables rank(Files{{"RANK", "3"}});
    CHECK(processors_of_launcher(machine.root(), known) == 16);
  }
  {
    const Variables rank(Files{{"OMPI_COMM_WORLD_RANK", "3"}});
    CHECK(processors_of_launcher(machine.root(), known) == 4);  // the parent
  }
  {
    const Variables none(Files{});
    CHECK(processors_of_launcher(machine.root(), known) == 4);
  }
  {
    const Variables rank(Files{{"SLURM_PROCID", "3"}, {"SLURM_CPUS_ON_NODE", "24"}});
    CHECK(processors_of_launcher(machine.root(), known) == 24);
  }
  {
    const Variables rank(
        Files{{"RANK", "3"}, {"SLURM_PROCID", "0"}, {"SLURM_CPUS_ON_NODE", "24"}});  // torchrun, by srun
    CHECK(processors_of_launcher(machine.root(), known) == 16);
  }
}
