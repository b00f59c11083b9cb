// Command lines that cannot be read, answered with what was meant.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace ditto {

// The command that `words` ask for, with the words that are left; its name, "ditto data prepare".
struct CommandAsked {
  const CLI::App* command;
  std::string name;
  std::vector<std::string> rest;
};
CommandAsked asked_for(const CLI::App& app, const std::vector<std::string>& words);

// Throws Error(config) with the nearest name where `arguments` ask for a command that there is not.
void refuse_unknown_command(const CLI::App& app, const std::vector<std::string>& arguments);

// Throws Error(config) for a line that could not be read: of an option that there is not with the one that is meant, a
// recipe's too (`--steps 5` is `--set run.steps=5`), else of what is wrong with a value, in our words.
[[noreturn]] void refuse_misread(const CLI::App& app, const std::vector<std::string>& arguments,
                                 const CLI::ParseError& error);

}  // namespace ditto
