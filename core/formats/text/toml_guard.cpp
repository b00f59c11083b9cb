#include "core/formats/text/toml_guard.h"

#include <ditto/error.h>

#include <cstdio>

#include "core/formats/limits.h"
#include "core/formats/text/utf8.h"

namespace ditto::formats {

namespace {

bool control(unsigned char c) { return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F; }

std::string byte_name(unsigned char c) {
  char text[8];
  std::snprintf(text, sizeof text, "0x%02X", c);
  return text;
}

// Walks a text knowing only whether it is in a string, a comment or neither. A string that is never closed is left to
// the parser to complain about.
class Scanner {
 public:
  Scanner(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  void run() {
    while (at_ < text_.size()) step();
  }

 private:
  enum class In { nothing, comment, basic, literal, long_basic, long_literal };

  [[noreturn]] void fail(const std::string& what, const std::string& remedy = {}) const {
    throw Error(ErrorKind::config, std::string(file_) + ":" + std::to_string(line_) + ":" + std::to_string(column_),
                what, remedy);
  }

  bool next_is(std::string_view part) const { return text_.substr(at_).starts_with(part); }

  void advance(std::size_t bytes) {
    for (std::size_t i = 0; i < bytes && at_ < text_.size(); ++i, ++at_) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '\n') {
        ++line_;
        column_ = 1;
      } else if ((c & 0xC0) != 0x80) {
        ++column_;
      }
    }
  }

  void step() {
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (control(c)) fail("byte " + byte_name(c) + " is a control character", "remove it; in a string write \\u00XX");
    if (c == '\r' && !next_is("\r\n")) fail("a carriage return stands alone", "end lines with a line feed");
    switch (in_) {
      case In::nothing: return step_outside(c);
      case In::comment: return step_until(c == '\n', 1);
      case In::basic: return c == '\\' ? advance_escape() : step_until(c == '"' || c == '\n', 1);
      case In::literal: return step_until(c == '\'' || c == '\n', 1);
      case In::long_basic: return c == '\\' ? advance_escape() : step_until(next_is("\"\"\""), closing('"'));
      case In::long_literal: return step_until(next_is("'''"), closing('\''));
    }
  }

  // An escaped quote does not close; the escaped byte itself is checked like any other.
  void advance_escape() {
    advance(1);
    if (next_is("\"") || next_is("\\")) advance(1);
  }

  // Up to two quotes may stand before the three that close a long string.
  std::size_t closing(char quote) const {
    std::size_t count = 0;
    while (count < 5 && at_ + count < text_.size() && text_[at_ + count] == quote) ++count;
    return count;
  }

  void step_until(bool closes, std::size_t bytes) {
    if (closes) in_ = In::nothing;
    advance(closes ? bytes : 1);
  }

  void step_outside(unsigned char c) {
    if (c >= 0x80) fail("a letter outside a string is not ASCII", "put the text in quotes");
    count_values(c);
    count_key_parts(c);
    if (next_is("\"\"\"")) return enter(In::long_basic, 3);
    if (next_is("'''")) return enter(In::long_literal, 3);
    if (c == '"') return enter(In::basic, 1);
    if (c == '\'') return enter(In::literal, 1);
    if (c == '#') return enter(In::comment, 1);
    advance(1);
  }

  void enter(In in, std::size_t bytes) {
    in_ = in;
    advance(bytes);
  }

  // Each of these brings a value or a table, or a part of a key that may bring one.
  void count_values(unsigned char c) {
    if (c != ',' && c != '=' && c != '[' && c != '{' && c != '.') return;
    if (++values_ > limits::kRecipeValues) fail("the text holds over 100,000 values, which no recipe does");
  }

  // A key of a million parts would be a table nested as deep.
  void count_key_parts(unsigned char c) {
    if (c == '.') {
      if (++key_parts_ > limits::kRecipeDepth) fail("a key has more than 64 parts");
    } else if (c == '\n' || c == '=' || c == ',' || c == '[' || c == '{') {
      key_parts_ = 1;
    }
  }

  std::string_view text_;
  std::string_view file_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  std::size_t column_ = 1;
  int key_parts_ = 1;
  std::size_t values_ = 0;
  In in_ = In::nothing;
};

}  // namespace

void check_toml_bytes(std::string_view text, std::string_view file) {
  if (text.size() > limits::kRecipeBytes)
    throw Error(ErrorKind::config, file, "is over 4 MiB, which no recipe is", "check the path");
  if (const auto damage = utf8_damage(text)) {
    const auto before = text.substr(0, *damage);
    const auto line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    std::size_t line = 1;
    for (const char c : before) line += c == '\n';
    throw Error(ErrorKind::config,
                std::string(file) + ":" + std::to_string(line) + ":" + std::to_string(*damage - line_start + 1),
                "byte " + byte_name(static_cast<unsigned char>(text[*damage])) + " is not UTF-8",
                "save the file as UTF-8 text");
  }
  Scanner(text, file).run();
}

std::optional<std::string> text_damage(std::string_view text) {
  if (utf8_damage(text)) return "the value is not UTF-8";
  for (const char c : text)
    if (control(static_cast<unsigned char>(c)))
      return "the value has the control character " + byte_name(static_cast<unsigned char>(c));
  return std::nullopt;
}

}  // namespace ditto::formats
