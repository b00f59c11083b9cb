// UTF-8 validation for text from outside.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace ditto::formats {

// The byte at which `text` stops being UTF-8 (overlong forms and surrogates are none), or nothing.
std::optional<std::size_t> utf8_damage(std::string_view text);

}  // namespace ditto::formats
