#include "core/run_folder/run_folder.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <regex>
#include <thread>

#include "support/files.h"

using namespace ditto;
using report::RunFolder;
using test::read_text;

TEST_CASE("a run's folder is made with its parents and its parts") {
  const test::TemporaryFolder folder;
  const RunFolder run(folder / "runs/a/");
  CHECK(run.path() == folder / "runs/a");
  CHECK(std::filesystem::is_directory(folder / "runs/a/samples"));
  CHECK(std::filesystem::is_directory(run.checkpoints()));
  CHECK(run.sample_file(600, ".png") == folder / "runs/a/samples/step_00000600.png");
  CHECK_FALSE(run.has_recipe());
}

TEST_CASE("the recipe is replaced as a whole") {
  const test::TemporaryFolder folder;
  RunFolder run(folder / "a");
  run.write_recipe("[run]\nname = \"one\"\n");
  run.write_recipe("[run]\n");
  CHECK(read_text(run.file("run.toml")) == "[run]\n");
  CHECK(run.has_recipe());
}

TEST_CASE("every line of the log has a time, from every thread, and old lines stay") {
  const test::TemporaryFolder folder;
  RunFolder(folder / "a").log("first");
  RunFolder run(folder / "a");
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        for (int j = 0; j < 100; ++j) run.log("one\ntwo");
      });
  }
  std::istringstream text(read_text(run.file("log.txt")));
  const std::regex form(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (first|one|two))");
  int lines = 0;
  for (std::string line; std::getline(text, line); ++lines) CHECK_MESSAGE(std::regex_match(line, form), line);
  CHECK(lines == 801);
}

TEST_CASE("a folder that a run holds is refused to another, with who holds it and what to do") {
  const test::TemporaryFolder folder;
  auto first = std::make_unique<RunFolder>(folder / "a");
  const auto message = test::error_of(ErrorKind::config, [&] { RunFolder second(folder / "a"); });
  CHECK(test::contains(message, "process " + std::to_string(::getpid()) + " on "));
  CHECK(test::contains(message, "--set run.output="));
  first.reset();
  CHECK_NOTHROW(RunFolder(folder / "a"));
}

TEST_CASE("a lock file that is removed lets nobody in") {
  const test::TemporaryFolder folder;
  const RunFolder first(folder / "a");
  std::filesystem::remove(folder / "a/.lock");
  CHECK(test::contains(test::error_of(ErrorKind::config, [&] { RunFolder second(folder / "a"); }),
                       "is being written by another process"));
  CHECK_NOTHROW(RunFolder(folder / "b"));
}

TEST_CASE("what lies in a run's folder is locked with the run") {
  const test::TemporaryFolder folder;
  auto run = std::make_unique<RunFolder>(folder / "a");
  for (const char* inside : {"a/imported", "a/checkpoints/step_00000000", "a/checkpoints/../checkpoints/x/"})
    CHECK_MESSAGE(test::contains(test::error_of(ErrorKind::config, [&] { report::lock_run_around(folder / inside); }),
                                 "is being written by process"),
                  inside);
  CHECK_FALSE(report::lock_run_around(folder / "imported"));
  run.reset();
  const auto lock = report::lock_run_around(folder / "a/checkpoints/step_00000000");
  CHECK(lock);
  CHECK_THROWS_AS(RunFolder(folder / "a"), Error);
}

TEST_CASE("a folder that is moved or removed under a run is noticed") {
  const test::TemporaryFolder folder;
  const RunFolder moved(folder / "a"), removed(folder / "b"), stays(folder / "c");
  std::filesystem::rename(folder / "a", folder / "other");
  std::filesystem::create_directory(folder / "a");
  std::filesystem::remove_all(folder / "b");
  for (const auto* run : {&moved, &removed})
    CHECK(test::contains(test::error_of(ErrorKind::checkpoint, [&] { run->require_there(); }),
                         run->path() + ": was moved or removed"));
  CHECK_NOTHROW(stays.require_there());
}

TEST_CASE("the lock goes with its process, even one that is killed") {
  const test::TemporaryFolder folder;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    RunFolder run(folder / "a");
    (void)!::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char letter;
  REQUIRE(::read(ready[0], &letter, 1) == 1);
  CHECK(test::contains(test::error_of(ErrorKind::config, [&] { RunFolder mine(folder / "a"); }),
                       "process " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_NOTHROW(RunFolder(folder / "a"));
}

TEST_CASE("a place that is no folder is an error with its path") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "file", "x");
  const auto message = test::error_of(ErrorKind::config, [&] { RunFolder run(folder / "file/a"); });
  CHECK(test::contains(message, folder / "file/a"));
  CHECK(test::contains(message, "run.output"));
}

TEST_CASE("a log that cannot be written is said once, and ends nothing") {
  const test::TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::freopen((folder / "said").c_str(), "w", stderr);
    ::signal(SIGXFSZ, SIG_IGN);
    RunFolder run(folder / "a");
    run.log("first");
    const rlimit small{200, 200};
    ::setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 20; ++i) run.log("a line of some length that fills the file sooner or later");
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  const auto said = read_text(folder / "said");
  CHECK(test::contains(said, folder / "a/log.txt" + " cannot be written (File too large)"));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
  CHECK(read_text(folder / "a/log.txt").size() == 200);
}
