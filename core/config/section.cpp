#include "core/config/section.h"

#include <algorithm>

#include <ditto/error.h>

namespace ditto {

using formats::Node;
using formats::Table;

namespace {

// A TOML list as an option's value: whole numbers, numbers or strings.
OptionValue list_value(const formats::Array& list, const std::string& where) {
  const auto all = [&](auto test) { return std::all_of(list.begin(), list.end(), test); };
  if (all([](const Node& n) { return n.as<int64_t>() != nullptr; })) {
    std::vector<int64_t> values;
    for (const auto& n : list) values.push_back(*n.as<int64_t>());
    return values;
  }
  if (all([](const Node& n) { return n.as<int64_t>() || n.as<double>(); })) {
    std::vector<double> values;
    for (const auto& n : list)
      values.push_back(n.as<double>() ? *n.as<double>() : static_cast<double>(*n.as<int64_t>()));
    return values;
  }
  if (all([](const Node& n) { return n.as<std::string>() != nullptr; })) {
    std::vector<std::string> values;
    for (const auto& n : list) values.push_back(*n.as<std::string>());
    return values;
  }
  throw Error(ErrorKind::config, where, "a list of mixed types",
              "expected a list of integers, of numbers or of strings");
}

}  // namespace

bool is_set(const std::string& where) { return where.starts_with("--set "); }

std::string place(const Node& node, const std::string& name) {
  const auto text = node.source.text();
  return text.empty() ? name : text;
}

OptionMap options_of(const Table& table, const std::string& section, const std::string& where) {
  OptionMap map{section, where, {}};
  for (const auto& entry : table.entries()) {
    if (entry.key == "plugin") continue;
    const auto at = place(entry.value, where);
    if (entry.value.as<Table>())
      throw Error(ErrorKind::config, at, section + "." + entry.key + " is a table",
                  "expected a value; `ditto config show` lists the options");
    OptionValue value;
    if (const auto* v = entry.value.as<bool>()) value = *v;
    if (const auto* v = entry.value.as<int64_t>()) value = *v;
    if (const auto* v = entry.value.as<double>()) value = *v;
    if (const auto* v = entry.value.as<std::string>()) value = *v;
    if (const auto* v = entry.value.as<formats::Array>()) value = list_value(*v, at);
    map.given[entry.key] = {std::move(value), at};
  }
  return map;
}

Node node_of(const OptionValue& value) {
  return std::visit(
      [](const auto& v) -> Node {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t> || std::is_same_v<T, double> ||
                      std::is_same_v<T, std::string>) {
          return Node{v, {}};
        } else {
          formats::Array list;
          for (const auto& one : v) list.push_back(Node{one, {}});
          return Node{list, {}};
        }
      },
      value);
}

Component component_in(const Table& table, const std::string& name, const std::string& where) {
  const Node* plugin = table.find("plugin");
  if (!plugin)
    throw Error(ErrorKind::config, where, "[" + name + "] names no plugin",
                "add plugin = \"…\"; see `ditto plugins list`");
  const auto* id = plugin->as<std::string>();
  if (!id || id->empty())
    throw Error(ErrorKind::config, place(*plugin, where), name + ".plugin is " + plugin->type_name(),
                "expected a plugin's id, as a string");
  return {*id, place(*plugin, where), options_of(table, name, where)};
}

namespace {

bool is_note(const formats::Entry& entry) {
  return entry.key != "receipts" && (entry.value.as<std::string>() || entry.value.as<formats::Table>());
}

}  // namespace

formats::Table without_notes(formats::Table record) {
  std::erase_if(record.entries(), is_note);
  return record;
}

bool has_notes(const formats::Table& recipe) {
  const formats::Node* record = recipe.find("record");
  const auto* table = record ? record->as<formats::Table>() : nullptr;
  return table && std::any_of(table->entries().begin(), table->entries().end(), is_note);
}

}  // namespace ditto
