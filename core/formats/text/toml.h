// TOML text to a neutral tree and back. toml++ itself is seen by toml.cpp alone: Debian's 3.3.0 aborts on some inputs
// when its assertions are on, so it is compiled without them and behind a check of the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ditto::formats {

// Where a value was written. Lines and columns count from 1; 0 means "no place" (a value made by the program).
struct Source {
  std::shared_ptr<const std::string> file;  // also "--set", "(default)", …; null when made by the program
  std::int64_t line = 0;
  std::int64_t column = 0;
  std::string text() const;  // "configs/a.toml:14:9", or "--set", or ""
};

struct Node;
struct Entry;
using Array = std::vector<Node>;

// A table that keeps the order of the file (dotted and split tables: the place where the key was first seen).
class Table {
 public:
  const Node* find(std::string_view key) const;
  Node* find(std::string_view key);
  Node& set(std::string_view key, Node value);  // replaces in place, or appends
  bool erase(std::string_view key);             // whether it was there
  bool empty() const;
  std::size_t size() const;
  const std::vector<Entry>& entries() const { return entries_; }
  std::vector<Entry>& entries() { return entries_; }

  // "a.b.c" through nested tables, and "a.0.c" through a list, by number; null if a part is missing or is neither. Keys
  // with dots in them: nest find().
  const Node* find_path(std::string_view dotted) const;
  // Makes the tables on the way, and no element of a list. Throws Error(config) if a part on the way is there and is no
  // table and no list that has the element, or is empty.
  Node& set_path(std::string_view dotted, Node value);

 private:
  std::vector<Entry> entries_;
};

struct Node {
  using Value = std::variant<bool, std::int64_t, double, std::string, Array, Table>;
  Value value;
  Source source;

  template <class T>
  const T* as() const;
  template <class T>
  T* as();
  const char* type_name() const;  // "boolean", "integer", "number", "string", "list", "table"
};

struct Entry {
  std::string key;
  Source key_source;
  Node value;
};

template <class T>
const T* Node::as() const {
  return std::get_if<T>(&value);
}
template <class T>
T* Node::as() {
  return std::get_if<T>(&value);
}

// Parses a whole document. `file` is only the name used in messages and Sources.
// Throws Error(config) "file:line:column: …" for text that is not TOML 1.0, has NUL or control characters, is not
// UTF-8, has a date or time (no option takes one), nests deeper than 64 tables and lists, has over 1000 keys in a
// table, or over 4 MiB or 100,000 values in all.
Table parse_toml(std::string_view text, std::string_view file);
// The same from a file on disk; Error(config) if it cannot be read.
Table parse_toml_file(const std::string& path);

// One value as written after `--set a.b=`. Text that is TOML (`0.5`, `true`, `[1, 2]`, `"x y"`, `{a = 1}`) is that;
// text that is not is taken as a bare string (`dit`, `S/2`, `runs/a b`), unless it starts like a string, list or table
// ('"', '\'', '[', '{'): then Error(config). Every Source in it is {where, 0, 0}.
Node parse_toml_value(std::string_view text, std::string_view where = "--set");

// Whether it is a list of tables and nothing else, and not empty.
bool is_list_of_tables(const Node& node);

// Renders a tree as TOML: plain values of a table first, then its tables under [headers] and its lists of tables under
// [[headers]], in their order. Doubles round-trip exactly (also inf and nan, and 1.0 stays a float); strings are
// escaped. parse_toml(render_toml(t)) equals t but for the order of values against tables.
std::string render_toml(const Table& table);
std::string render_toml_value(const Node& node);  // one value, on one line

// Same values (nan equals nan), whatever the Sources and the order of keys.
bool same_value(const Node& a, const Node& b);
bool same_value(const Table& a, const Table& b);

}  // namespace ditto::formats
