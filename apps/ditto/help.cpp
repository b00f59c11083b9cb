#include "apps/ditto/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>

#include <unistd.h>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

#include "core/config/sections.h"
#include "core/console/streams.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

void replace_all(std::string& text, const std::string& before, const std::string& after) {
  for (size_t at = 0; (at = text.find(before, at)) != std::string::npos; at += after.size())
    text.replace(at, before.size(), after);
}

void replace_in_footers(CLI::App& app, const std::string& before, const std::string& after) {
  std::string footer = app.get_footer();
  replace_all(footer, before, after);
  app.footer(footer);
  for (auto* command : app.get_subcommands([](CLI::App*) { return true; })) replace_in_footers(*command, before, after);
}

size_t help_width() {
  constexpr int kLeast = 40;
  const char* columns = std::getenv("COLUMNS");
  const int said = columns ? std::atoi(columns) : 0;
  return static_cast<size_t>(std::max(kLeast, said > 0 ? said : report::terminal_width(STDOUT_FILENO)));
}

// The words of a line, in lines of at most `width` letters where no word is longer: the first goes on at `column`, the
// others begin at `indent`. `end` stands behind each line but the last.
std::string in_lines(const std::string& text, size_t width, size_t column, size_t indent, const std::string& end = {}) {
  std::istringstream words(text);
  std::string out;
  bool is_first = true;
  size_t used = column;
  for (std::string word; words >> word; is_first = false) {
    if (!is_first && used + 1 + word.size() + end.size() > width) {
      out += end + "\n" + std::string(indent, ' ');
      used = indent;
    } else if (!is_first) {
      out += ' ', ++used;
    }
    out += word, used += word.size();
  }
  return out;
}

// Lines of a text, each by itself. One that is a command can be copied as it stands.
std::string paragraphs(const std::string& text, size_t width) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    const auto begin = std::min(line.find_first_not_of(' '), line.size());
    constexpr std::string_view kExample = "Example: ", kDitto = "ditto ";
    const std::string_view rest = std::string_view(line).substr(begin);
    const bool is_command =
        rest.starts_with(kDitto) || (rest.starts_with(kExample) && rest.substr(kExample.size()).starts_with(kDitto));
    out += std::string(begin, ' ') + in_lines(line, width, begin, begin + 4, is_command ? " \\" : "") + "\n";
  }
  return out;
}

class HelpFormat final : public CLI::Formatter {
 public:
  explicit HelpFormat(size_t width) : width_(width) { column_width(std::min<size_t>(30, width / 3)); }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return row(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return row(command->get_display_name(true), command->get_description());
  }
  std::string make_description(const CLI::App* app) const override {
    return paragraphs(app->get_description(), width_);
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return paragraphs(CLI::Formatter::make_usage(app, std::move(name)), width_);
  }
  std::string make_footer(const CLI::App* app) const override { return paragraphs(app->get_footer(), width_); }

 private:
  std::string row(const std::string& name, const std::string& said) const {
    const auto column = get_column_width();
    std::string out = "  " + in_lines(name, width_, 2, 4);
    const auto last = out.size() - (out.rfind('\n') + 1);  // of its last line
    out += last + 2 > column || out.size() != last ? "\n" + std::string(column, ' ') : std::string(column - last, ' ');
    return out + in_lines(said, width_, column, column) + "\n";
  }
  size_t width_;
};

// The command that `words` ask for, with the words that are left; its name, "ditto data prepare".
struct Asked {
  const CLI::App* command;
  std::string name;
  std::vector<std::string> rest;
};

Asked asked_for(const CLI::App& app, const std::vector<std::string>& words) {
  Asked asked{&app, "ditto", words};
  while (!asked.rest.empty()) {
    const auto found = asked.command->get_subcommands(
        [&](const CLI::App* command) { return command->get_name() == asked.rest.front(); });
    if (found.empty()) break;
    asked.command = found.front();
    asked.name += " " + asked.rest.front();
    asked.rest.erase(asked.rest.begin());
  }
  return asked;
}

// The first word that begins as an option, is none of the command's, and is no option's value.
std::optional<std::pair<std::string, std::string>> unknown_flag(const Asked& asked) {
  const auto& words = asked.rest;
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const auto& word = words[i];
    if (word.size() < 2 || word[0] != '-' || std::isdigit(static_cast<unsigned char>(word[1])) || word[1] == '.')
      continue;
    const auto equals = word.find('=');
    const auto name = word.starts_with("--") ? word.substr(0, equals) : word.substr(0, 2);
    const auto* option = asked.command->get_option_no_throw(name);
    if (!option) {
      const bool has_next = equals == std::string::npos && i + 1 < words.size() && !words[i + 1].starts_with('-');
      return std::pair(name, equals != std::string::npos ? word.substr(equals + 1) : has_next ? words[i + 1] : "");
    }
    if (equals == std::string::npos && word == name)
      i += static_cast<size_t>(std::max(0, option->get_items_expected_min()));
  }
  return {};
}

// "init_from" of "--init-from".
std::string as_option(const std::string& flag) {
  auto name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// "--set run.steps=5", of what is called so in a recipe; where nothing is, of the nearest; empty: nothing is near.
std::string meant_of_recipe(const std::string& name, const std::string& value) {
  const auto given = "=" + (value.empty() ? "VALUE" : shown(value));
  if (name.find('.') != std::string::npos) return "--set " + shown(name) + given;
  std::vector<std::string> keys, names;
  for (const auto& key : option_keys()) {
    const auto last = key.substr(key.rfind('.') + 1);
    if (last == "plugin") continue;
    if (last == name) keys.push_back(key);
    names.push_back(last);
  }
  if (keys.empty()) {
    if (const auto near = nearest(name, names); !near.empty()) return meant_of_recipe(near, value);
    return {};
  }
  std::string others;
  for (size_t i = 1; i < keys.size(); ++i) others += (i == 1 ? " (or " : ", ") + keys[i];
  return "--set " + keys.front() + given + (others.empty() ? "" : others + ")");
}

bool is_of_recipe(const std::string& name) {
  const auto keys = option_keys();
  return name.find('.') != std::string::npos ||
         std::any_of(keys.begin(), keys.end(), [&](const auto& key) { return key.ends_with("." + name); });
}

void print_help(const CLI::App& app, const std::vector<std::string>& words) {
  refuse_unknown_command(app, words);
  const auto asked = asked_for(app, words);
  if (!asked.rest.empty())
    throw Error(ErrorKind::config, asked.name, "has no command \"" + shown(asked.rest.front()) + "\"",
                "see `" + asked.name + " --help`");
  std::cout << asked.command->get_formatter()->make_help(asked.command, asked.name, CLI::AppFormatMode::Normal);
}

}  // namespace

std::shared_ptr<CLI::Formatter> help_format() { return std::make_shared<HelpFormat>(help_width()); }

void refuse_unknown_flag(const CLI::App& app, const std::vector<std::string>& arguments) {
  const auto asked = asked_for(app, arguments);
  const auto unknown = unknown_flag(asked);
  if (!unknown) return;
  const auto& [flag, value] = *unknown;
  const auto name = as_option(flag);
  std::vector<std::string> flags;
  for (const auto* option : asked.command->get_options())
    for (const auto& own : option->get_lnames()) flags.push_back("--" + own);
  const bool takes_recipe = asked.command->get_option_no_throw("--set") != nullptr;
  auto meant = takes_recipe && is_of_recipe(name) ? meant_of_recipe(name, value) : nearest(flag, flags);
  if (meant.empty() && takes_recipe) meant = meant_of_recipe(name, value);
  throw Error(ErrorKind::config, asked.name, "there is no option \"" + shown(flag) + "\"",
              (meant.empty() ? "" : "did you mean " + meant + "? ") + ("see `" + asked.name + " --help`"));
}

void add_help_commands(CLI::App& app) {
  auto* help = app.add_subcommand("help", "Say what a command does, and its options");
  auto words = std::make_shared<std::vector<std::string>>();
  help->add_option("COMMAND", *words, "the command; default: all of them");
  help->footer("Example: ditto help checkpoint export");
  help->callback([&app, words] { print_help(app, *words); });
  auto* version = app.add_subcommand("version", "Say which ditto this is");
  version->footer("Example: ditto version");
  version->callback([&app] { std::cout << app.version() << '\n'; });
}

void refuse_unknown_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* group = &app;
  std::string words = "ditto";
  for (const auto& word : arguments) {
    const auto commands = group->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty() || word.starts_with('-')) return;
    std::vector<std::string> names;
    const CLI::App* next = nullptr;
    for (const auto* command : commands) {
      names.push_back(command->get_name());
      if (names.back() == word) next = command;
    }
    if (!next) {
      const auto near = nearest(word, names);
      std::string all;
      for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
      throw Error(ErrorKind::config, words, "there is no command \"" + shown(word) + "\"",
                  (near.empty() ? "" : "did you mean \"" + near + "\"? ") + ("there are: " + all));
    }
    words += " " + word;
    group = next;
  }
}

void refuse_empty_values(CLI::App& app) {
  for (auto* option : app.get_options(
           [](const CLI::Option* one) { return one->get_items_expected_max() > 0 && !one->get_group().empty(); }))
    option->each([name = option->get_name()](const std::string& value) {
      if (value.empty())
        throw Error(ErrorKind::config, name, "is given an empty value",
                    "give another, or leave it out: a variable of the shell that is not set is empty");
    });
  // Hidden ones are no people's: ditto calls them itself.
  for (auto* command : app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); }))
    refuse_empty_values(*command);
}

void name_installed_files(CLI::App& app) {
  std::error_code error;
  const auto share = fs::read_symlink("/proc/self/exe", error).parent_path().parent_path() / "share/ditto";
  for (const char* name : {"configs/digits.toml", "data/digits"})
    if (!fs::exists(name, error) && fs::exists(share / name, error))
      replace_in_footers(app, name, (share / name).string());
}

}  // namespace ditto
