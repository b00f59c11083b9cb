#include <ditto/text.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <utility>

namespace ditto {

namespace {

// Inclusive, in order: what moves a cursor, ends a line, turns the direction of writing, or has no width.
constexpr std::array<std::pair<std::uint32_t, std::uint32_t>, 11> kObeyed{{{0x00, 0x1F},
                                                                           {0x7F, 0x9F},
                                                                           {0xAD, 0xAD},
                                                                           {0x61C, 0x61C},
                                                                           {0x180E, 0x180E},
                                                                           {0x200B, 0x200F},
                                                                           {0x2028, 0x202E},
                                                                           {0x2060, 0x206F},
                                                                           {0xFEFF, 0xFEFF},
                                                                           {0xFFF9, 0xFFFB},
                                                                           {0xE0000, 0xE007F}}};

std::uint32_t code_point(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  std::uint32_t value = byte(0) & (0xFFu >> (character.size() + 1));
  for (std::size_t i = 1; i < character.size(); ++i) value = value << 6 | (byte(i) & 0x3F);
  return value;
}

bool is_obeyed(std::uint32_t code) {
  for (const auto& [first, last] : kObeyed)
    if (code >= first && code <= last) return true;
  return false;
}

void write_out(std::uint32_t code, std::string& out) {
  char text[16];
  switch (code) {
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
  }
  std::snprintf(text, sizeof text, code < 0x80 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
  out += text;
}

void append_shown(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      char byte[8];
      std::snprintf(byte, sizeof byte, "\\x%02x", static_cast<unsigned char>(text.front()));
      out += byte;
    } else if (const auto code = code_point(text.substr(0, length)); is_obeyed(code)) {
      write_out(code, out);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(k < text.size() ? text[k] : 0); };
  const auto tail = [&](std::size_t k) { return (byte(k) & 0xC0) == 0x80; };
  if (text.empty()) return 0;
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (first == 0xE0 && second < 0xA0) return 0;  // overlong
    if (first == 0xED && second > 0x9F) return 0;  // surrogates
    return tail(1) && tail(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (first == 0xF0 && second < 0x90) return 0;  // overlong
    if (first == 0xF4 && second > 0x8F) return 0;  // over U+10FFFF
    return tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

std::string shown(std::string_view text, std::size_t most) {
  std::string out;
  if (text.size() <= most) {
    append_shown(text, out);
    return out;
  }
  std::size_t head = most * 2 / 3, tail = text.size() - most / 3;
  while (head > 0 && continues(text[head])) --head;
  while (tail < text.size() && continues(text[tail])) ++tail;
  append_shown(text.substr(0, head), out);
  out += "… (" + std::to_string(text.size()) + " bytes) …";
  append_shown(text.substr(tail), out);
  return out;
}

std::vector<std::int64_t> sides_of(std::string_view text) {
  std::vector<std::int64_t> sides;
  for (const char *at = text.data(), *end = at + text.size();; ++at) {
    std::int64_t side = 0;
    const auto [after, code] = std::from_chars(at, end, side);
    if (code != std::errc() || side < 1 || side > 1'000'000'000) return {};
    sides.push_back(side);
    if (after == end) return sides;
    if (*after != 'x') return {};
    at = after;
  }
}

}  // namespace ditto
