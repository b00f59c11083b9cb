// The neutral tree, and how it is written as TOML.
#include <ditto/error.h>
#include <ditto/text.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/formats/text/toml.h"
#include "core/formats/text/utf8.h"

namespace ditto::formats {

std::string Source::text() const {
  if (!file) return {};
  if (line == 0) return *file;
  return *file + ":" + std::to_string(line) + ":" + std::to_string(column);
}

const char* Node::type_name() const {
  static constexpr const char* kNames[] = {"boolean", "integer", "number", "string", "list", "table"};
  return kNames[value.index()];
}

const Node* Table::find(std::string_view key) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  return found == entries_.end() ? nullptr : &found->value;
}

Node* Table::find(std::string_view key) { return const_cast<Node*>(std::as_const(*this).find(key)); }

Node& Table::set(std::string_view key, Node value) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (found != entries_.end()) {
    found->key_source = value.source;
    return found->value = std::move(value);
  }
  Source place = value.source;
  entries_.push_back(Entry{std::string(key), std::move(place), std::move(value)});
  return entries_.back().value;
}

bool Table::erase(std::string_view key) {
  return std::erase_if(entries_, [&](const Entry& e) { return e.key == key; }) > 0;
}

bool Table::empty() const { return entries_.empty(); }
std::size_t Table::size() const { return entries_.size(); }

namespace {

// What a part of a path names in a list; null: it has no such element.
Node* element(Array& list, std::string_view part) {
  std::size_t number = 0;
  const auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), number);
  return code == std::errc() && end == part.data() + part.size() && number < list.size() ? &list[number] : nullptr;
}

const Node* find_inside(const Node& node, std::string_view dotted) {
  if (const Table* table = node.as<Table>()) return table->find_path(dotted);
  const Array* list = node.as<Array>();
  const auto dot = dotted.find('.');
  const Node* found = list == nullptr ? nullptr : element(const_cast<Array&>(*list), dotted.substr(0, dot));
  return found == nullptr || dot == std::string_view::npos ? found : find_inside(*found, dotted.substr(dot + 1));
}

Node& set_inside(Node& node, std::string_view key, std::string_view dotted, Node value) {
  if (Table* table = node.as<Table>()) return table->set_path(dotted, std::move(value));
  Array* list = node.as<Array>();
  if (list == nullptr)
    throw Error(ErrorKind::config, value.source.text(),
                std::string(key) + " is of type " + node.type_name() + ", and nothing can be set inside it");
  const auto dot = dotted.find('.');
  const auto part = dotted.substr(0, dot);
  Node* there = element(*list, part);
  if (there == nullptr)
    throw Error(ErrorKind::config, value.source.text(),
                std::string(key) + " is a list of " + std::to_string(list->size()) + " and has no \"" +
                    std::string(part) + "\"",
                "elements are numbered from 0");
  if (dot == std::string_view::npos) return *there = std::move(value);
  return set_inside(*there, part, dotted.substr(dot + 1), std::move(value));
}

}  // namespace

const Node* Table::find_path(std::string_view dotted) const {
  const auto dot = dotted.find('.');
  const Node* node = find(dotted.substr(0, dot));
  return node == nullptr || dot == std::string_view::npos ? node : find_inside(*node, dotted.substr(dot + 1));
}

Node& Table::set_path(std::string_view dotted, Node value) {
  const auto dot = dotted.find('.');
  const std::string_view key = dotted.substr(0, dot);
  if (key.empty())
    throw Error(ErrorKind::config, value.source.text(), "a part of the key is empty", "write it like model.depth");
  if (dot == std::string_view::npos) return set(key, std::move(value));
  Node* node = find(key);
  if (node == nullptr) node = &set(key, Node{Table{}, value.source});
  return set_inside(*node, key, dotted.substr(dot + 1), std::move(value));
}

bool is_list_of_tables(const Node& node) {
  const Array* list = node.as<Array>();
  return list != nullptr && !list->empty() &&
         std::all_of(list->begin(), list->end(), [](const Node& one) { return one.as<Table>() != nullptr; });
}

namespace {

bool bare_key(std::string_view key) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !key.empty() && std::all_of(key.begin(), key.end(), fits);
}

// What TOML allows as it is, but a terminal would obey, is written out too (text.h).
std::string quoted(std::string_view text) {
  if (utf8_damage(text)) throw Error(ErrorKind::config, {}, "a string that is not UTF-8 cannot be written as TOML");
  std::string result = "\"";
  for (std::size_t length = 0; !text.empty(); text.remove_prefix(length)) {
    length = utf8_length(text);
    const auto character = text.substr(0, length);
    if (character == "\"" || character == "\\") result += '\\';
    const auto written = shown(character);
    if (written.starts_with("\\x"))
      result += "\\u00" + written.substr(2);
    else
      result += written;
  }
  return result += '"';
}

std::string number(double value) {
  if (std::isnan(value)) return std::signbit(value) ? "-nan" : "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;  // the shortest that reads back the same
  std::string result(text, end);
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  return result;
}

std::string key_text(std::string_view key) { return bare_key(key) ? std::string(key) : quoted(key); }

struct Render {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const Array& value) const {
    std::string result = "[";
    for (const Node& element : value) result += (result.size() > 1 ? ", " : "") + render_toml_value(element);
    return result += "]";
  }
  std::string operator()(const Table& value) const {
    std::string result = "{";
    for (const Entry& entry : value.entries())
      result += (result.size() > 1 ? ", " : " ") + key_text(entry.key) + " = " + render_toml_value(entry.value);
    return result += value.empty() ? "}" : " }";
  }
};

void render_entries(const Table& table, const std::string& prefix, std::string& out);

void render_table(const Table& table, const std::string& prefix, const std::string& header, std::string& out) {
  out.append(out.empty() ? "" : "\n").append(header + "\n");
  render_entries(table, prefix, out);
}

bool has_header(const Entry& entry) { return entry.value.as<Table>() != nullptr || is_list_of_tables(entry.value); }

void render_entries(const Table& table, const std::string& prefix, std::string& out) {
  const auto& entries = table.entries();
  for (const Entry& entry : entries)
    if (!has_header(entry)) out += key_text(entry.key) + " = " + render_toml_value(entry.value) + "\n";
  for (const Entry& entry : entries) {
    if (!has_header(entry)) continue;
    const std::string name = (prefix.empty() ? "" : prefix + ".") + key_text(entry.key);
    const Table* inner = entry.value.as<Table>();
    if (inner == nullptr) {
      for (const Node& element : *entry.value.as<Array>())
        render_table(*element.as<Table>(), name, "[[" + name + "]]", out);
    } else if (!inner->empty() && std::all_of(inner->entries().begin(), inner->entries().end(), has_header)) {
      render_entries(*inner, name, out);  // a table that holds nothing but such needs no header of its own
    } else {
      render_table(*inner, name, "[" + name + "]", out);
    }
  }
}

}  // namespace

std::string render_toml(const Table& table) {
  std::string out;
  render_entries(table, {}, out);
  return out;
}

std::string render_toml_value(const Node& node) { return std::visit(Render{}, node.value); }

bool same_value(const Table& a, const Table& b) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.entries().begin(), a.entries().end(), [&](const Entry& entry) {
    const Node* other = b.find(entry.key);
    return other != nullptr && same_value(entry.value, *other);
  });
}

bool same_value(const Node& a, const Node& b) {
  if (a.value.index() != b.value.index()) return false;
  if (const auto* x = a.as<double>()) {
    const double y = *b.as<double>();
    return (std::isnan(*x) && std::isnan(y)) || *x == y;
  }
  if (const auto* x = a.as<Array>()) {
    const auto& y = *b.as<Array>();
    return std::equal(x->begin(), x->end(), y.begin(), y.end(),
                      [](const Node& p, const Node& q) { return same_value(p, q); });
  }
  if (const auto* x = a.as<Table>()) return same_value(*x, *b.as<Table>());
  if (const auto* x = a.as<bool>()) return *x == *b.as<bool>();
  if (const auto* x = a.as<std::int64_t>()) return *x == *b.as<std::int64_t>();
  return *a.as<std::string>() == *b.as<std::string>();
}

}  // namespace ditto::formats
