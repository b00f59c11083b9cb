// How many processors this process may use, which is what threads are chosen by.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace ditto::report {

// Processors of the affinity mask (taskset, numactl, Slurm, --cpuset-cpus), or fewer where a control group allows less
// time (docker --cpus, Kubernetes' limits); at least 1. Asked once: the first answer stays.
int usable_processors();

// Of those the share of one of `ranks` on this machine: an equal part of what their launcher may use, where it has not
// bound each rank to fewer (Slurm, mpirun, numactl). 0: they take turns.
int processors_of_rank(int ranks);

int said_threads();  // by OMP_NUM_THREADS ("4", or "4,2"); 0: it says nothing, or no number

// What they follow from. `root` is the folder in which proc and sys are looked for, `mask` what processors_in_mask is.
int processors_in_mask(int process = 0);  // of this process, or another one; 0: unknown
// The processors' worth of time that this process's control groups allow, all that lie above them included; none: as
// much as there is. Versions 1 and 2.
std::optional<double> processor_quota(const std::string& root = "/");
// Of the nearest process above this one that is none of the same rank, as wrappers are (a shell, numactl); 0: unknown.
// Where Slurm says how many processors a job has here, it is that: its own daemon may use more.
int processors_of_launcher(const std::string& root = "/", const std::function<int(int)>& mask = processors_in_mask);
int share_of_processors(int in_mask, std::optional<double> quota, int of_launcher, int ranks);

}  // namespace ditto::report
