#include "apps/ditto/plugins_new.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <regex>

#include <fmt/format.h>

#include <ditto/model.h>
#include <ditto/text.h>
#include <ditto/version.h>

#include "core/formats/file.h"
#include "core/formats/output_folder.h"
#include "new_model.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

constexpr const char* kBuild =
    R"(# Model {0} outside of Ditto's tree; within it, in plugins/models/{0}, the build finds the sources without this file.
cmake_minimum_required(VERSION 3.25)
project({0} LANGUAGES CXX)

find_package(Ditto {1} REQUIRED)
ditto_add_plugin({0} models SOURCES {0}.cpp)  # build/lib/ditto/plugins/models/lib{0}.so
)";

// my_model -> MyModel
std::string camel_case(const std::string& name) {
  std::string made;
  bool is_first = true;
  for (const char c : name) {
    if (c != '_') made += is_first ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    is_first = c == '_';
  }
  return made;
}

std::string source_of(const std::string& name) {
  // "Model" behind it: a class called Block, say, is in the source already.
  auto source = std::regex_replace(std::string(kNewModel), std::regex("\\bTiny\\b"), camel_case(name) + "Model");
  source = std::regex_replace(source, std::regex("\\bTinyOptions\\b"), camel_case(name) + "Options");
  return std::regex_replace(source, std::regex("\\btiny\\b"), name);
}

void write(const fs::path& path, const std::string& text) {
  formats::write_file(path.string(), std::as_bytes(std::span(text)), ErrorKind::config);
}

}  // namespace

void new_plugin(const NewArguments& a) {
  const std::string command = "ditto plugins new";
  if (a.kind != Model::kKind)
    throw Error(ErrorKind::config, command, "'" + a.kind + "' is a kind that it does not write",
                "write \"model\"; of another kind, begin with a copy of one in plugins/ of Ditto's sources "
                "(docs/add_a_model.md says what kinds there are)");
  if (!std::regex_match(a.name, std::regex("[a-z][a-z0-9_]{0,63}")))
    throw Error(ErrorKind::config, command, "'" + a.name + "' is not the name of a plugin",
                "use the letters a to z, digits and \"_\", a letter first, at most 64 of them");
  const auto folder = (fs::path(a.in) / a.name).lexically_normal();
  if (fs::exists(fs::symlink_status(folder)))
    throw Error(ErrorKind::config, folder.string(), "is there already",
                "choose another name, or another folder by --in");
  formats::make_output_folder(folder.string(), "--in");
  const auto minor = std::string(kVersion).substr(0, std::string(kVersion).rfind('.'));
  write(folder / (a.name + ".cpp"), source_of(a.name));
  write(folder / "CMakeLists.txt", fmt::format(kBuild, a.name, minor));

  const auto here = shown(folder.string());
  std::cout << fmt::format(
      "{0}/{1}.cpp and {0}/CMakeLists.txt: a small transformer that trains as it is, to make yours.\n\n"
      "In plugins/models of Ditto's tree, ./dev build builds it. Elsewhere, with PREFIX the folder that Ditto was "
      "installed to:\n"
      "  cmake -S {0} -B {0}/build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build {0}/build\n"
      "  ditto plugins try {0}/build/lib/ditto/plugins/models/lib{1}.so\n"
      "  ditto train RECIPE --set model.plugin={1} --plugin-path {0}/build/lib/ditto/plugins\n",
      here, a.name);
}

}  // namespace ditto
