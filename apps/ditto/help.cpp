#include "apps/ditto/help.h"

#include <CLI/CLI.hpp>
#include <filesystem>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

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

}  // namespace

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

void name_installed_files(CLI::App& app) {
  std::error_code error;
  const auto share = fs::read_symlink("/proc/self/exe", error).parent_path().parent_path() / "share/ditto";
  for (const char* name : {"configs/digits.toml", "data/digits"})
    if (!fs::exists(name, error) && fs::exists(share / name, error))
      replace_in_footers(app, name, (share / name).string());
}

}  // namespace ditto
