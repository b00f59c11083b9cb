// How many processors this process may use, which is what threads are chosen by.
#pragma once

#include <optional>
#include <string>

namespace ditto::report {

// Processors of the affinity mask (taskset, numactl, Slurm, --cpuset-cpus), or fewer where a control group allows less
// time (docker --cpus, Kubernetes' limits); at least 1. Asked once: the first answer stays.
int usable_processors();

int processors_in_mask(int process = 0);  // of this process, or another one; 0: unknown
// The processors' worth of time that this process's control groups allow, all that lie above them included; none: as much
// as there is. Versions 1 and 2. `root`: the folder in which proc and sys are looked for.
std::optional<double> processor_quota(const std::string& root = "/");

}  // namespace ditto::report
