#include "core/config/idle_options.h"

#include <algorithm>

#include "core/config/recipe.h"

namespace ditto {

namespace {

// "a.toml" of "a.toml:14:9".
std::string file_of(const std::string& where) {
  auto end = where.size();
  for (int number = 0; number < 2; ++number) {
    const auto colon = where.rfind(':', end - 1);
    if (colon == std::string::npos || colon + 1 == end) return where;
    if (!std::all_of(where.begin() + static_cast<std::ptrdiff_t>(colon) + 1,
                     where.begin() + static_cast<std::ptrdiff_t>(end), [](char c) { return c >= '0' && c <= '9'; }))
      return where;
    end = colon;
  }
  return where.substr(0, end);
}

}  // namespace

// Where another option of the section came later: from the command line, from the file that includes this one, or from
// a group. What the recipe of a run that was begun has in it, an earlier version took.
bool Recipe::goes_along(const OptionMap& given, const std::string& name) const {
  const auto it = given.given.find(name);
  if (it == given.given.end() || is_set(it->second.where)) return false;
  if (of_run_) return true;
  if (given.section.starts_with("optimizer.group.")) {
    const auto inherited = optimizer.options.given.find(name);
    if (inherited != optimizer.options.given.end() && inherited->second.where == it->second.where) return true;
  }
  const auto file = file_of(it->second.where);
  return std::any_of(given.given.begin(), given.given.end(), [&](const auto& other) {
    const auto& where = other.second.where;
    return is_set(where) || (file != this->name && file_of(where) != file);
  });
}

}  // namespace ditto
