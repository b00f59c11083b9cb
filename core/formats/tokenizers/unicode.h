// Characters as Unicode says of them (utf8proc, Unicode 15): what the tokenizers split and change texts by. Every text
// here is UTF-8, or its characters.
#pragma once

#include <string>
#include <string_view>

namespace ditto::formats::unicode {

std::u32string characters(std::string_view text);
void append(std::string& text, char32_t character);
std::string text(std::u32string_view characters);

// Normal forms C and D.
std::string composed(std::string_view text);
std::string decomposed(std::string_view text);
// Character by character, whatever stands around one: a last sigma is like the others.
std::u32string lower(std::u32string_view characters);

bool is_space(char32_t character);        // White_Space: tabs, line ends, no-break and ideographic spaces, …
bool is_letter(char32_t character);       // L
bool is_number(char32_t character);       // N
bool is_punctuation(char32_t character);  // P
bool is_nonspacing(char32_t character);   // Mn
bool is_other(char32_t character);        // Cc, Cf, Co: controls, formats, private use

// Each run of white space as one space, and none before and behind.
std::string single_spaced(std::string_view text);

}  // namespace ditto::formats::unicode
