// The subcommands of `ditto`: each file adds its own to the program, and sets its callback.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ditto {

// What every subcommand shares.
struct CommandLine {
  std::vector<std::string> arguments;    // without the program's name, for --local-ranks
  std::vector<std::string> plugin_path;  // --plugin-path
  int exit_code = 0;                     // set by callbacks that end with something else than success
};

// This command's line without --local-ranks, or `arguments` where there are any, as so many ranks on this machine: its
// exit code. `rehearsal`: as of core/ranks/local_ranks.h. Nothing may have been computed or opened before, so that
// ranks find what a program finds.
int start_ranks(const CommandLine& line, int count, std::function<int()> rehearsal = {},
                std::vector<std::string> arguments = {});

// A part of a command in a process of its own, which leaves nothing behind in this one: its exit code; its error is
// said. 75 where a signal ended it that this process answers. Nothing may have been computed or opened before.
int in_child(const std::function<int()>& part);

// Of every command that may open a plugin.
void add_plugin_path(CLI::App& command, CommandLine& line);

void add_train_command(CLI::App& app, CommandLine& line);        // train
void add_replay_commands(CLI::App& app, CommandLine& line);      // replay, bisect
void add_sample_command(CLI::App& app, CommandLine& line);       // sample
void add_evaluate_command(CLI::App& app, CommandLine& line);     // evaluate
void add_forward_command(CLI::App& app, CommandLine& line);      // forward
void add_checkpoint_commands(CLI::App& app, CommandLine& line);  // checkpoint inspect | verify | import | export
void add_config_commands(CLI::App& app, CommandLine& line);      // config check | show
void add_data_commands(CLI::App& app, CommandLine& line);        // data prepare | inspect | verify | split
void add_encode_command(CLI::App& app, CommandLine& line);       // encode
void add_tokenize_command(CLI::App& app, CommandLine& line);     // tokenize
void add_init_command(CLI::App& app, CommandLine& line);         // init
void add_plugins_commands(CLI::App& app, CommandLine& line);     // plugins list | show | verify | try | new
void add_doctor_command(CLI::App& app, CommandLine& line);       // doctor
// bench step | kernels | loader | optimizer | checkpoint | sample
void add_bench_command(CLI::App& app, CommandLine& line);
void add_diff_command(CLI::App& app, CommandLine& line);        // diff
void add_completion_command(CLI::App& app, CommandLine& line);  // completion, of all that was added

}  // namespace ditto
