#include "apps/ditto/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>

#include <unistd.h>

#include <ditto/error.h>
#include <ditto/text.h>

#include "apps/ditto/mistyped.h"
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

void refuse_empty_values(CLI::App& app) {
  constexpr const char* kTakesEmpty = "--negative-prompt";
  for (auto* option : app.get_options([](const CLI::Option* one) {
         return one->get_items_expected_max() > 0 && !one->get_group().empty() && one->get_name() != kTexts;
       }))
    option->each([name = option->get_name()](const std::string& value) {
      if (value.empty() && name != kTakesEmpty)
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
