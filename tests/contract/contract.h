// What contract tests share: the plugins that are built, and what is done with a report on one.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ditto/testing/checks.h>

#include "tests/support/files.h"

namespace ditto::contract {

// Every library of a kind's folder, by its id.
inline std::vector<std::pair<std::string, std::string>> plugins_of(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(test::plugin_folder()) / folder))
    if (file.path().extension() == ".so") found.emplace_back(file.path().stem().string().substr(3), file.path());
  CHECK_FALSE(found.empty());
  return found;
}

inline void passes(const testing::Report& report) {
  MESSAGE(report.text());
  CHECK_MESSAGE(report.passed(), report.failures());
}

inline OptionValue text(const char* value) { return std::string(value); }
inline OptionValue number(int64_t value) { return value; }

struct ModelCase {
  testing::OptionValues options;
  ModelNeeds needs;
  testing::ModelChecks checks = {};
};

inline testing::OptionValues small_autoencoder(testing::OptionValues more = {}) {
  more.insert({{"channels", std::vector<int64_t>{8, 16}}, {"groups", number(4)}, {"layers", number(1)}});
  return more;
}

}  // namespace ditto::contract
