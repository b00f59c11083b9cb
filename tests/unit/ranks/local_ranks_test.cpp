// `--local-ranks N`: starting, ending and outliving processes.
#include "core/ranks/local_ranks.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <thread>

#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ditto/error.h>

#include "core/ranks/launch.h"
#include "core/ranks/stop.h"
#include "tests/unit/ranks.h"

extern char** environ;

namespace ditto {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
namespace fs = std::filesystem;

// A folder that the ranks of a test write into, named by an environment variable.
class StartFolder {
 public:
  StartFolder() {
    std::string pattern = (fs::temp_directory_path() / "ditto_ranks_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    ::setenv("DITTO_TEST_FOLDER", path_.c_str(), 1);
  }
  ~StartFolder() {
    fs::remove_all(path_);
    ::unsetenv("DITTO_TEST_FOLDER");
  }
  size_t files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(path_), {})); }
  fs::file_time_type last_mark() const {
    auto last = fs::file_time_type::min();
    for (const auto& file : fs::directory_iterator(path_)) last = std::max(last, file.last_write_time());
    return last;
  }
  std::set<pid_t> pids() const {
    std::set<pid_t> pids;
    for (const auto& file : fs::directory_iterator(path_)) pids.insert(std::stoi(file.path().filename()));
    return pids;
  }

 private:
  std::string path_;
};

void leave_mark() {
  std::ofstream(fs::path(std::getenv("DITTO_TEST_FOLDER")) / std::to_string(::getpid())) << rank_info().rank;
}

// Until `done`, or 20 s.
bool comes_true(const std::function<bool()>& done) {
  for (int i = 0; i < 400; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(milliseconds(50));
  }
  return false;
}

// Not there, or only its entry is left for a parent to read.
bool is_dead(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  return text.empty() || text.find(") Z") != std::string::npos;
}

TEST_CASE("rank of: a look at its environment" * doctest::skip()) {
  const auto info = rank_info();
  CHECK(info.world_size == 3);
  CHECK(info.local_world_size == 3);
  CHECK(info.rank == info.local_rank);
  CHECK(info.master_address == "127.0.0.1");
  CHECK((info.store_socket >= 0) == (info.rank == 0));
  CHECK(info.launcher == "local ranks");
  CHECK(std::getenv("OMP_NUM_THREADS") != nullptr);
  sigset_t blocked;
  sigprocmask(SIG_SETMASK, nullptr, &blocked);
  CHECK(!sigismember(&blocked, SIGTERM));
  leave_mark();
}

TEST_CASE("every rank finds its place in its environment") {
  const StartFolder folder;
  CHECK(testing::as_ranks(3, "rank of: a look at its environment") == 0);
  CHECK(folder.files() == 3);
}

TEST_CASE("rank of: a name, with a comma and a \\" * doctest::skip()) { leave_mark(); }

TEST_CASE("ranks run the case that is named, whatever is in its name; of a name that there is not none passes") {
  const StartFolder folder;
  CHECK(testing::as_ranks(2, "rank of: a name, with a comma and a \\") == 0);
  CHECK(folder.files() == 2);
  CHECK(testing::as_ranks(2, "rank of: nobody") != 0);
}

// In a process that has no other threads, and so forks its ranks.
int started(const std::string& test_case) {
  const std::string command = "'" + fs::read_symlink("/proc/self/exe").string() +
                              "' --no-skip --minimal --test-case='starts: " + test_case + "'";
  return std::system(command.c_str());
}

int parents_file = -1;
pid_t parent = 0;

// 0: this rank is as a program that has just begun.
int look_as_fork(int count, char** arguments) {
  struct sigaction action {};
  ::sigaction(SIGUSR2, nullptr, &action);
  const bool forgot_handler = action.sa_handler == SIG_DFL;
  ::sigaction(SIGHUP, nullptr, &action);
  const bool still_ignores = action.sa_handler == SIG_IGN;
  const auto info = rank_info();
  const bool has_place = info.world_size == 3 && info.rank == info.local_rank && info.launcher == "local ranks";
  const bool has_socket = (info.store_socket >= 0 && ::fcntl(info.store_socket, F_GETFD) >= 0) == (info.rank == 0);
  const bool has_arguments = count == 2 && std::string(arguments[0]) == "ditto" && std::string(arguments[1]) == "one";
  leave_mark();
  return forgot_handler && still_ignores && has_place && has_socket && has_arguments &&
                 ::fcntl(parents_file, F_GETFD) < 0 &&
                 at::get_num_threads() == std::stoi(std::getenv("OMP_NUM_THREADS")) && ::getppid() == parent
             ? 0
             : 9;
}

TEST_CASE("starts: forks" * doctest::skip()) {
  ::signal(SIGUSR2, [](int) {});
  ::signal(SIGHUP, SIG_IGN);
  parents_file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  parent = ::getpid();
  ::setenv("OMP_NUM_THREADS", "3", 1);  // too late for OpenMP of this process
  CHECK(run_local_ranks({3, {"one"}, look_as_fork}) == 0);
}
TEST_CASE("a rank that is forked is as a program that has just begun") {
  const StartFolder folder;
  CHECK(started("forks") == 0);
  CHECK(folder.files() == 3);
}

TEST_CASE("starts: a rehearsal that refuses" * doctest::skip()) {
  CHECK(run_local_ranks({2, {}, look_as_fork, [] { return 2; }}) == 2);
}
TEST_CASE("starts: a rehearsal that crashes" * doctest::skip()) {
  run_local_ranks({2, {}, look_as_fork, []() -> int { return ::raise(SIGKILL); }});
}
TEST_CASE("no rank starts after a rehearsal that refuses, or crashes, which ends the process likewise") {
  const StartFolder folder;
  CHECK(started("a rehearsal that refuses") == 0);
  const int status = started("a rehearsal that crashes");
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL));  // as the shell says it
  CHECK(folder.files() == 0);
}

TEST_CASE("rank of: printing" * doctest::skip()) {
  const auto name = std::to_string(rank_info().rank);
  std::cout << "out" + name + "\n" << std::flush;
  std::cerr << "err" + name + "\n" << std::flush;
}

TEST_CASE("rank 0 alone keeps stdout, all keep stderr, and nothing is put in front") {
  const StartFolder folder;
  const std::string file = std::string(std::getenv("DITTO_TEST_FOLDER")) + "/output";
  const std::string command = "'" + fs::read_symlink("/proc/self/exe").string() +
                              "' --no-skip --test-case='starts: printing ranks' > '" + file + ".1' 2> '" + file + ".2'";
  REQUIRE(std::system(command.c_str()) == 0);
  const auto text = [&](const std::string& name) {
    std::ifstream in(name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const auto out = text(file + ".1"), err = text(file + ".2");
  CHECK(out.find("\nout0\n") != std::string::npos);
  CHECK(out.find("out1") == std::string::npos);
  CHECK(err.find("err0\n") != std::string::npos);
  CHECK(err.find("err1\n") != std::string::npos);
}
TEST_CASE("starts: printing ranks" * doctest::skip()) { CHECK(testing::as_ranks(2, "rank of: printing") == 0); }

TEST_CASE("rank of: failing while others wait" * doctest::skip()) {
  leave_mark();
  if (rank_info().rank == 1) ::_exit(5);
  ::signal(SIGTERM, SIG_IGN);  // as a rank that hangs
  ::sleep(60);
}

TEST_CASE(
    "when a rank fails the others are ended within 5 s, even those that do not listen, and its code is returned") {
  const StartFolder folder;
  CHECK(testing::as_ranks(3, "rank of: failing while others wait") == 5);
  CHECK(fs::file_time_type::clock::now() - folder.last_mark() < seconds(8));
  for (const pid_t pid : folder.pids()) CHECK(is_dead(pid));
}

TEST_CASE("rank of: being killed" * doctest::skip()) {
  if (rank_info().rank == 0) ::raise(SIGKILL);
  ::sleep(60);
}

TEST_CASE("a rank that is killed counts as lost") {
  CHECK(testing::as_ranks(2, "rank of: being killed") == Error::exit_code(ErrorKind::distributed));
}

TEST_CASE("rank of: a failure that others notice first" * doctest::skip()) {
  if (rank_info().rank == 0) ::_exit(Error::exit_code(ErrorKind::distributed));
  std::this_thread::sleep_for(milliseconds(150));
  ::_exit(Error::exit_code(ErrorKind::numeric));
}

TEST_CASE("the code of the failure itself goes before that of a lost peer") {
  CHECK(testing::as_ranks(2, "rank of: a failure that others notice first") == Error::exit_code(ErrorKind::numeric));
}

TEST_CASE("rank of: stopping after saving" * doctest::skip()) { ::_exit(rank_info().rank == 0 ? 75 : 0); }

TEST_CASE("ranks that stopped by a signal after saving are no failure") {
  CHECK(testing::as_ranks(2, "rank of: stopping after saving") == 75);
}

TEST_CASE("rank of: waiting for a signal" * doctest::skip()) {
  leave_mark();
  std::this_thread::sleep_for(milliseconds(300));  // a signal that comes before it is answered is not lost
  answer_stop_signals(rank_info());
  comes_true([] { return stop_signal() != 0; });
  for (int i = 0; i < 100; ++i) {
    ::raise(SIGTERM);
    ::raise(SIGINT);
  }
  ::_exit(stop_signal() == SIGUSR1 ? kStoppedBySignal : 1);
}

TEST_CASE("starts: ranks that wait" * doctest::skip()) {
  answer_stop_signals({});
  ::_exit(testing::as_ranks(2, "rank of: waiting for a signal"));
}

// A process of its own that starts the ranks, as the program does.
pid_t spawn_starter() {
  std::vector<std::string> arguments{"test", "--no-skip", "--no-intro", "--minimal",
                                     "--test-case=starts: ranks that wait"};
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  REQUIRE(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environ) == 0);
  return pid;
}

TEST_CASE("the first signal asks for a stop, and only a second SIGINT that is not the same one for the end") {
  using Answer = StopRequest::Answer;
  StopRequest request;
  CHECK((request.take(SIGTERM, 1000) == Answer::stop));
  CHECK((request.take(SIGTERM, 9000) == Answer::nothing));
  CHECK((request.take(SIGHUP, 9000) == Answer::nothing));
  CHECK((request.take(SIGINT, 20000) == Answer::stop));  // the first one says what a second one will do
  CHECK((request.take(SIGINT, 20001) == Answer::nothing));
  CHECK((request.take(SIGUSR1, 22000) == Answer::nothing));
  CHECK((request.take(SIGINT, 22000) == Answer::end));
  CHECK(request.signal() == SIGTERM);
  CHECK(StopRequest().signal() == 0);
}

TEST_CASE("a stop is passed on to the ranks, and further signals change nothing in them") {
  const StartFolder folder;
  const pid_t starter = spawn_starter();
  CHECK(comes_true([&] { return folder.files() == 2; }));
  ::kill(starter, SIGUSR1);
  int status = 0;
  ::waitpid(starter, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kStoppedBySignal);
}

TEST_CASE("when the starting process is killed its ranks die with it") {
  const StartFolder folder;
  const pid_t starter = spawn_starter();
  CHECK(comes_true([&] { return folder.files() == 2; }));
  const auto pids = folder.pids();
  ::kill(starter, SIGKILL);
  int status = 0;
  ::waitpid(starter, &status, 0);
  CHECK(WIFSIGNALED(status));
  for (const pid_t pid : pids) CHECK(comes_true([&] { return is_dead(pid); }));
}

TEST_CASE("a rank starts no ranks") {
  ::setenv("RANK", "0", 1);
  CHECK_THROWS_WITH_AS(run_local_ranks({2, {}}), doctest::Contains("already a rank"), Error);
  ::unsetenv("RANK");
  CHECK_THROWS_WITH_AS(run_local_ranks({0, {}}), doctest::Contains("at least 1"), Error);
}

TEST_CASE("both forms of the option are taken out of the ranks' arguments") {
  using List = std::vector<std::string>;
  CHECK(without_local_ranks({"train", "--local-ranks", "4", "a.toml"}) == List{"train", "a.toml"});
  CHECK(without_local_ranks({"train", "a.toml", "--local-ranks=4", "--set", "x=1"}) ==
        List{"train", "a.toml", "--set", "x=1"});
}

}  // namespace
}  // namespace ditto
