#include <limits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <ditto/error.h>
#include <ditto/text.h>
#include <ditto/version.h>

#include "apps/ditto/commands.h"
#include "apps/ditto/help.h"
#include "apps/ditto/mistyped.h"
#include "core/console/streams.h"
#include "core/measure/libtorch.h"
#include "core/plugin/guard.h"
#include "core/ranks/error_file.h"
#include "core/ranks/launch.h"
#include "core/ranks/local_ranks.h"
#include "core/ranks/stop.h"

namespace {

// LibTorch's warnings as one line each, without places in its sources. Memory that was there before it was metered is
// known to the meter (core/measure/memory.h), and no news to anybody.
class Warnings final : public c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    if (warning.msg().starts_with("Memory block of unknown size was allocated before")) return;
    std::fprintf(stderr, "warning: LibTorch: %s\n", ditto::shown(warning.msg(), ditto::kSentenceShown).c_str());
  }
};

// Of ranks that are started with the same command line.
bool is_first_rank() {
  try {
    return ditto::rank_info().rank == 0;
  } catch (const ditto::Error&) {
    return true;
  }
}

int run(int count, char** arguments) {
  CLI::App app{"Trains and samples diffusion transformers: the same training, again.", "ditto"};
  app.require_subcommand(1);
  app.formatter(ditto::help_format());
  app.set_version_flag("-V,--version", std::string("ditto ") + ditto::kVersion + ", LibTorch " + TORCH_VERSION);
  app.footer("Start: ditto train configs/digits.toml; then: ditto sample runs/digits --out samples");
  ditto::CommandLine line;
  for (int i = 1; i < count; ++i) line.arguments.emplace_back(arguments[i]);
  ditto::add_train_command(app, line);
  ditto::add_sample_command(app, line);
  ditto::add_evaluate_command(app, line);
  ditto::add_forward_command(app, line);
  ditto::add_checkpoint_commands(app, line);
  ditto::add_replay_commands(app, line);
  ditto::add_diff_command(app, line);
  ditto::add_config_commands(app, line);
  ditto::add_data_commands(app, line);
  ditto::add_encode_command(app, line);
  ditto::add_tokenize_command(app, line);
  ditto::add_init_command(app, line);
  ditto::add_plugins_commands(app, line);
  ditto::add_doctor_command(app, line);
  ditto::add_bench_command(app, line);
  ditto::add_help_commands(app);
  ditto::add_completion_command(app, line);
  ditto::refuse_unknown_command(app, line.arguments);
  ditto::name_installed_files(app);
  ditto::refuse_empty_values(app);
  if (line.arguments.empty()) {
    std::cout << app.help();
    return 0;
  }
  try {
    app.parse(count, arguments);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    if (is_first_rank()) ditto::refuse_misread(app, line.arguments, error);
    ditto::write_error_file(error.what());
    return 2;
  }
  return line.exit_code;
}

// The exit code of a command, whose error is said.
int said(const std::function<int()>& command) {
  try {
    const int code = ditto::guarded("", command);
    if (code == 0) ditto::report::require_printed();
    return code;
  } catch (const ditto::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    ditto::write_error_file(error.what());
    return error.exit_code();
  }
}

// Relative names have no meaning without it, and MKL, which looks for itself while it is loaded, ends the process there
// with words about another thing: so this comes before the libraries' own beginnings, and has the kernel's calls alone.
void require_working_folder(int, char**, char**) {
  char name[PATH_MAX];
  const auto size = ::syscall(SYS_getcwd, name, sizeof name);
  if (size < 0 ? errno != ENOENT : name[0] == '/') return;  // "(unreachable)…": on no disk that is seen from here
  static constexpr std::string_view kError =
      "error: the working folder: cannot be found, as it was removed since it was entered; go to a folder that is "
      "there, and start again\n";
  (void)!::write(STDERR_FILENO, kError.data(), kError.size());
  ::_exit(2);
}
__attribute__((section(".preinit_array"), used)) void (*const kFirst)(int, char**, char**) = require_working_folder;

int program(int count, char** arguments) {
  ditto::name_crashes();
  return said([&] {
    ditto::report::require_libtorch();
    return run(count, arguments);
  });
}

}  // namespace

int ditto::start_ranks(const CommandLine& line, int count, std::function<int()> rehearsal,
                       std::vector<std::string> arguments) {
  LocalRanks ranks{count, arguments.empty() ? without_local_ranks(line.arguments) : std::move(arguments), program};
  if (rehearsal) ranks.rehearsal = [&] { return said(rehearsal); };
  return run_local_ranks(ranks);
}

int ditto::in_child(const std::function<int()>& part) {
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0)
    throw Error(ErrorKind::distributed, "this program", std::string("cannot be split: ") + std::strerror(errno), "");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(Error::exit_code(ErrorKind::distributed));  // it died before prctl
    leave_stop_signals_to_parent();
    std::exit(said(part));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  if (stop_signal() != 0) return kStoppedBySignal;
  throw Error(ErrorKind::distributed, "this program",
              std::string("a part of it was ended by a signal: ") + ::strsignal(WTERMSIG(status)), "");
}

int main(int count, char** arguments) {
  ditto::report::prepare_streams();
  ditto::report::end_without_libraries();
  // The same zone of time, by name: without one glibc looks at that file each time somebody asks, and libzip does for
  // each member of a latent's archive, which is a third of its reading.
  ::setenv("TZ", ":/etc/localtime", 0);
  Warnings warnings;
  c10::WarningUtils::set_warning_handler(&warnings);
  return program(count, arguments);
}
