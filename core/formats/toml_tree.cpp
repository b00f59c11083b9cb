// The neutral tree, and how it is written as TOML.
#include <ditto/error.h>
#include <ditto/text.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/formats/toml.h"
#include "core/formats/utf8.h"

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

const Node* Table::find_path(std::string_view dotted) const {
  const auto dot = dotted.find('.');
  const Node* node = find(dotted.substr(0, dot));
  if (node == nullptr || dot == std::string_view::npos) return node;
  const Table* inner = node->as<Table>();
  return inner == nullptr ? nullptr : inner->find_path(dotted.substr(dot + 1));
}

Node& Table::set_path(std::string_view dotted, Node value) {
  const auto dot = dotted.find('.');
  const std::string_view key = dotted.substr(0, dot);
  if (key.empty())
    throw Error(ErrorKind::config, value.source.text(), "a part of the key is empty", "write it like model.depth");
  if (dot == std::string_view::npos) return set(key, std::move(value));
  Node* node = find(key);
  if (node == nullptr) node = &set(key, Node{Table{}, value.source});
  Table* inner = node->as<Table>();
  if (inner == nullptr)
    throw Error(ErrorKind::config, value.source.text(),
                std::string(key) + " is of type " + node->type_name() + ", and nothing can be set inside it");
  return inner->set_path(dotted.substr(dot + 1), std::move(value));
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

void render_table(const Table& table, const std::string& prefix, std::string& out) {
  const auto is_table = [](const Entry& entry) { return entry.value.as<Table>() != nullptr; };
  const auto& entries = table.entries();
  // A table that holds nothing but tables needs no header of its own.
  if (!prefix.empty() && (entries.empty() || !std::all_of(entries.begin(), entries.end(), is_table)))
    out.append(out.empty() ? "" : "\n").append("[" + prefix + "]\n");
  for (const Entry& entry : entries)
    if (!is_table(entry)) out += key_text(entry.key) + " = " + render_toml_value(entry.value) + "\n";
  for (const Entry& entry : entries)
    if (const Table* inner = entry.value.as<Table>())
      render_table(*inner, (prefix.empty() ? "" : prefix + ".") + key_text(entry.key), out);
}

}  // namespace

std::string render_toml(const Table& table) {
  std::string out;
  render_table(table, {}, out);
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
