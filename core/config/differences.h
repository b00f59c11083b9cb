// Resolved recipes, option by option.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/formats/text/toml.h"

namespace ditto {

// "section.key" -> its value as TOML.
std::map<std::string, std::string> flat(const formats::Table& table);

// "key: OLD -> NEW" for every option in which two resolved recipes differ.
struct Difference {
  std::string key, before, after;
};
std::vector<Difference> differences(const formats::Table& before, const formats::Table& after);

// What weights of a resolved recipe learned as, where another takes them for something else: "model.heads = 2 (here
// 4), scheduler.shift = 1.0 (here 3.0)". Empty: nowhere.
std::string other_meaning(const formats::Table& theirs, const formats::Table& here);

}  // namespace ditto
