// Ranks that die, fail or hang: who says what, and how the others end.
#include "core/ranks/watch.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include <doctest/doctest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>

#include "core/ranks/error_file.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
namespace fs = std::filesystem;

// In a rank: what is measured begins now. How long ranks take to start is another thing.
int64_t now_ms() { return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count(); }
void mark() { std::fprintf(stderr, "MARK %lld\n", static_cast<long long>(now_ms())); }

// In a rank: a run that goes wrong. `odd` is what rank `who` does in step 2, where the others wait for it.
int run(int who, const std::function<void()>& odd, const WatchOptions& options) {
  ::signal(SIGTERM, SIG_IGN);  // as the trainer, which saves first
  const auto rank = rank_info();
  const GlooMesh mesh(rank, {}, options.timeout);
  RankWatch watch(rank);
  watch.start(options);
  try {
    for (int step = 0; step < 3; ++step) {
      watch.begin_step();
      if (step == 2) mark();
      if (step == 2 && rank.rank == who) odd();
      mesh.world().all_reduce(torch::ones({4}));
    }
    watch.finish();
    return 0;
  } catch (const Error& error) {
    return watch.fail(error);
  }
}

// The limit is for steps: what may take its time is said by the training thread, and the first step is left out.
int take_time() {
  const auto rank = rank_info();
  const GlooMesh mesh(rank_info(), {}, seconds(60));
  RankWatch watch(rank);
  watch.start({milliseconds(60'000), milliseconds(1'000)});
  watch.begin_step();
  if (rank.rank == 1) std::this_thread::sleep_for(milliseconds(2'500));
  mesh.world().all_reduce(torch::ones({4}));
  watch.begin("validation");
  if (rank.rank == 1) std::this_thread::sleep_for(milliseconds(2'500));
  mesh.world().all_reduce(torch::ones({4}));
  watch.finish();
  return 0;
}

// The others wait for it in their first step, which may take its time; on a busy machine they come to it late, and one
// that is not there yet would be blamed.
int fail_in_the_first_step(const Error& error) {
  const GlooMesh mesh(rank_info(), {}, seconds(60));
  RankWatch watch(rank_info());
  watch.start({milliseconds(60'000), milliseconds(0)});
  watch.begin_step();
  try {
    mesh.world().all_reduce(torch::ones({4}));
    if (mesh.rank() == 0) {
      std::this_thread::sleep_for(seconds(1));
      return watch.fail(error);
    }
    mesh.world().all_reduce(torch::ones({4}));
    return 0;
  } catch (const Error& lost) {
    return watch.fail(lost);
  }
}

void nothing() {}
void stand_still() { std::this_thread::sleep_for(seconds(60)); }
void die() { ::raise(SIGKILL); }
void stop() { ::raise(SIGSTOP); }  // whole, as a machine that stalls: its threads too
[[noreturn]] void find_nan() { throw Error(ErrorKind::numeric, "step 3", "the loss is nan"); }
const Error kUneven(ErrorKind::shape, "model.heads", "5 heads are not divided by 2 ranks");

const WatchOptions kPatient{milliseconds(30'000), milliseconds(0)};
const WatchOptions kImpatient{milliseconds(3'000), milliseconds(0)};
const WatchOptions kWatchful{milliseconds(60'000), milliseconds(2'000)};

int fail_alike() {
  const GlooMesh mesh(rank_info(), {}, seconds(60));
  RankWatch watch(rank_info());
  watch.start(kPatient);
  mark();
  return watch.fail(kUneven);
}
int fail_alike_unmet() {
  mark();
  return RankWatch(rank_info()).fail(kUneven);
}
int fail_alone_unmet() {
  mark();
  if (rank_info().rank != 2) return run(-1, nothing, kPatient);
  return RankWatch(rank_info()).fail(Error(ErrorKind::plugin, "model 'own'", "there is no such plugin"));
}

struct Scenario {
  int ranks;
  std::function<int()> of_a_rank;  // its exit code
};
const std::map<std::string, Scenario> kScenarios{
    {"all well", {3, [] { return run(-1, nothing, kWatchful); }}},
    {"one throws", {4, [] { return run(1, find_nan, kPatient); }}},
    {"all throw", {3, fail_alike}},
    {"all throw before they meet", {3, fail_alike_unmet}},
    {"one throws before it meets the others", {3, fail_alone_unmet}},
    {"one is killed", {4, [] { return run(2, die, kPatient); }}},
    {"the first is killed", {3, [] { return run(0, die, kPatient); }}},
    {"one stands still", {3, [] { return run(1, stand_still, kWatchful); }}},
    {"one is stopped", {3, [] { return run(1, stop, kWatchful); }}},
    {"the first is stopped", {3, [] { return run(0, stop, kWatchful); }}},
    {"one takes its time", {2, take_time}},
    {"a plugin fails",
     {2,
      [] {
        return fail_in_the_first_step({ErrorKind::plugin, "block 1", "it is wrong"});
      }}},
    {"a call fails",
     {2,
      [] {
        return fail_in_the_first_step({ErrorKind::distributed, "block 1", "it is wrong"});
      }}},
    {"one does not answer", {3, [] { return run(1, stand_still, kImpatient); }}},
};

const char* kScenario = "DITTO_TEST_SCENARIO";
const Scenario& scenario() { return kScenarios.at(std::getenv(kScenario)); }
[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  ::_exit(code);
}
TEST_CASE("rank of: a scenario" * doctest::skip()) { leave(scenario().of_a_rank()); }
TEST_CASE("starts: a scenario" * doctest::skip()) { leave(testing::as_ranks(scenario().ranks, "rank of: a scenario")); }

struct Outcome {
  int code = -1;
  milliseconds took{0};  // from the last mark that was printed
  std::string said;
  int count(const std::string& part) const {
    int found = 0;
    for (auto at = said.find(part); at != std::string::npos; at = said.find(part, at + 1)) ++found;
    return found;
  }
};

// A process of its own starts the ranks, so that what they say can be read.
Outcome outcome(const std::string& name) {
  const auto file = (fs::temp_directory_path() / ("ditto_watch_" + std::to_string(::getpid()))).string();
  const std::string command = "'" + fs::read_symlink("/proc/self/exe").string() +
                              "' --no-skip --test-case='starts: a scenario' > '" + file + "' 2>&1";
  ::setenv(kScenario, name.c_str(), 1);
  Outcome result;
  result.code = WEXITSTATUS(std::system(command.c_str()));
  const auto end = now_ms();
  ::unsetenv(kScenario);
  std::ifstream in(file);
  result.said = std::string(std::istreambuf_iterator<char>(in), {});
  if (const auto at = result.said.rfind("MARK "); at != std::string::npos)
    result.took = milliseconds(end - std::atoll(result.said.c_str() + at + 5));
  fs::remove(file);
  return result;
}

TEST_CASE("a run in which nothing goes wrong ends with nothing said") {
  const auto seen = outcome("all well");
  INFO(seen.said);
  CHECK(seen.code == 0);
  CHECK(seen.count("ends because") == 0);
  CHECK(seen.count("error") == 0);
}

// One error is said, and each of the others says what it ends because of.
void check_said(const Outcome& seen, const std::string& error, const std::vector<int>& others,
                const std::string& because) {
  CHECK(seen.count("\nerror: ") == 1);  // at the start of a line: a rank may add what it ran into, its own error
  CHECK(seen.count("\nerror: " + error) == 1);
  for (const int other : others) CHECK(seen.count("rank " + std::to_string(other) + " ends because " + because) == 1);
}

TEST_CASE("a rank that fails says why, once, and the others that they end because of it") {
  const auto seen = outcome("one throws");
  INFO(seen.said);
  CHECK(seen.code == 5);
  CHECK(seen.took < seconds(7));
  check_said(seen, "rank 1: step 3: the loss is nan", {0, 2, 3}, "rank 1 failed\n");
}

TEST_CASE("an error that all ranks find is said by one of them, whether they have met or not") {
  for (const char* name : {"all throw", "all throw before they meet"}) {
    const auto seen = outcome(name);
    INFO(seen.said);
    CHECK(seen.code == 2);
    CHECK(seen.took < seconds(7));
    CHECK(seen.count("5 heads are not divided by 2 ranks") == 1);
    CHECK(seen.count("ends because") == 0);
  }
}

TEST_CASE("a rank that fails before it meets the others says so, and they end because of it") {
  const auto seen = outcome("one throws before it meets the others");
  INFO(seen.said);
  CHECK(seen.code == 3);
  CHECK(seen.took < seconds(7));
  check_said(seen, "rank 2: model 'own': there is no such plugin", {0, 1}, "rank 2 failed\n");
}

TEST_CASE("a rank that is killed is named by all that are left, long before a collective gives up") {
  const auto seen = outcome("one is killed");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(8));
  CHECK(seen.count("error: rank 2 was killed by signal 9") == 1);
  CHECK(seen.count("\nerror: ") == 1);
  CHECK(seen.count("ends because rank 2 was lost") == 3);
}

TEST_CASE("the rank that hosts the store is named too, when it is killed") {
  const auto seen = outcome("the first is killed");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(8));
  CHECK(seen.count("ends because rank 0 was lost") == 2);
  CHECK(seen.count("Exception raised") == 0);
}

TEST_CASE("a rank that stands still in a step is found after the limit, and named") {
  const auto seen = outcome("one stands still");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(10));
  check_said(seen, "rank 1 hangs: it stands still in a step for longer than parallel.hang_s = 2 s", {0, 2},
             "rank 1 hangs");
}

TEST_CASE("a process that is stopped is found after the limit, even if it hosts the store") {
  for (const auto& [name, found] :
       {std::pair{"one is stopped", "rank 1 was lost"}, {"the first is stopped", "rank 0 hangs"}}) {
    const auto seen = outcome(name);
    INFO(seen.said);
    CHECK(seen.code == 6);
    CHECK(seen.took < seconds(13));
    CHECK(seen.count("ends because " + std::string(found)) == 2);
  }
}

TEST_CASE("a long first step, and what is no step, is no hang") {
  const auto seen = outcome("one takes its time");
  INFO(seen.said);
  CHECK(seen.code == 0);
  CHECK(seen.count("ends because") == 0);
}

TEST_CASE("without a limit for hangs, a rank that does not answer is named within 5 s of the timeout") {
  const auto seen = outcome("one does not answer");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(3 + 5 + 3));
  CHECK(seen.count("ends because rank 1 hangs") >= 2);
  CHECK(seen.count("it lives, but does not answer") == 1);
}

TEST_CASE("a rank that waits for one that has failed by itself is not blamed for it") {
  for (const auto& [name, code] : {std::pair{"a plugin fails", 3}, {"a call fails", 6}}) {
    const auto seen = outcome(name);
    INFO(seen.said);
    CHECK(seen.code == code);
    check_said(seen, "rank 0: block 1: it is wrong", {1}, "rank 0 failed\n");
  }
}

TEST_CASE("the error file is what torchrun reads") {
  const auto file = (fs::temp_directory_path() / ("ditto_error_file_" + std::to_string(::getpid()))).string();
  ::setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
  write_error_file("rank 1: a \"quoted\" \xff text");
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  std::ifstream in(file);
  const auto record = nlohmann::json::parse(in);
  CHECK(record["message"]["message"].get<std::string>().find("rank 1: a \"quoted\"") == 0);
  CHECK(std::stoll(record["message"]["extraInfo"]["timestamp"].get<std::string>()) > 1'600'000'000);
  fs::remove(file);
}

}  // namespace
}  // namespace ditto
