// What the command line says to people beside its errors.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ditto {

// Throws Error(config) with the nearest name where `arguments` ask for a command that there is not.
void refuse_unknown_command(const CLI::App& app, const std::vector<std::string>& arguments);

// Where the recipe and the data of the examples are not in this folder, but come with the installation, every help
// names them there.
void name_installed_files(CLI::App& app);

}  // namespace ditto
