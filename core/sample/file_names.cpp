#include "core/sample/file_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include <ditto/error.h>
#include <ditto/text.h>

namespace ditto {

namespace {

[[noreturn]] void refuse(const std::string& pattern, const std::string& what, const std::string& remedy) {
  throw Error(ErrorKind::config, "--name " + shown(pattern), what, remedy);
}

std::vector<std::string> names_by_seed(const std::string& suffix, const std::vector<int64_t>& seeds) {
  std::map<int64_t, int64_t> made;
  std::vector<std::string> names;
  for (const int64_t seed : seeds) {
    const int64_t before = made[seed]++;
    names.push_back(fmt::format("{:06}{}{}", seed, before == 0 ? "" : fmt::format("-{}", before), suffix));
  }
  return names;
}

std::string filled(const std::string& pattern, const std::map<std::string, int64_t>& values) {
  std::string name;
  for (size_t at = 0; at < pattern.size();) {
    const size_t open = pattern.find('{', at), close = pattern.find('}', std::min(open, pattern.size()));
    name += pattern.substr(at, open - at);
    if (open == std::string::npos) break;
    const auto word = pattern.substr(open, close == std::string::npos ? close : close + 1 - open);
    const auto found = word.size() > 2 ? values.find(word.substr(1, word.size() - 2)) : values.end();
    if (found == values.end())
      refuse(pattern, word == "{class}" ? "these samples have no classes" : "\"" + shown(word) + "\" means nothing",
             "there are {seed}, {index} and, of models with classes, {class}");
    name += fmt::format("{:06}", found->second);
    at = open + word.size();
  }
  return name;
}

void check_place(const std::string& pattern) {
  const std::filesystem::path path(pattern);
  const bool leaves = std::any_of(path.begin(), path.end(), [](const auto& part) { return part == ".."; });
  if (path.is_absolute() || leaves || !path.has_filename() || path.filename() == "." ||
      pattern.find('\0') != pattern.npos)
    refuse(pattern, "does not name files below --out", "write it as {class}/{seed}");
}

}  // namespace

std::vector<std::string> file_names(const std::string& pattern, const std::string& suffix,
                                    const std::vector<int64_t>& seeds, const std::vector<int64_t>& classes,
                                    const std::vector<std::string>& taken) {
  if (pattern.empty()) return names_by_seed(suffix, seeds);
  check_place(pattern);
  std::vector<std::string> names;
  std::map<std::string, size_t> made;
  for (size_t i = 0; i < seeds.size(); ++i) {
    std::map<std::string, int64_t> values{{"seed", seeds[i]}, {"index", static_cast<int64_t>(i)}};
    if (!classes.empty()) values["class"] = classes[i];
    auto name = filled(pattern, values);
    if (!name.ends_with(suffix)) name += suffix;
    name = std::filesystem::path(name).lexically_normal().string();
    if (std::find(taken.begin(), taken.end(), name) != taken.end())
      refuse(pattern, "calls a sample " + name + ", which is another file of this folder", "choose another name");
    const auto [first, is_new] = made.emplace(name, i);
    if (!is_new)
      refuse(pattern, fmt::format("calls samples {} and {} both {}", first->second, i, shown(name)),
             "every name must be another: add {index}");
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace ditto
