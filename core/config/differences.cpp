#include "core/config/differences.h"

namespace ditto {

using formats::Table;

namespace {

void flatten(const Table& table, const std::string& prefix, std::map<std::string, std::string>& into) {
  for (const auto& entry : table.entries()) {
    const std::string key = prefix.empty() ? entry.key : prefix + "." + entry.key;
    if (const auto* inner = entry.value.as<Table>()) {
      flatten(*inner, key, into);
    } else if (formats::is_list_of_tables(entry.value)) {
      size_t number = 0;
      for (const auto& one : *entry.value.as<formats::Array>())
        flatten(*one.as<Table>(), key + "." + std::to_string(number++), into);
    } else {
      into[key] = formats::render_toml_value(entry.value);
    }
  }
}

}  // namespace

std::map<std::string, std::string> flat(const Table& table) {
  std::map<std::string, std::string> values;
  flatten(table, "", values);
  return values;
}

std::vector<Difference> differences(const Table& before, const Table& after) {
  const auto a = flat(before), b = flat(after);
  std::vector<Difference> list;
  for (const auto& [key, value] : a) {
    const auto it = b.find(key);
    if (it == b.end())
      list.push_back({key, value, "(none)"});
    else if (it->second != value)
      list.push_back({key, value, it->second});
  }
  for (const auto& [key, value] : b)
    if (!a.count(key)) list.push_back({key, "(none)", value});
  return list;
}

std::string other_meaning(const Table& theirs, const Table& here) {
  const auto learned = flat(theirs);
  std::string text;
  for (const auto& [key, value] : flat(here)) {
    const auto was = learned.find(key);
    if (!(key.starts_with("model.") || key.starts_with("scheduler.")) || was == learned.end() || was->second == value)
      continue;
    text += (text.empty() ? "" : ", ") + key + " = " + was->second + " (here " + value + ")";
  }
  return text;
}

}  // namespace ditto
