// What the command line says to people beside its errors.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Formatter;
}  // namespace CLI

namespace ditto {

// How every help is laid out: as wide as the terminal is (COLUMNS, else that of standard output, else 80), broken
// between words.
std::shared_ptr<CLI::Formatter> help_format();

// From then on an option or a word that is given and is empty is Error(config), of all commands that people type: a
// shell's variable that is not set would mean the default, "all" say. Texts may be empty: kTexts and --negative-prompt.
inline constexpr const char* kTexts = "texts";
void refuse_empty_values(CLI::App& app);

// Where the recipe and the data of the examples are not in this folder, but come with the installation, every help
// names them there.
void name_installed_files(CLI::App& app);

// help [COMMAND…], version
void add_help_commands(CLI::App& app);

}  // namespace ditto
