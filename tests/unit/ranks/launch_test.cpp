#include "core/ranks/launch.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <thread>

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <ditto/error.h>

#include "core/measure/processors.h"
#include "core/process/launch.h"
#include "core/process/processor.h"
#include "core/ranks/node_list.h"
#include "tests/support/golden_json.h"

namespace ditto {
namespace {

RankInfo info_of(std::map<std::string, std::string> variables) {
  return rank_info([&](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

TEST_CASE("without a launcher there is one rank") {
  const auto info = info_of({});
  CHECK(info.rank == 0);
  CHECK(info.world_size == 1);
  CHECK(info.launcher == "none");
}

TEST_CASE("torchrun's variables are read, and its agent hosts the store") {
  const auto info = info_of({{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "host7"},
                             {"MASTER_PORT", "1234"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RUN_ID", "x"}});
  CHECK(info.rank == 3);
  CHECK(info.world_size == 4);
  CHECK(info.local_rank == 1);
  CHECK(info.local_world_size == 2);
  CHECK(info.master_address == "host7");
  CHECK(info.master_port == 1234);
  CHECK(info.store_is_launchers);
  CHECK(info.launcher == "torchrun");
}

TEST_CASE("a Slurm step's ranks meet on its first machine, at a port of the job") {
  const std::map<std::string, std::string> step{{"SLURM_PROCID", "5"},
                                                {"SLURM_STEP_NUM_TASKS", "8"},
                                                {"SLURM_LOCALID", "1"},
                                                {"SLURM_STEP_NUM_NODES", "2"},
                                                {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                                {"SLURM_STEP_NODELIST", "gpu[07-08,11],x1"},
                                                {"SLURM_JOB_ID", "77"},
                                                {"SLURM_STEP_ID", "0"}};
  const auto info = info_of(step);
  CHECK(info.launcher == "Slurm");
  CHECK(info.rank == 5);
  CHECK(info.world_size == 8);
  CHECK(info.local_world_size == 4);
  CHECK(info.master_address == "gpu07");
  CHECK(info.master_port == info_of(step).master_port);
  auto other = step;
  other["SLURM_JOB_ID"] = "78";
  CHECK(info.master_port != info_of(other).master_port);
  other["SLURM_STEP_NODELIST"] = "a1,b2";
  CHECK(info_of(other).master_address == "a1");
  other["SLURM_STEP_NODELIST"] = "rack[1-2]node[1-4]";
  CHECK(info_of(other).master_address == "rack1node1");
  other["SLURM_STEP_NODELIST"] = "node[1-2]-ib";
  CHECK(info_of(other).master_address == "node1-ib");
  other["SLURM_STEP_NODELIST"] = "node[1-2";
  CHECK_THROWS_WITH_AS(info_of(other), doctest::Contains("SLURM_STEP_NODELIST: is \"node[1-2\""), Error);
  other["SLURM_STEP_NUM_NODES"] = "1";
  CHECK(info_of(other).master_address == "127.0.0.1");
}

std::string expanded(const std::string& list) {
  std::string all;
  for (const auto& name : expand_node_list(list, "the test")) all += (all.empty() ? "" : " ") + name;
  return all;
}

TEST_CASE("lists of machines stand for the names that scontrol gives") {
  const auto record = test::read_json("tests/golden/slurm/hostnames.json");
  CHECK(record["names"].size() > 20);
  for (const auto& [list, names] : record["names"].items()) CHECK(expanded(list) == names.get<std::string>());
}

TEST_CASE("text behind a list's brackets belongs to each of its names") {
  CHECK(expanded("node[1-2]-ib") == "node1-ib node2-ib");
  CHECK(expanded("a[1-2]b[3-4]c,d") == "a1b3c a1b4c a2b3c a2b4c d");
}

TEST_CASE("what is no list of machines is refused, and so is one without an end") {
  for (const char* list : {"n[1", "n]1", "n[]", "n[1,]", "n[3-1]", "n[1-x]", "n[a]", "n[1--2]", ",", "", "n[1-100000]",
                           "n[1-300]x[1-300]", "n[99999999999999999999]"}) {
    CAPTURE(list);
    CHECK_THROWS_WITH_AS(expand_node_list(list, "here"), doctest::Contains("here: is \""), Error);
  }
}

TEST_CASE("a batch script without srun is one rank, whatever was allocated") {
  CHECK(info_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).world_size == 1);
}

TEST_CASE("Open MPI's and PMI's variables are read") {
  const auto open_mpi = info_of({{"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  CHECK(open_mpi.rank == 1);
  CHECK(open_mpi.master_address == "127.0.0.1");
  CHECK(open_mpi.launcher == "Open MPI");
  CHECK(info_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).rank == 1);
  CHECK_THROWS_WITH_AS(
      info_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
      doctest::Contains("MASTER_ADDR"), Error);
}

TEST_CASE("a rank whose launcher does not say how many there are is refused") {
  CHECK_THROWS_WITH_AS(info_of({{"PMIX_RANK", "1"}}), doctest::Contains("PMIX_RANK: is set, but nothing says how many"),
                       Error);
  CHECK(info_of({{"PMIX_RANK", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}).world_size == 2);
}

TEST_CASE("ranks that torchrun starts again know that they are") {
  CHECK(info_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}).attempt == "2");
  CHECK(info_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).attempt == "0");
}

TEST_CASE(
    "ranks that have become the next of several meet at another place than those that are still at the one before") {
  const std::map<std::string, std::string> two{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1234"}};
  auto next = two;
  next["DITTO_NEXT"] = "2";
  CHECK(info_of(next).attempt == "0.2");
  CHECK(info_of(next).master_port == 1236);
  next["MASTER_PORT"] = "65534";
  CHECK(info_of(next).master_port == 65532);
  next["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  CHECK(info_of(next).master_port == 65534);
  next["DITTO_NEXT"] = "x";
  CHECK_THROWS_WITH_AS(info_of(next), doctest::Contains("DITTO_NEXT: is \"x\""), Error);
}

TEST_CASE("a variable that is missing or makes no sense is named") {
  CHECK_THROWS_WITH_AS(info_of({{"RANK", "0"}}), doctest::Contains("WORLD_SIZE"), Error);
  CHECK_THROWS_WITH_AS(info_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), doctest::Contains("RANK: is \"4\"; expected"),
                       Error);
  CHECK_THROWS_WITH_AS(info_of({{"RANK", "0"}, {"WORLD_SIZE", "2x"}}), doctest::Contains("WORLD_SIZE: is \"2x\""),
                       Error);
  CHECK_THROWS_WITH_AS(info_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}}),
                       doctest::Contains("MASTER_PORT"), Error);
}

TEST_CASE("a rank that there is not is refused, whoever starts the ranks") {
  for (const auto& [rank, size] : std::map<std::string, std::string>{{"RANK", "WORLD_SIZE"},
                                                                     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                                                     {"PMI_RANK", "PMI_SIZE"},
                                                                     {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}})
    for (const char* wrong : {"2", "-1"})
      CHECK_THROWS_WITH_AS(
          info_of({{rank, wrong}, {size, "2"}}),
          doctest::Contains((rank + ": is \"" + wrong + "\"; expected a whole number from 0 to 1").c_str()), Error);
}

TEST_CASE("a process has the recipe's threads, or its environment's, or its share of the machine's") {
  const struct Kept {
    ~Kept() {
      at::set_num_threads(threads);
      environment ? setenv("OMP_NUM_THREADS", environment->c_str(), 1) : unsetenv("OMP_NUM_THREADS");
    }
    int threads = at::get_num_threads();
    std::optional<std::string> environment =
        std::getenv("OMP_NUM_THREADS") ? std::optional<std::string>(std::getenv("OMP_NUM_THREADS")) : std::nullopt;
  } kept;
  const auto threads = [](int64_t asked, bool said_by_environment, int ranks_here) {
    setenv("OMP_NUM_THREADS", said_by_environment ? "3" : "no number", 1);
    at::set_num_threads(3);  // as it is where the environment said so at the start
    RankInfo info;
    info.world_size = info.local_world_size = ranks_here;
    const std::string text = "[run]\nname = 'threads'\nthreads = " + std::to_string(asked) + "\n";
    prepare_process(Recipe::parse(text, "threads.toml"), info);
    return at::get_num_threads();
  };
  const int cores = report::usable_processors();
  CHECK(threads(2, false, 1) == 2);
  CHECK(threads(2, true, 1) == 2);
  CHECK(threads(0, true, 1) == 3);
  CHECK(threads(0, false, 1) == cores);
  CHECK(threads(0, false, 2) == std::max(1, cores / 2));
  CHECK(threads(0, false, 2 * cores) == 1);
}

TEST_CASE("a recipe's strategies are those of its degrees, and those that it asks for") {
  const auto ids = [](const std::vector<std::string>& sets) {
    return strategy_ids(Recipe::parse("[run]\nname = 'strategies'\n", "strategies.toml", sets));
  };
  using Ids = std::vector<std::string>;
  CHECK(ids({"parallel.replicate=1"}) == Ids{});
  CHECK(ids({}) == Ids{"ddp"});
  CHECK(ids({"parallel.pipeline=2", "parallel.tensor=2", "parallel.expert=2", "parallel.context=2",
             "parallel.context_plugin=ring", "parallel.shard=2", "parallel.shard_plugin=zero2", "parallel.replicate=2",
             "parallel.recompute=blocks", "parallel.offload=optimizer"}) ==
        Ids{"pipeline", "tensor", "expert", "ring", "zero2", "ddp", "recompute", "offload"});
}

TEST_CASE("bf16 products are expected where any part of the recipe asks for them, and nowhere else") {
  const auto asks = [](const std::vector<std::string>& sets) {
    const std::string text = "[run]\nname = 'half'\n[optimizer]\nplugin = 'muon'\n[model]\nplugin = 'dit'\n";
    return asks_for_bf16(Recipe::parse(text, "half.toml", sets));
  };
  CHECK_FALSE(asks({}));
  CHECK_FALSE(asks({"run.precision=fp16"}));
  CHECK(asks({"run.precision=bf16"}));
  CHECK(asks({"optimizer.precision=bf16"}));
}

TEST_CASE("what kills a child is found out, and the parent alone goes on") {
  const pid_t parent = ::getpid();
  CHECK(dies_in_child([] { ::raise(SIGKILL); }));
  CHECK_FALSE(dies_in_child([] {}));
  CHECK_FALSE(dies_in_child([&] { ::raise(::getpid() == parent ? SIGKILL : 0); }));
  CHECK(::getpid() == parent);
}

}  // namespace
}  // namespace ditto
