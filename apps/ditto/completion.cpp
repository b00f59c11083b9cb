// ditto completion SHELL
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <functional>
#include <iostream>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ditto/error.h>

#include "apps/ditto/choices.h"
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
  enum class Files { no, too, behind_key } files = Files::no;  // behind_key: of KEY=FILE
  friend bool operator<(const Values& a, const Values& b) {
    return std::tie(a.words, a.files) < std::tie(b.words, b.files);
  }
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
  std::map<std::string, Words> ids;  // of plugins, by kind
};

Values values_of(const CLI::Option& option, const std::string& command, const Everything& all) {
  const auto name = option.get_name();
  const auto ids = [&](const char* kind, Words more = {}) {
    const auto found = all.ids.find(kind);
    if (found != all.ids.end()) more.insert(more.begin(), found->second.begin(), found->second.end());
    return Values{more};
  };
  if (name == "--set" || name == "--with") return {all.keys, Values::Files::behind_key};
  if (name == "--sampler") return ids("sampler");
  if (name == "--cache") return ids("cache", {"none"});
  if (name == "--progress") return {{"auto", "bar", "plain", "none"}};
  if (name == "--resume") return {{"auto", "never"}, Values::Files::too};
  if (name == "--trace" && command == "ditto train") return {{"comm", "kernels"}, Values::Files::too};
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
      if (command.positional.words.empty()) command.positional = values_of(*option, path, all);
      continue;
    }
    for (const auto& name : option->get_lnames())
      command.flags.push_back({"--" + name, option->get_description(), option->get_items_expected_min() > 0,
                               values_of(*option, path, all)});
  }
  const auto below = app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
  for (const auto* one : below) command.commands.push_back(one->get_name());
  all.commands.push_back(command);
  for (const auto* one : below) add_command(*one, path + " " + one->get_name(), all);
}

// `ditto help checkpoint` goes on as `ditto checkpoint` does: with its commands.
void add_help(Everything& all) {
  const auto of = [&](const std::string& path) {
    return std::find_if(all.commands.begin(), all.commands.end(), [&](const auto& one) { return one.path == path; });
  };
  if (of("ditto help") == all.commands.end()) return;
  const auto names = all.commands.front().commands;
  of("ditto help")->positional = {names};
  auto help = *of("ditto help");
  for (const auto& name : names) {
    help.positional = {of("ditto " + name)->commands};
    help.path = "ditto help " + name;
    if (!help.positional.words.empty()) all.commands.push_back(help);
  }
}

Everything everything(const CLI::App& app, const Registry& registry) {
  Everything all;
  for_each_kind([&](auto tag) { all.kinds.emplace_back(decltype(tag)::type::kKind); });
  for (const auto& file : registry.files()) {
    // A shell would obey other letters of a name.
    const bool is_plain = std::all_of(file.id.begin(), file.id.end(), [](char letter) {
      return std::isalnum(static_cast<unsigned char>(letter)) || letter == '_' || letter == '-' || letter == '.';
    });
    if (file.refusal.empty() && is_plain) all.ids[file.kind].push_back(file.id);
  }
  for (const auto& [kind, ids] : all.ids)
    for (const auto& id : ids) all.plugins.push_back(kind + "/" + id);
  for (const auto& [kind, ids] : all.ids) all.plugins.insert(all.plugins.end(), ids.begin(), ids.end());
  for (const auto& key : option_keys()) {
    if (!key.ends_with(".plugin"))
      all.keys.push_back(key + "=");
    else
      for (const auto& id : all.ids[kind_of(key)]) all.keys.push_back(key + "=" + id);
  }
  add_command(app, "ditto", all);
  add_help(all);
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

// The rows of a `case` over commands: what may stand where no option's value does. `offer`: how a shell takes it.
std::string rows_of_commands(const Everything& all, const std::function<std::string(const Values&)>& offer) {
  std::string text;
  for (const auto& command : all.commands) {
    Words flags;
    for (const auto& flag : command.flags) flags.push_back(flag.name);
    const auto plain = command.commands.empty() ? command.positional : Values{command.commands};
    text += fmt::format("    '{}')\n      if [[ $cur == -* ]]; then {}; else {}; fi ;;\n", command.path, offer({flags}),
                        offer(plain));
  }
  return text;
}

std::string for_bash(const Everything& all) {
  const auto offer = [](const Values& values) {  // what none of them completes completes a file's name
    return values.words.empty() ? std::string(":") : fmt::format("offer=\"{}\"", fmt::join(values.words, " "));
  };
  std::string values;
  for (const auto& [list, flags] : by_values(all))
    values += fmt::format("    {})\n      {} ;;\n", fmt::join(flags, "|"), offer(list));
  return fmt::format(R"(# Completion of ditto for bash: source <(ditto completion bash)
_ditto() {{
  local at=ditto cur=${{COMP_WORDS[COMP_CWORD]}} prev offer= before= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at ${{COMP_WORDS[i]}}" in
      {})
        at="$at ${{COMP_WORDS[i]}}" ;;
    esac
  done
  # bash may part a=b into three words.
  i=$COMP_CWORD
  while ((i > 1)) && [[ $cur == =* || -n $cur && ${{COMP_WORDS[i-1]}} == = ]]; do
    cur=${{COMP_WORDS[i-1]}}$cur i=$((i - 1))
  done
  prev=${{COMP_WORDS[i-1]}}
  if [[ $cur == --*=* ]]; then prev=${{cur%%=*}} before=${{cur%%=*}}= cur=${{cur#*=}}; fi
  case "$at $prev" in
{}    *)
      case "$at" in
{}      esac ;;
  esac
  [[ -n $offer ]] || return 0
  COMPREPLY=($(compgen -W "$offer" -- "$cur")) || return 0
  if [[ ${{#COMPREPLY[@]}} == 1 && $COMPREPLY == *= ]]; then compopt -o nospace 2> /dev/null || true; fi
  if [[ $COMP_WORDBREAKS != *=* ]]; then
    COMPREPLY=("${{COMPREPLY[@]/#/$before}}")
  elif [[ $cur == *=* ]]; then
    COMPREPLY=("${{COMPREPLY[@]#*=}}")
  fi
  return 0
}}
complete -o default -F _ditto ditto
)",
                     fmt::join(paths_of(all), "|"), values, rows_of_commands(all, offer));
}

std::string for_zsh(const Everything& all) {
  const auto offer = [](const Values& values) {
    if (values.words.empty()) return std::string("_files");
    Words open, whole;
    for (const auto& word : values.words) (word.ends_with('=') ? open : whole).push_back(word);
    const auto closed = fmt::format("compadd -- {}", fmt::join(whole, " "));
    if (values.files == Values::Files::no) return closed;
    if (values.files == Values::Files::too) return closed + "; _files";
    return fmt::format(
        "if [[ $cur == *=* ]]; then {0} || {{ compset -P 1 '*=' && _files; }}; else compadd -S '' -- {1}; {0}; fi",
        closed, fmt::join(open, " "));
  };
  std::string values;
  for (const auto& [list, flags] : by_values(all))
    values += fmt::format("    {})\n      {} ;;\n", fmt::join(flags, "|"), offer(list));
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
  if [[ $cur == --*=* ]]; then
    prev=${{cur%%=*}} cur=${{cur#*=}}
    compset -P 1 '*='
  fi
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
      const auto& [words, files] = flag.values;
      std::string value;
      if (flag.takes_value) value = words.empty() || files == Values::Files::too ? " -r -F" : " -x";
      if (flag.takes_value && !words.empty()) value += fmt::format(" -a '{}'", fmt::join(words, " "));
      text += fmt::format("{} -l {}{} -d {}\n", begin, flag.name.substr(2), value, quoted(flag.said));
      if (files == Values::Files::behind_key)
        text += fmt::format(
            "complete -c ditto -n '__ditto_at {}; and string match -q \"*=*\" -- (commandline -ct)' -l {} -r -F\n",
            command.path, flag.name.substr(2));
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
