// Ranks that die, fail or hang: who says what, and how the others end.
#include "core/dist/watch.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <doctest/doctest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>

#include "core/dist/error_file.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
namespace fs = std::filesystem;

// In a rank: a run that goes wrong. `odd` is what rank `who` does in step 2, where the others wait for it.
int run(int who, const std::function<void()>& odd, const WatchOptions& options) {
  ::signal(SIGTERM, SIG_IGN);  // as the trainer, which saves first
  const auto rank = rank_info();
  const auto mesh = testing::mesh_of({}, std::chrono::duration_cast<seconds>(options.timeout));
  RankWatch watch(rank, options);
  try {
    for (int step = 0; step < 3; ++step) {
      watch.begin_step();
      if (step == 2 && rank.rank == who) odd();
      mesh.world().all_reduce(torch::ones({4}));
    }
    watch.finish();
    return 0;
  } catch (const Error& error) {
    return watch.fail(error);
  }
}
[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  ::_exit(code);
}

void stand_still() { std::this_thread::sleep_for(seconds(60)); }

struct Outcome {
  int code = -1;
  seconds took{0};
  std::string said;
  int count(const std::string& part) const {
    int found = 0;
    for (auto at = said.find(part); at != std::string::npos; at = said.find(part, at + 1)) ++found;
    return found;
  }
};

// A process of its own that starts the ranks, so that what they say can be read.
Outcome outcome(const std::string& name) {
  const auto file = (fs::temp_directory_path() / ("ditto_watch_" + std::to_string(::getpid()))).string();
  const std::string command = "'" + fs::read_symlink("/proc/self/exe").string() +
                              "' --no-skip --test-case='starts: " + name + "' > '" + file + "' 2>&1";
  const auto began = Clock::now();
  Outcome result;
  const int status = std::system(command.c_str());
  result.code = WEXITSTATUS(status);
  result.took = std::chrono::duration_cast<seconds>(Clock::now() - began);
  std::ifstream in(file);
  result.said = std::string(std::istreambuf_iterator<char>(in), {});
  fs::remove(file);
  return result;
}

const WatchOptions kPatient{milliseconds(30'000), milliseconds(0)};
const WatchOptions kWatchful{milliseconds(60'000), milliseconds(2'000)};

TEST_CASE("rank of: all well" * doctest::skip()) {
  leave(run(
      -1, [] {}, kWatchful));
}
TEST_CASE("starts: all well" * doctest::skip()) { leave(testing::as_ranks(3, "rank of: all well")); }
TEST_CASE("a run in which nothing goes wrong ends with nothing said") {
  const auto seen = outcome("all well");
  CHECK(seen.code == 0);
  CHECK(seen.count("ends because") == 0);
  CHECK(seen.count("error") == 0);
}

TEST_CASE("rank of: one that throws" * doctest::skip()) {
  leave(run(
      1, [] { throw Error(ErrorKind::numeric, "step 3", "the loss is nan"); }, kPatient));
}
TEST_CASE("starts: one that throws" * doctest::skip()) { leave(testing::as_ranks(4, "rank of: one that throws")); }
TEST_CASE("a rank that fails says why, once, and the others that they end because of it") {
  const auto seen = outcome("one that throws");
  INFO(seen.said);
  CHECK(seen.code == 5);
  CHECK(seen.took < seconds(7));
  CHECK(seen.count("error: ") == 1);
  CHECK(seen.count("error: rank 1: step 3: the loss is nan") == 1);
  for (const char* other : {"0", "2", "3"})
    CHECK(seen.count("rank " + std::string(other) + " ends because rank 1 failed\n") == 1);
}

TEST_CASE("starts: all throwing" * doctest::skip()) { leave(testing::as_ranks(3, "rank of: a mesh and all throwing")); }
TEST_CASE("rank of: a mesh and all throwing" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  RankWatch watch(rank_info(), kPatient);
  leave(watch.fail(Error(ErrorKind::shape, "model.heads", "5 heads are not divided by 2 ranks")));
}
TEST_CASE("an error that all ranks find is said by one of them") {
  const auto seen = outcome("all throwing");
  INFO(seen.said);
  CHECK(seen.code == 2);
  CHECK(seen.count("5 heads are not divided by 2 ranks") == 1);
  CHECK(seen.count("ends because") == 0);
}

TEST_CASE("rank of: one that is killed" * doctest::skip()) {
  leave(run(
      2, [] { ::raise(SIGKILL); }, kPatient));
}
TEST_CASE("starts: one that is killed" * doctest::skip()) {
  leave(testing::as_ranks(4, "rank of: one that is killed"));
}
TEST_CASE("a rank that is killed is named by all that are left, long before a collective gives up") {
  const auto seen = outcome("one that is killed");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(8));
  CHECK(seen.count("error: rank 2 was killed by signal 9") == 1);
  CHECK(seen.count("error: ") == 1);
  CHECK(seen.count("ends because rank 2 was lost") == 3);
}

TEST_CASE("rank of: the first killed" * doctest::skip()) {
  leave(run(
      0, [] { ::raise(SIGKILL); }, kPatient));
}
TEST_CASE("starts: the first killed" * doctest::skip()) { leave(testing::as_ranks(3, "rank of: the first killed")); }
TEST_CASE("the rank that hosts the store is named too, when it is killed") {
  const auto seen = outcome("the first killed");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(8));
  CHECK(seen.count("ends because rank 0 was lost") == 2);
  CHECK(seen.count("Exception raised") == 0);
}

TEST_CASE("rank of: one that stands still" * doctest::skip()) { leave(run(1, stand_still, kWatchful)); }
TEST_CASE("starts: one that stands still" * doctest::skip()) {
  leave(testing::as_ranks(3, "rank of: one that stands still"));
}
TEST_CASE("a rank that stands still in a step is found after the limit, and named") {
  const auto seen = outcome("one that stands still");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(10));
  CHECK(seen.count("error: rank 1 hangs: it stands still in a step for longer than parallel.hang_s = 2 s") == 1);
  CHECK(seen.count("error: ") == 1);
  for (const char* other : {"0", "2"})
    CHECK(seen.count("rank " + std::string(other) + " ends because rank 1 hangs") == 1);
}

// Both are stopped whole, as a machine that stalls: their threads too.
TEST_CASE("rank of: one that is stopped" * doctest::skip()) {
  leave(run(
      1, [] { ::raise(SIGSTOP); }, kWatchful));
}
TEST_CASE("starts: one that is stopped" * doctest::skip()) {
  leave(testing::as_ranks(3, "rank of: one that is stopped"));
}
TEST_CASE("rank of: the first stopped" * doctest::skip()) {
  leave(run(
      0, [] { ::raise(SIGSTOP); }, kWatchful));
}
TEST_CASE("starts: the first stopped" * doctest::skip()) { leave(testing::as_ranks(3, "rank of: the first stopped")); }
TEST_CASE("a process that is stopped is found after the limit, even if it hosts the store") {
  auto seen = outcome("one that is stopped");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(13));
  CHECK(seen.count("ends because rank 1 was lost") == 2);
  seen = outcome("the first stopped");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(13));
  CHECK(seen.count("ends because rank 0 hangs") == 2);
}

// The limit is for steps: what may take its time is said by the training thread, and the first step is left out.
TEST_CASE("rank of: one that takes its time" * doctest::skip()) {
  const auto rank = rank_info();
  const auto mesh = testing::mesh_of({});
  RankWatch watch(rank, {milliseconds(60'000), milliseconds(1'000)});
  watch.begin_step();
  if (rank.rank == 1) std::this_thread::sleep_for(milliseconds(2'500));
  mesh.world().all_reduce(torch::ones({4}));
  watch.begin("validation");
  if (rank.rank == 1) std::this_thread::sleep_for(milliseconds(2'500));
  mesh.world().all_reduce(torch::ones({4}));
  watch.finish();
  leave(0);
}
TEST_CASE("starts: one that takes its time" * doctest::skip()) {
  leave(testing::as_ranks(2, "rank of: one that takes its time"));
}
TEST_CASE("a long first step, and what is no step, is no hang") {
  const auto seen = outcome("one that takes its time");
  INFO(seen.said);
  CHECK(seen.code == 0);
  CHECK(seen.count("ends because") == 0);
}

TEST_CASE("rank of: one that does not answer" * doctest::skip()) {
  leave(run(1, stand_still, {milliseconds(3'000), milliseconds(0)}));
}
TEST_CASE("starts: one that does not answer" * doctest::skip()) {
  leave(testing::as_ranks(3, "rank of: one that does not answer"));
}
TEST_CASE("without a limit for hangs, a rank that does not answer is named within 5 s of the timeout") {
  const auto seen = outcome("one that does not answer");
  INFO(seen.said);
  CHECK(seen.code == 6);
  CHECK(seen.took < seconds(3 + 5 + 3));
  CHECK(seen.count("ends because rank 1 hangs") >= 2);
  CHECK(seen.count("it lives, but does not answer") == 1);
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
