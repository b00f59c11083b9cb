// Text from outside: whether it is UTF-8, and what an editor leaves around it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ditto::formats {

// The byte at which `text` stops being UTF-8 (overlong forms and surrogates are none), or nothing.
std::optional<std::size_t> utf8_damage(std::string_view text);

// Without the byte order mark that some editors put before UTF-8: it is no part of the text.
std::string_view without_mark(std::string_view text);

// Every line end a "\n": Windows writes "\r\n", old Macs "\r".
std::string with_plain_ends(std::string_view text);

// A text as it was meant: without mark, with plain line ends, and without blanks and empty lines before and behind it.
// Throws Error(data) "WHERE: …" for bytes that are no UTF-8 or hold a NUL byte, with the encoding that they look like.
std::string plain_text(std::string_view bytes, std::string_view where);

}  // namespace ditto::formats
