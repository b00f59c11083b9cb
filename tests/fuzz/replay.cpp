// Runs every file of corpus/, what the fuzzers once found included, through its target: with the ordinary compiler, and
// within the limits of time and memory that foreign files have.
#include <sys/resource.h>
#include <sys/time.h>

#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/fuzz/targets.h"

namespace fs = std::filesystem;

namespace {

constexpr double kMostSeconds = 1;
constexpr long kMostMemory = 512 * 1024;  // KiB

char current[4096] = "";

void name_the_file(int signal) {
  const char* parts[] = {"the process ended by a signal at ", current, "\n"};
  for (const char* part : parts)
    if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

long peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Whether it stayed within the limits.
bool replay(const ditto::fuzz::Target& target, const fs::path& path) {
  std::snprintf(current, sizeof current, "%s", path.c_str());
  std::ifstream file(path, std::ios::binary);
  const std::string input{std::istreambuf_iterator<char>(file), {}};
  const double before = processor_seconds();
  target.run(input);
  const double seconds = processor_seconds() - before;
  if (seconds <= kMostSeconds && peak_memory() <= kMostMemory) return true;
  std::fprintf(stderr, "%s: %.2f s, and up to here %ld MiB\n", current, seconds, peak_memory() / 1024);
  return false;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: %s CORPUS\n", words[0]), 2;
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, name_the_file);
  bool good = true;
  for (const auto& target : ditto::fuzz::targets()) {
    std::size_t files = 0;
    const fs::path folder = fs::path(words[1]) / target.name;
    if (fs::is_directory(folder))
      for (const auto& entry : fs::directory_iterator(folder)) {
        good = replay(target, entry.path()) && good;
        ++files;
      }
    std::printf("%s: %zu files\n", target.name, files);
    if (files == 0) good = false, std::fprintf(stderr, "%s has no files\n", folder.c_str());
  }
  return good ? 0 : 1;
}
