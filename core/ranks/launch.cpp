#include "core/ranks/launch.h"

#include <charconv>
#include <cstdlib>
#include <limits>

#include <ditto/error.h>

#include "core/ranks/node_list.h"

namespace ditto {

namespace {

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  std::optional<std::string> text(const char* name) const {
    auto value = environment_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  bool has(const char* name) const { return text(name).has_value(); }

  int number(const char* name, int low, int high = std::numeric_limits<int>::max()) const {
    const auto value = text(name);
    if (!value) refuse(name, "is not set, though other variables of the same launcher are", "");
    int result = 0;
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, result);
    if (error != std::errc{} || stop != end || result < low || result > high)
      refuse(name, "is \"" + *value + "\"",
             "expected a whole number from " + std::to_string(low) +
                 (high < (1 << 30) ? " to " + std::to_string(high) : " on"));
    return result;
  }
  int number_or(const char* name, int fallback, int low) const { return has(name) ? number(name, low) : fallback; }

  [[noreturn]] static void refuse(const char* name, const std::string& what, const std::string& remedy) {
    throw Error(ErrorKind::config, "environment variable " + std::string(name), what,
                remedy.empty() ? "start with torchrun, srun, mpirun or --local-ranks, or set it" : remedy);
  }

 private:
  const Environment& environment_;
};

// A port that all ranks of a job agree on and that two jobs seldom share.
std::uint16_t port_of(const std::string& job) {
  std::uint32_t hash = 2166136261u;
  for (const unsigned char c : job) hash = (hash ^ c) * 16777619u;
  return static_cast<std::uint16_t>(20000 + hash % 10000);
}

// `nodes`: the variable that lists the ranks' machines, rank 0's first.
void meet_at(RankInfo& info, const Variables& env, const char* nodes, const std::string& job) {
  const auto list = nodes ? env.text(nodes) : std::nullopt;
  if (const auto address = env.text("MASTER_ADDR"))
    info.master_address = *address;
  else if (info.local_world_size < info.world_size && list)
    info.master_address = expand_node_list(*list, "environment variable " + std::string(nodes)).front();
  else if (info.local_world_size < info.world_size)
    Variables::refuse("MASTER_ADDR", "is not set, and the ranks are on several machines",
                      "set it to the address of rank 0's machine");
  info.master_port =
      static_cast<std::uint16_t>(env.has("MASTER_PORT") ? env.number("MASTER_PORT", 1, 65535) : port_of(job));
}

RankInfo from_variables(const Variables& env) {
  RankInfo info;
  info.world_size = env.number("WORLD_SIZE", 1);
  info.rank = env.number("RANK", 0, info.world_size - 1);
  info.local_world_size = env.number_or("LOCAL_WORLD_SIZE", info.world_size, 1);
  info.local_rank = env.number_or("LOCAL_RANK", info.rank % info.local_world_size, 0);
  if (const auto address = env.text("MASTER_ADDR")) info.master_address = *address;
  info.master_port = static_cast<std::uint16_t>(env.has("MASTER_PORT") ? env.number("MASTER_PORT", 1, 65535) : 29500);
  info.store_is_launchers = env.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  info.attempt = env.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
  info.store_socket = env.number_or("DITTO_STORE_SOCKET", -1, 0);
  info.launcher = env.has("TORCHELASTIC_RUN_ID") || info.store_is_launchers ? "torchrun"
                  : env.has("DITTO_LOCAL_RANKS")                            ? "local ranks"
                                                                            : "environment";
  return info;
}

RankInfo from_open_mpi(const Variables& env) {
  RankInfo info;
  info.launcher = "Open MPI";
  info.world_size = env.number("OMPI_COMM_WORLD_SIZE", 1);
  info.rank = env.number("OMPI_COMM_WORLD_RANK", 0, info.world_size - 1);
  info.local_rank = env.number_or("OMPI_COMM_WORLD_LOCAL_RANK", 0, 0);
  info.local_world_size = env.number_or("OMPI_COMM_WORLD_LOCAL_SIZE", info.world_size, 1);
  meet_at(info, env, nullptr, env.text("PMIX_NAMESPACE").value_or(env.text("OMPI_MCA_ess_base_jobid").value_or("")));
  return info;
}

// MPICH and its relatives.
RankInfo from_pmi(const Variables& env) {
  RankInfo info;
  info.launcher = "PMI";
  info.world_size = env.number("PMI_SIZE", 1);
  info.rank = env.number("PMI_RANK", 0, info.world_size - 1);
  info.local_rank = env.number_or("MPI_LOCALRANKID", 0, 0);
  info.local_world_size = env.number_or("MPI_LOCALNRANKS", info.world_size, 1);
  meet_at(info, env, nullptr, env.text("PMI_JOBID").value_or(""));
  return info;
}

// Only srun sets SLURM_STEP_NUM_TASKS: in a batch script without srun there is one process, whatever was allocated.
RankInfo from_slurm(const Variables& env) {
  RankInfo info;
  info.launcher = "Slurm";
  info.world_size = env.number("SLURM_STEP_NUM_TASKS", 1);
  info.rank = env.number("SLURM_PROCID", 0, info.world_size - 1);
  info.local_rank = env.number_or("SLURM_LOCALID", 0, 0);
  const int nodes = env.number_or("SLURM_STEP_NUM_NODES", 1, 1);
  // "4", or "4(x3),2" where machines differ; the first number is enough to know whether there is more than one machine.
  info.local_world_size = nodes == 1
                              ? info.world_size
                              : std::max(1, std::atoi(env.text("SLURM_STEP_TASKS_PER_NODE").value_or("1").c_str()));
  meet_at(info, env, "SLURM_STEP_NODELIST",
          env.text("SLURM_JOB_ID").value_or("") + "." + env.text("SLURM_STEP_ID").value_or(""));
  return info;
}

RankInfo launched(const Variables& env) {
  if (env.has("RANK") || env.has("WORLD_SIZE")) return from_variables(env);
  if (env.has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(env);
  if (env.has("PMI_RANK") && env.has("PMI_SIZE")) return from_pmi(env);
  if (env.has("SLURM_STEP_NUM_TASKS")) return from_slurm(env);
  if (env.has("PMIX_RANK"))  // alone it does not say how many there are; each would train by itself, into one folder
    Variables::refuse("PMIX_RANK", "is set, but nothing says how many ranks there are", "set RANK and WORLD_SIZE");
  return {};
}

// Of the number that kNextVariable says. A store of the launcher's is there for all of them.
void go_on(RankInfo& info, int next) {
  info.attempt += "." + std::to_string(next);
  if (info.store_is_launchers) return;
  constexpr int kPorts = 65536;
  const int port = info.master_port + next;
  info.master_port = static_cast<std::uint16_t>(port < kPorts ? port : info.master_port - next);
}

}  // namespace

RankInfo rank_info(const Environment& environment) {
  const Variables env(environment);
  auto info = launched(env);
  if (env.has(kNextVariable)) go_on(info, env.number(kNextVariable, 1, 1000));
  return info;
}

RankInfo rank_info() {
  return rank_info([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

void expect_one_rank(const std::string& command) {
  const auto rank = rank_info();
  if (rank.world_size == 1) return;
  throw Error(ErrorKind::config, command,
              "is started as " + std::to_string(rank.world_size) + " ranks (" + rank.launcher +
                  "), which would all write the same files",
              "start it once, without the launcher and its variables");
}

}  // namespace ditto
