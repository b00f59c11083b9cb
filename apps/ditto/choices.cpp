#include "apps/ditto/choices.h"

#include <CLI/CLI.hpp>
#include <sstream>

namespace ditto {

// Of "INT:{a,b}", as CLI11 names a type with the words that it is checked against.
std::vector<std::string> choices_of(const CLI::Option& option) {
  const auto type = option.get_type_name();
  const auto open = type.find('{'), close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  std::istringstream list(type.substr(open + 1, close - open - 1));
  std::vector<std::string> words;
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}

}  // namespace ditto
