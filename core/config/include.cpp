#include "core/config/include.h"

#include <algorithm>
#include <filesystem>

#include <ditto/error.h>

namespace ditto {

namespace fs = std::filesystem;
using formats::Node;
using formats::Table;

namespace {

void merge(Table& into, const Table& from) {
  for (const auto& entry : from.entries()) {
    Node* there = into.find(entry.key);
    auto* inner = there ? there->as<Table>() : nullptr;
    const auto* other = entry.value.as<Table>();
    if (inner && other) {
      // Another plugin does not inherit the options of the one it replaces.
      const Node *old_plugin = inner->find("plugin"), *new_plugin = other->find("plugin");
      if (old_plugin && new_plugin && !formats::same_value(*old_plugin, *new_plugin)) *inner = Table();
      merge(*inner, *other);
    } else {
      into.set(entry.key, entry.value);
    }
  }
}

std::vector<std::string> included(const Node& node) {
  if (const auto* one = node.as<std::string>()) return {*one};
  std::vector<std::string> files;
  if (const auto* list = node.as<formats::Array>())
    for (const auto& item : *list)
      if (const auto* file = item.as<std::string>()) files.push_back(*file);
  if (const auto* list = node.as<formats::Array>(); list && files.size() == list->size()) return files;
  throw Error(ErrorKind::config, node.source.text(), "include is " + std::string(node.type_name()),
              "expected a file's name, or a list of them");
}

Table read(const std::string& path, std::vector<std::string> chain) {
  const auto canonical = fs::weakly_canonical(path).string();
  if (std::find(chain.begin(), chain.end(), canonical) != chain.end()) {
    std::string circle;
    for (const auto& file : chain) circle += fs::path(file).filename().string() + " -> ";
    throw Error(ErrorKind::config, path, "includes itself: " + circle + fs::path(canonical).filename().string(),
                "remove one of these includes");
  }
  chain.push_back(canonical);
  Table own = formats::parse_toml_file(path);
  Table result;
  if (const Node* node = own.find("include")) {
    for (const auto& file : included(*node)) {
      const auto target = (fs::path(path).parent_path() / file).lexically_normal().string();
      if (!fs::exists(target))
        throw Error(ErrorKind::config, node->source.text(), "includes \"" + file + "\", which is not at " + target,
                    "the name is relative to the folder of " + path);
      merge(result, read(target, chain));
    }
    own.erase("include");
  }
  merge(result, own);
  return result;
}

// One word: a section's name, or an option's whose section is left out.
[[noreturn]] void refuse_key(const Table& tree, const std::string& key, const std::string& set) {
  if (tree.find(key))
    throw Error(ErrorKind::config, "--set " + set, "\"" + key + "\" is a section, not an option",
                "write it as --set " + key + ".OPTION=VALUE");
  std::string places;
  for (const auto& [section, source, node] : tree.entries())
    if (const auto* table = node.as<Table>(); table && table->find(key))
      places += (places.empty() ? "" : " or ") + ("--set " + section + "." + set);
  throw Error(ErrorKind::config, "--set " + set, "names no section for \"" + key + "\"",
              "write it as " + (places.empty() ? "--set SECTION." + set : places));
}

}  // namespace

Table read_with_includes(const std::string& path) {
  if (!fs::exists(path))
    throw Error(ErrorKind::config, path, "there is no such recipe", "recipes that come with Ditto are in configs/");
  return read(path, {});
}

void apply_sets(Table& tree, const std::vector<std::string>& sets) {
  for (const auto& set : sets) {
    const auto equals = set.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorKind::config, "--set " + set, "is not KEY=VALUE", "write it as --set run.steps=100");
    const auto key = set.substr(0, equals);
    if (key.find('.') == std::string::npos) refuse_key(tree, key, set);
    auto value = formats::parse_toml_value(set.substr(equals + 1), "--set " + set);
    if (key.ends_with(".plugin")) {  // another plugin does not inherit the options of the one it replaces
      const auto section = key.substr(0, key.size() - 7);
      Node* there = const_cast<Node*>(tree.find_path(section));
      auto* table = there ? there->as<Table>() : nullptr;
      const Node* old = table ? table->find("plugin") : nullptr;
      if (old && !formats::same_value(*old, value)) *table = Table();
    }
    tree.set_path(key, std::move(value));
  }
}

}  // namespace ditto
