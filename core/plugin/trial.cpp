#include "core/plugin/trial.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <torch/version.h>
#include <boost/dll/runtime_symbol_info.hpp>

#include <ditto/text.h>

#include "core/measure/user_cache.h"
#include "core/plugin/kinds.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

extern char** environ;

namespace ditto {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

// What the other process writes down, a letter each: of each library that it begins to open it, that it reads its
// options, and how that ended.
enum Mark : char { opening = 'o', options = 'p', came_back = '.', threw = '!' };
constexpr int kMarks = 3;  // its file
constexpr size_t kWordsShown = 300;

// A file in memory that a child writes to.
class Scratch {
 public:
  Scratch() : fd_(::memfd_create("ditto", MFD_CLOEXEC)) {}
  ~Scratch() { ::close(fd_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  int fd() const { return fd_; }
  size_t size() const {
    struct stat about {};
    return ::fstat(fd_, &about) == 0 ? static_cast<size_t>(about.st_size) : 0;
  }
  // Its last bytes, at most so many.
  std::string tail(size_t most) const {
    const auto size = this->size(), count = std::min(size, most);
    std::string text(count, ' ');
    const ssize_t got = ::pread(fd_, text.data(), count, static_cast<off_t>(size - count));
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

 private:
  int fd_;
};

double time_limit() {
  const char* text = std::getenv("DITTO_PLUGIN_TIMEOUT_S");
  if (!text || !*text) return 60;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end || !(seconds > 0 && seconds < 1e6))
    throw Error(ErrorKind::config, "environment variable DITTO_PLUGIN_TIMEOUT_S", "is \"" + shown(text) + "\"",
                "expected seconds, more than 0");
  return seconds;
}

struct Child {
  bool started = false, in_time = true;
  int status = -1;  // as of waitpid; -1: nobody knows
  std::string marks, words;
};

pid_t start(const std::vector<std::string>& paths, const Scratch& marks, const Scratch& words) {
  std::vector<std::string> arguments{"ditto", "plugins", "open"};
  arguments.insert(arguments.end(), paths.begin(), paths.end());
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, words.fd(), STDERR_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, marks.fd(), kMarks);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &files, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  return error == 0 ? pid : -1;
}

Child run_child(const std::vector<std::string>& paths) {
  const std::chrono::duration<double> limit(time_limit());
  auto until = Clock::now() + 10 * limit;  // where much is going on, a process may take long to begin
  bool begun = false;
  const Scratch marks, words;
  Child child;
  const pid_t pid = start(paths, marks, words);
  child.started = pid > 0;
  pid_t ended = 0;
  while (child.started && (ended = ::waitpid(pid, &child.status, WNOHANG)) == 0) {
    if (!begun && marks.size() > 0) {
      begun = true;
      until = Clock::now() + limit;
    }
    if (Clock::now() > until) {
      child.in_time = false;
      ::kill(pid, SIGKILL);
      ended = ::waitpid(pid, &child.status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (ended < 0) child.status = -1;  // SIGCHLD is ignored, as this process inherited it
  child.marks = marks.tail(3 * paths.size());
  child.words = words.tail(kWordsShown);
  return child;
}

std::string how_it_ended(const Child& child) {
  if (!child.in_time) return fmt::format("it did not come back within DITTO_PLUGIN_TIMEOUT_S = {:g} s", time_limit());
  if (child.status == -1) return "it ended the process";
  if (WIFSIGNALED(child.status))
    return "signal " + std::to_string(WTERMSIG(child.status)) + " (" + ::strsignal(WTERMSIG(child.status)) + ")";
  return "it ended the process with exit code " + std::to_string(WEXITSTATUS(child.status));
}

std::string in_one_line(std::string words) {
  for (char& c : words)
    if (c == '\n') c = ' ';
  const auto first = words.find_first_not_of(' ');
  return first == words.npos ? "" : words.substr(first, words.find_last_not_of(' ') + 1 - first);
}

struct Outcome {
  std::optional<TrialFailure> failure;
  std::vector<size_t> came_back;
};

Outcome outcome_of(const std::vector<std::string>& paths) {
  const auto child = run_child(paths);
  Outcome outcome;
  size_t which = 0;
  for (const char mark : child.marks) {
    if (mark == came_back) outcome.came_back.push_back(which);
    if (mark == came_back || mark == threw) ++which;
  }
  // One that began nothing did not get so far for its own reasons: the caller opens the libraries itself.
  if (which == paths.size() || child.marks.empty()) return outcome;
  const auto words = in_one_line(child.words);
  outcome.failure = {which, how_it_ended(child) +
                                (child.marks.back() == options
                                     ? " while it declared its options"
                                     : " while it was opened, in its static constructors or its entry function") +
                                (words.empty() ? "" : ", having said \"" + shown(words, kWordsShown) + "\"")};
  return outcome;
}

// --- what has come back before ---

std::string hex(XXH128_hash_t hash) {
  std::array<char, 33> text;
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text.data();
}

// A file that was built again has another one.
std::string identity(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return path;
  return path + " " + std::to_string(about.st_size) + " " + std::to_string(about.st_mtim.tv_sec) + "." +
         std::to_string(about.st_mtim.tv_nsec);
}

std::string identity_of_host() {
  Dl_info sdk{};
  ::dladdr(reinterpret_cast<const void*>(&Error::name), &sdk);
  return identity(boost::dll::program_location().string()) + "\n" + identity(sdk.dli_fname ? sdk.dli_fname : "") +
         "\nLibTorch " + TORCH_VERSION;
}

std::string hash_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes(1 << 20);
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  while (file.read(bytes.data(), static_cast<std::streamsize>(bytes.size())) || file.gcount() > 0)
    XXH3_128bits_update(&state, bytes.data(), static_cast<size_t>(file.gcount()));
  return hex(XXH3_128bits_digest(&state));
}

// A file for each library's path, which holds what came back: this host, and the library's contents.
class CameBack {
 public:
  bool has(const std::string& path) const {
    if (folder_.empty()) return false;
    std::ifstream file(name(path));
    return file && std::string(std::istreambuf_iterator<char>(file), {}) == record(path);
  }
  void add(const std::string& path) const {
    if (folder_.empty()) return;
    report::write_cached(name(path), record(path));
  }

 private:
  std::string name(const std::string& path) const {
    return (folder_ / hex(XXH3_128bits(path.data(), path.size()))).string();
  }
  std::string record(const std::string& path) const { return path + "\n" + hash_of(path) + "\n" + host_ + "\n"; }
  const fs::path folder_ = report::user_cache("plugins");
  const std::string host_ = identity_of_host();
};

// --- the other process ---

void mark(Mark mark) { (void)!::write(kMarks, &mark, 1); }

void try_one(const std::string& path) {
  mark(opening);
  try {
    Registry registry({{path, "ditto plugins open"}});
    const auto& file = registry.files().at(0);
    for_each_kind([&](auto tag) {
      using Interface = typename decltype(tag)::type;
      if (file.kind != Interface::kKind) return;
      const auto& factory = registry.factory<Interface>(file.id);
      mark(options);
      OptionReader reader({file.kind, file.path, {}});
      factory.declare(reader);
    });
  } catch (...) {
    return mark(threw);
  }
  mark(came_back);
}

}  // namespace

std::optional<TrialFailure> try_plugins(const std::vector<std::string>& paths) { return outcome_of(paths).failure; }

std::optional<TrialFailure> try_new_plugins(const std::vector<std::string>& paths) {
  const CameBack cache;
  std::vector<size_t> fresh;
  std::vector<std::string> fresh_paths;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (cache.has(paths[i])) continue;
    fresh.push_back(i);
    fresh_paths.push_back(paths[i]);
  }
  if (fresh.empty()) return {};
  auto outcome = outcome_of(fresh_paths);
  for (const size_t which : outcome.came_back) cache.add(fresh_paths[which]);
  if (outcome.failure) outcome.failure->which = fresh[outcome.failure->which];
  return outcome.failure;
}

void run_trial(const std::vector<std::string>& paths) {
  // The process that waits says what happened: not name_crashes.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::signal(signal, SIG_DFL);
  ::on_exit([](int status, void*) { ::_exit(status); }, nullptr);
  const rlimit no_dump{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_dump);
  ::alarm(static_cast<unsigned>(time_limit()) + 5);  // if nobody waits any more
  ::fcntl(kMarks, F_SETFD, FD_CLOEXEC);
  for (const auto& path : paths) try_one(path);
  ::_exit(0);
}

}  // namespace ditto
