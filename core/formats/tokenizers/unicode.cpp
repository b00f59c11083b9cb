#include "core/formats/tokenizers/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <new>

namespace ditto::formats::unicode {

namespace {

const std::uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }

std::string normal(std::string_view text, utf8proc_option_t form) {
  std::uint8_t* made = nullptr;
  const auto size = utf8proc_map(bytes_of(text), static_cast<utf8proc_ssize_t>(text.size()), &made,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form));
  const std::unique_ptr<std::uint8_t, decltype(&std::free)> owner(made, std::free);
  if (size < 0) throw std::bad_alloc();  // all that can fail of a text that is UTF-8
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(size)};
}

utf8proc_category_t category(char32_t character) { return utf8proc_category(static_cast<utf8proc_int32_t>(character)); }

}  // namespace

std::u32string characters(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    utf8proc_int32_t character = 0;
    const auto length = utf8proc_iterate(bytes_of(text), static_cast<utf8proc_ssize_t>(text.size()), &character);
    out += static_cast<char32_t>(character);
    text.remove_prefix(static_cast<std::size_t>(length));
  }
  return out;
}

void append(std::string& text, char32_t character) {
  std::uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

std::string text(std::u32string_view characters) {
  std::string out;
  out.reserve(characters.size());
  for (const char32_t character : characters) append(out, character);
  return out;
}

std::string composed(std::string_view text) { return normal(text, UTF8PROC_COMPOSE); }
std::string decomposed(std::string_view text) { return normal(text, UTF8PROC_DECOMPOSE); }

std::u32string lower(std::u32string_view characters) {
  std::u32string out;
  out.reserve(characters.size());
  for (const char32_t character : characters)
    if (character == U'\u0130')  // the one letter of which two become
      out += U"i\u0307";
    else
      out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character)));
  return out;
}

bool is_space(char32_t character) {
  return (character >= 0x9 && character <= 0xD) || character == 0x85 ||
         (category(character) >= UTF8PROC_CATEGORY_ZS && category(character) <= UTF8PROC_CATEGORY_ZP);
}

bool is_letter(char32_t character) {
  return category(character) >= UTF8PROC_CATEGORY_LU && category(character) <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t character) {
  return category(character) >= UTF8PROC_CATEGORY_ND && category(character) <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t character) {
  return category(character) >= UTF8PROC_CATEGORY_PC && category(character) <= UTF8PROC_CATEGORY_PO;
}

bool is_nonspacing(char32_t character) { return category(character) == UTF8PROC_CATEGORY_MN; }

bool is_other(char32_t character) {
  const auto kind = category(character);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_CO;
}

std::string single_spaced(std::string_view text) {
  std::string out;
  bool space = false;
  for (const char32_t character : characters(text)) {
    if (is_space(character)) {
      space = !out.empty();
      continue;
    }
    if (space) out += ' ';
    space = false;
    append(out, character);
  }
  return out;
}

}  // namespace ditto::formats::unicode
