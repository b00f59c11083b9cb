// JSON that is not ours: parsed strictly.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include <ditto/error.h>

namespace ditto::formats {

// Throws Error(kind) "WHERE: …" for text that is not JSON, has a key twice in one object, nests over 128 deep, or would
// take memory out of proportion to its length (limits.h).
nlohmann::json parse_json(std::string_view text, std::string_view where, ErrorKind kind);

// What the JSON library says of a text it cannot parse, without the library's own numbers: "line 1, column 5: …".
std::string json_reason(std::string_view what);

// `value` for a terminal or another program, in ASCII: names in it cannot move a cursor. Bytes that are no UTF-8 become
// U+FFFD.
template <class Json>
std::string ascii_json(const Json& value, int indent = 2) {
  return value.dump(indent, ' ', true, Json::error_handler_t::replace);
}

}  // namespace ditto::formats
