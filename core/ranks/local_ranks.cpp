#include "core/ranks/local_ranks.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include <ditto/error.h>

#include "core/measure/processors.h"
#include "core/ranks/stop.h"

extern char** environ;

namespace ditto {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

[[noreturn]] void fail(const std::string& doing) {
  throw Error(ErrorKind::distributed, "--local-ranks", doing + ": " + std::strerror(errno), "");
}

// A listening socket of rank 0's store: bound here, so that no other process can take the port in between.
class StoreSocket {
 public:
  StoreSocket() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (fd_ < 0 || ::bind(fd_, generic, size) != 0 || ::listen(fd_, 1024) != 0 ||
        ::getsockname(fd_, generic, &size) != 0)
      fail("no port on the loopback address");
    port_ = ntohs(address.sin_port);
  }
  ~StoreSocket() { ::close(fd_); }
  StoreSocket(const StoreSocket&) = delete;
  StoreSocket& operator=(const StoreSocket&) = delete;
  int fd() const { return fd_; }
  int port() const { return port_; }

 private:
  int fd_ = -1, port_ = 0;
};

// SIGCHLD is waited for while the ranks run; its former treatment comes back afterwards, and in the ranks.
class Children {
 public:
  Children() {
    ::signal(SIGCHLD, SIG_DFL);  // inherited as ignored, it would leave nothing to wait for
    sigemptyset(&set_);
    sigaddset(&set_, SIGCHLD);
    sigset_t before;
    sigprocmask(SIG_BLOCK, &set_, &before);
    was_blocked_ = sigismember(&before, SIGCHLD) == 1;
  }
  ~Children() { restore(); }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  // Until one has ended, another signal was answered, or `limit` is over.
  void wait(milliseconds limit) const {
    const timespec time{limit.count() / 1000, (limit.count() % 1000) * 1000000};
    sigtimedwait(&set_, nullptr, &time);
  }
  void restore() const {
    if (!was_blocked_) sigprocmask(SIG_UNBLOCK, &set_, nullptr);
  }

 private:
  sigset_t set_;
  bool was_blocked_;
};

// A rank that is being started cannot answer a signal yet: what this process answers waits until the rank does.
class HeldSignals {
 public:
  HeldSignals() {
    const auto answered = answered_stop_signals();
    sigprocmask(SIG_BLOCK, &answered, &before_);
  }
  ~HeldSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_;
};

std::vector<std::string> environment(int rank, int count, const StoreSocket& store) {
  std::map<std::string, std::string> values;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) values[text.substr(0, equals)] = text.substr(equals + 1);
  }
  values["RANK"] = values["LOCAL_RANK"] = std::to_string(rank);
  values["WORLD_SIZE"] = values["LOCAL_WORLD_SIZE"] = std::to_string(count);
  values["MASTER_ADDR"] = "127.0.0.1";
  values["MASTER_PORT"] = std::to_string(store.port());
  values["DITTO_LOCAL_RANKS"] = std::to_string(count);
  if (rank == 0) values["DITTO_STORE_SOCKET"] = std::to_string(store.fd());
  if (report::said_threads() == 0)
    values["OMP_NUM_THREADS"] = std::to_string(std::max(1, report::usable_processors() / count));
  std::vector<std::string> list;
  for (const auto& [name, value] : values) list.push_back(name + "=" + value);
  return list;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (auto& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

std::vector<int> numbers_in(const char* folder) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    found.push_back(std::stoi(entry.path().filename().string()));
  return found;
}

// What exec does to a process.
void forget_parent() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN && action.sa_handler != SIG_DFL)
      ::signal(signal, SIG_DFL);
  }
  for (const int file : numbers_in("/proc/self/fd"))
    if (const int flags = ::fcntl(file, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC)) ::close(file);
}

class Ranks {
 public:
  explicit Ranks(const LocalRanks& options) : options_(options) {}
  ~Ranks() {  // left by an exception: nothing may stay behind
    for (const auto& [pid, rank] : alive_) ::kill(pid, SIGKILL);
    for (const auto& [pid, rank] : alive_) ::waitpid(pid, nullptr, 0);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void start() {
    const StoreSocket store;
    const HeldSignals held;
    for (int rank = 0; rank < options_.count; ++rank) start(rank, store);
  }

  int rehearse() const {
    if (!options_.rehearsal) return 0;
    std::fflush(nullptr);
    const pid_t parent = ::getpid(), pid = ::fork();
    if (pid < 0) fail("a process cannot be started");
    if (pid == 0) {
      become_child(parent);
      leave_stop_signals_to_parent();
      std::exit(options_.rehearsal());
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    if (stop_signal() == 0) {  // it ends this process as it would have without one of its own
      ::signal(WTERMSIG(status), SIG_DFL);
      ::raise(WTERMSIG(status));
    }
    return 0;
  }

  int wait() {
    while (!alive_.empty()) {
      children_.wait(milliseconds(100));
      if (stop_signal() != 0 && !std::exchange(passed_on_, true)) send(stop_signal());
      reap();
      end_survivors();
    }
    return failed_ ? failure_ : stopped_ ? kStoppedBySignal : 0;
  }

 private:
  void start(int rank, const StoreSocket& store) {
    std::vector<std::string> arguments{"ditto"};
    arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
    auto variables = environment(rank, options_.count, store);
    auto argv = pointers(arguments), envp = pointers(variables);
    const bool anew = !options_.main || numbers_in("/proc/self/task").size() > 1;
    const pid_t parent = ::getpid(), pid = ::fork();
    if (pid < 0) fail("rank " + std::to_string(rank) + " cannot be started");
    if (pid == 0) {
      become_child(parent);
      if (rank == 0) ::fcntl(store.fd(), F_SETFD, 0);
      if (rank != 0) say_nothing();
      if (!anew) run_main(rank, argv, envp);
      ::execve("/proc/self/exe", argv.data(), envp.data());
      ::_exit(127);
    }
    alive_[pid] = rank;
  }

  // In a child: but for run_main, only calls that are safe between fork and exec.
  void become_child(pid_t parent) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(Error::exit_code(ErrorKind::distributed));  // it died before prctl
    children_.restore();
  }
  static void say_nothing() {
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) ::dup2(nowhere, STDOUT_FILENO);
  }
  [[noreturn]] void run_main(int rank, std::vector<char*>& argv, std::vector<char*>& envp) const {
    ::prctl(PR_SET_NAME, ("ditto rank " + std::to_string(rank)).c_str());  // its command line is the parent's
    forget_parent();
    environ = envp.data();
    at::set_num_threads(report::said_threads());  // OpenMP has read it when this program began
    std::exit(options_.main(static_cast<int>(argv.size()) - 1, argv.data()));
  }

  void send(int signal) const {
    for (const auto& [pid, rank] : alive_) ::kill(pid, signal);
  }

  void reap() {
    int status = 0;
    for (auto it = alive_.begin(); it != alive_.end();) {
      if (::waitpid(it->first, &status, WNOHANG) != it->first) {
        ++it;
        continue;
      }
      note(it->second, status);
      it = alive_.erase(it);
    }
  }

  void note(int rank, int status) {
    const bool killed = WIFSIGNALED(status);
    const int lost_a_peer = Error::exit_code(ErrorKind::distributed);
    const int code = killed ? lost_a_peer : WEXITSTATUS(status);
    if (code == 0) return;
    if (code == kStoppedBySignal) {
      stopped_ = true;
      return;
    }
    if (asked_ && killed) return;  // ended by us
    said_ = said_ || killed;
    if (killed)
      std::fprintf(stderr, "error: rank %d was killed by signal %d (%s)\n", rank, WTERMSIG(status),
                   strsignal(WTERMSIG(status)));
    // A rank that lost its peer tells less than the peer, which may be seen a moment later.
    if (!failed_ || (failure_ == lost_a_peer && code != lost_a_peer)) failure_ = code;
    if (!failed_) failed_at_ = Clock::now();
    failed_ = true;
  }

  // Survivors notice a lost peer by themselves; then they are asked, then ended.
  void end_survivors() {
    if (!failed_ || alive_.empty()) return;
    const auto since = Clock::now() - failed_at_;
    if (!asked_ && since > options_.patience) {
      asked_ = true;
      send(SIGTERM);
    }
    if (since > options_.grace) end_for_good();
  }

  // A rank that was stopped, or hangs where no signal reaches it, says nothing of itself.
  void end_for_good() {
    for (const auto& [pid, rank] : alive_)
      if (!std::exchange(said_, true) && failure_ == Error::exit_code(ErrorKind::distributed))
        std::fprintf(stderr, "error: rank %d does not answer, and was killed\n", rank);
    send(SIGKILL);
  }

  const LocalRanks& options_;
  const Children children_;
  std::map<pid_t, int> alive_;
  bool failed_ = false, stopped_ = false, passed_on_ = false, asked_ = false, said_ = false;
  int failure_ = 0;
  Clock::time_point failed_at_;
};

}  // namespace

int run_local_ranks(const LocalRanks& options) {
  if (std::getenv("RANK") || std::getenv("WORLD_SIZE"))
    throw Error(ErrorKind::config, "--local-ranks", "this process is already a rank: RANK or WORLD_SIZE is set",
                "leave --local-ranks out, or unset them");
  if (options.count < 1)
    throw Error(ErrorKind::config, "--local-ranks", "is " + std::to_string(options.count), "expected at least 1");
  Ranks ranks(options);
  if (const int code = ranks.rehearse()) return code;
  if (stop_signal() != 0) {
    std::fprintf(stderr, "stopped before the ranks were started\n");
    return kStoppedBySignal;
  }
  std::fflush(nullptr);
  ranks.start();
  return ranks.wait();
}

std::vector<std::string> without_local_ranks(const std::vector<std::string>& arguments) {
  const std::string option = "--local-ranks";
  std::vector<std::string> rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == option)
      ++i;
    else if (arguments[i].rfind(option + "=", 0) != 0)
      rest.push_back(arguments[i]);
  }
  return rest;
}

}  // namespace ditto
