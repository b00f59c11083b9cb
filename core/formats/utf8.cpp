#include "core/formats/utf8.h"

#include <ditto/text.h>

namespace ditto::formats {

std::optional<std::size_t> utf8_damage(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

}  // namespace ditto::formats
