// ditto completion SHELL
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ditto/error.h>

#include "apps/ditto/commands.h"
#include "core/config/sections.h"
#include "core/plugin/kinds.h"
#include "core/plugin/registry.h"

namespace ditto {

namespace {

using Words = std::vector<std::string>;

// What completes a word: these, or (where there are none) the names of files.
struct Values {
  Words words;
  friend bool operator<(const Values& a, const Values& b) { return a.words < b.words; }
};

struct Flag {
  std::string name, said;
  bool takes_value = false;
  Values values;
};

struct Command {
  std::string path, said;  // "ditto data prepare"
  std::vector<Flag> flags;
  Words commands;     // below it
  Values positional;  // what its words are, where it is no group
  bool takes_words = false;
};

// What the program has: its commands and the options of each, those of a recipe, its plugins.
struct Everything {
  std::vector<Command> commands;
  Words keys, plugins, kinds;
};

Values values_of(const CLI::Option& option, const Everything& all) {
  const auto name = option.get_name();
  if (name == "--set") return {all.keys};
  if (name == "ID") return {all.plugins};
  if (name == "KIND") return {all.kinds};
  return {choices_of(option)};
}

void add_command(const CLI::App& app, const std::string& path, Everything& all) {
  Command command{path, app.get_description(), {}, {}, {}};
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    if (option->get_positional()) {
      command.takes_words = true;
      if (command.positional.words.empty()) command.positional = values_of(*option, all);
      continue;
    }
    for (const auto& name : option->get_lnames())
      command.flags.push_back(
          {"--" + name, option->get_description(), option->get_items_expected_min() > 0, values_of(*option, all)});
  }
  const auto below = app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
  for (const auto* one : below) command.commands.push_back(one->get_name());
  all.commands.push_back(command);
  for (const auto* one : below) add_command(*one, path + " " + one->get_name(), all);
}

Everything everything(const CLI::App& app, const Registry& registry) {
  Everything all;
  for_each_kind([&](auto tag) { all.kinds.emplace_back(decltype(tag)::type::kKind); });
  for (const auto& file : registry.files())
    if (file.refusal.empty()) all.plugins.push_back(file.kind + "/" + file.id);
  for (const auto& file : registry.files())
    if (file.refusal.empty()) all.plugins.push_back(file.id);
  for (const auto& key : option_keys()) {
    if (!key.ends_with(".plugin")) {
      all.keys.push_back(key + "=");
      continue;
    }
    for (const auto& file : registry.files())
      if (file.refusal.empty() && file.kind == kind_of(key)) all.keys.push_back(key + "=" + file.id);
  }
  add_command(app, "ditto", all);
  for (auto& command : all.commands)
    if (command.path == "ditto help") command.positional = {all.commands.front().commands};
  return all;
}

// For a shell's quotes.
std::string in_quotes(std::string text, const std::string& quote_as) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += quote_as.size())
    text.replace(at, 1, quote_as);
  return "'" + text + "'";
}

// Each list of values with the options that it completes, as patterns of "COMMAND FLAG".
std::map<Values, Words> by_values(const Everything& all) {
  std::map<Values, Words> lists;
  for (const auto& command : all.commands)
    for (const auto& flag : command.flags)
      if (flag.takes_value) lists[flag.values].push_back("'" + command.path + " " + flag.name + "'");
  return lists;
}

Words paths_of(const Everything& all) {
  Words paths;
  for (const auto& command : all.commands)
    if (command.path != "ditto") paths.push_back("'" + command.path + "'");
  return paths;
}

// The rows of a `case` over commands: what may stand where no option's value does. `words`: how a shell takes them.
std::string rows_of_commands(const Everything& all, const std::function<std::string(const Words&)>& words) {
  std::string text;
  for (const auto& command : all.commands) {
    Words flags;
    for (const auto& flag : command.flags) flags.push_back(flag.name);
    const auto& plain = command.commands.empty() ? command.positional.words : command.commands;
    text += fmt::format("    '{}')\n      if [[ $cur == -* ]]; then {}; else {}; fi ;;\n", command.path, words(flags),
                        words(plain));
  }
  return text;
}

std::string for_bash(const Everything& all) {
  const auto offer = [](const Words& words) {
    return words.empty() ? std::string(":") : fmt::format("offer=\"{}\"", fmt::join(words, " "));
  };
  std::string values;
  for (const auto& [list, flags] : by_values(all))
    values += fmt::format("    {})\n      {} ;;\n", fmt::join(flags, "|"), offer(list.words));
  return fmt::format(R"(# Completion of ditto for bash: source <(ditto completion bash)
_ditto() {{
  local at=ditto cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} offer= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at ${{COMP_WORDS[i]}}" in
      {})
        at="$at ${{COMP_WORDS[i]}}" ;;
    esac
  done
  # bash may part a=b into three words.
  if [[ $cur == = ]]; then
    cur="$prev=" prev=${{COMP_WORDS[COMP_CWORD-2]}}
  elif [[ $prev == = ]]; then
    cur="${{COMP_WORDS[COMP_CWORD-2]}}=$cur" prev=${{COMP_WORDS[COMP_CWORD-3]}}
  fi
  case "$at $prev" in
{}    *)
      case "$at" in
{}      esac ;;
  esac
  [[ -n $offer ]] || return 0
  COMPREPLY=($(compgen -W "$offer" -- "$cur"))
  [[ ${{#COMPREPLY[@]}} == 1 && $COMPREPLY == *= ]] && compopt -o nospace 2> /dev/null
  if [[ $cur == *=* && $COMP_WORDBREAKS == *=* ]]; then COMPREPLY=("${{COMPREPLY[@]#*=}}"); fi
  return 0
}}
complete -o default -F _ditto ditto
)",
                     fmt::join(paths_of(all), "|"), values, rows_of_commands(all, offer));
}

std::string for_zsh(const Everything& all) {
  const auto offer = [](const Words& words) {
    if (words.empty()) return std::string("_files");
    Words open, whole;
    for (const auto& word : words) (word.ends_with('=') ? open : whole).push_back(word);
    std::string text;
    if (!open.empty()) text = fmt::format("compadd -S '' -- {}", fmt::join(open, " "));
    if (!whole.empty()) text += fmt::format("{}compadd -- {}", text.empty() ? "" : "; ", fmt::join(whole, " "));
    return text;
  };
  std::string values;
  for (const auto& [list, flags] : by_values(all))
    values += fmt::format("    {})\n      {} ;;\n", fmt::join(flags, "|"), offer(list.words));
  return fmt::format(R"(#compdef ditto
# Completion of ditto for zsh: source <(ditto completion zsh), after compinit; or a file _ditto in a folder of fpath.
_ditto() {{
  local at=ditto cur=${{words[CURRENT]}} prev=${{words[CURRENT-1]}}
  local -i i
  for ((i = 2; i < CURRENT; i++)); do
    case "$at ${{words[i]}}" in
      {})
        at="$at ${{words[i]}}" ;;
    esac
  done
  case "$at $prev" in
{}    *)
      case "$at" in
{}      esac ;;
  esac
}}
if [[ $funcstack[1] == _ditto ]]; then _ditto "$@"; else compdef _ditto ditto; fi
)",
                     fmt::join(paths_of(all), "|"), values, rows_of_commands(all, offer));
}

std::string for_fish(const Everything& all) {
  const auto quoted = [](const std::string& text) { return in_quotes(text, "\\'"); };
  std::string text = fmt::format(R"(# Completion of ditto for fish: ditto completion fish | source
function __ditto_at
  set -l at ditto
  for word in (commandline -opc)[2..-1]
    if contains -- "$at $word" {}
      set at "$at $word"
    end
  end
  test "$at" = "$argv"
end
)",
                                 fmt::join(paths_of(all), " "));
  for (const auto& command : all.commands) {
    const auto begin = fmt::format("complete -c ditto -n '__ditto_at {}'", command.path);
    if (!command.takes_words || !command.positional.words.empty()) text += begin + " -f\n";
    for (const auto& name : command.commands)
      for (const auto& one : all.commands)
        if (one.path == command.path + " " + name)
          text += fmt::format("{} -a {} -d {}\n", begin, name, quoted(one.said));
    if (!command.positional.words.empty())
      text += fmt::format("{} -a '{}'\n", begin, fmt::join(command.positional.words, " "));
    for (const auto& flag : command.flags) {
      std::string value;
      if (flag.takes_value)
        value = flag.values.words.empty() ? " -r -F" : fmt::format(" -x -a '{}'", fmt::join(flag.values.words, " "));
      text += fmt::format("{} -l {}{} -d {}\n", begin, flag.name.substr(2), value, quoted(flag.said));
    }
  }
  return text;
}

}  // namespace

void add_completion_command(CLI::App& app, CommandLine& line) {
  using Write = std::string (*)(const Everything&);
  static constexpr std::pair<const char*, Write> kShells[] = {{"bash", for_bash}, {"zsh", for_zsh}, {"fish", for_fish}};
  Words names;
  for (const auto& [name, write] : kShells) names.emplace_back(name);
  auto* command =
      app.add_subcommand("completion", "Print what lets a shell complete ditto's commands, options and plugins");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "the shell")->required()->check(CLI::IsMember(names));
  add_plugin_path(*command, line);
  command->footer(
      "Examples:\n  ditto completion zsh > ~/.zfunc/_ditto\n  ditto completion fish | source\n  source <(ditto "
      "completion bash)");
  command->callback([&app, &line, shell] {
    const Registry registry(plugin_folders(line.plugin_path));
    for (const auto& [name, write] : kShells)
      if (*shell == name) std::cout << write(everything(app, registry));
  });
}

}  // namespace ditto
