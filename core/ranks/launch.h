// Who this process is among the ranks of a run, as its launcher says in environment variables.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ditto {

// Set by a process that has done one of several things and becomes the next, a number from 1 on: ranks that are still
// at the one before are not to be met.
inline constexpr const char* kNextVariable = "DITTO_NEXT";

struct RankInfo {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  // on this machine
  std::string master_address = "127.0.0.1";  // where rank 0's store is, or the launcher's own
  std::uint16_t master_port = 29500;
  bool store_is_launchers = false;  // torchrun's agent hosts the store: rank 0 connects as the others do
  int store_socket = -1;            // rank 0: a listening socket inherited for the store; -1: opens its own
  // How often torchrun has started these ranks again; with ".N" behind it for what they go through as number N of
  // several, from 1 on, at a port of its own: kNextVariable.
  std::string attempt = "0";
  std::string launcher = "none";  // "torchrun", "local ranks", "Open MPI", "PMI", "Slurm", or "environment"
};

// Reads, the first that is there: RANK and WORLD_SIZE with MASTER_ADDR and MASTER_PORT (torchrun, --local-ranks);
// OMPI_*; PMI_*; SLURM_* of a step started by srun. With none of them: one rank, and PMIX_RANK alone is refused. Throws
// Error(config) that names the variable.
using Environment = std::function<std::optional<std::string>(const char* name)>;
RankInfo rank_info(const Environment& environment);
RankInfo rank_info();  // of this process

// For what one process does by itself: throws Error(config) that names `command` where a launcher has started several.
void expect_one_rank(const std::string& command);

}  // namespace ditto
