#include "core/ranks/successor.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <utility>

#include <ditto/error.h>

#include "core/ranks/launch.h"
#include "core/ranks/stop.h"

extern char** environ;

namespace ditto {

namespace {

std::set<int> open_files() {
  std::set<int> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    files.insert(std::stoi(entry.path().filename().string()));
  return files;
}

}  // namespace

Successor::Successor(std::vector<std::string> arguments) : arguments_(std::move(arguments)), files_(open_files()) {
  const auto own = std::string(kNextVariable) + "=";
  for (char** entry = environ; *entry; ++entry)
    if (!std::string_view(*entry).starts_with(own)) environment_.emplace_back(*entry);
}

void Successor::become(int next) const {
  auto words = arguments_;
  words.insert(words.begin(), "ditto");
  auto variables = environment_;
  variables.push_back(std::string(kNextVariable) + "=" + std::to_string(next));
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (auto& text : texts) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  };
  auto argv = pointers(words), envp = pointers(variables);
  for (const int file : open_files())
    if (!files_.count(file)) ::fcntl(file, F_SETFD, FD_CLOEXEC);
  std::cout.flush();
  std::fflush(nullptr);
  const auto answered = answered_stop_signals();
  ::sigprocmask(SIG_BLOCK, &answered, nullptr);
  if (const int signal = stop_signal()) ::raise(signal);
  ::execve("/proc/self/exe", argv.data(), envp.data());
  throw Error(ErrorKind::config, "this program", std::string("cannot be started again: ") + std::strerror(errno), "");
}

void begin_as_successor() {
  ::prctl(PR_SET_NAME, "ditto");  // it was started by a link's name
  const auto answered = answered_stop_signals();
  ::sigprocmask(SIG_UNBLOCK, &answered, nullptr);
}

}  // namespace ditto
