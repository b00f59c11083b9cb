// What is refused before toml++ sees a text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ditto::formats {

// Throws Error(config) "file:line:column: …" for NUL and control characters, bytes that are not UTF-8, letters outside
// strings and comments that are not ASCII, keys of more than 64 parts, and more text or values than a recipe has.
void check_toml_bytes(std::string_view text, std::string_view file);

// What is wrong with a bare string from the command line: control characters or no UTF-8. Nothing: it is fine.
std::optional<std::string> text_damage(std::string_view text);

}  // namespace ditto::formats
