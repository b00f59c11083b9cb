// JSON that is not ours: parsed strictly.
#pragma once

#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include <ditto/error.h>

namespace ditto::formats {

// Throws Error(kind) "WHERE: …" for text that is not JSON, has a key twice in one object, nests over 128 deep, or would
// take memory out of proportion to its length (limits.h).
nlohmann::json parse_json(std::string_view text, std::string_view where, ErrorKind kind);

// What the JSON library says, without its own numbers: "line 1, column 5: …" of a text that it cannot parse.
std::string json_reason(std::string_view what);

// What an exception says in words for people: of a library's own (JSON, std::filesystem) without its names for things.
std::string plain_reason(const std::exception& error);

// `value` for a terminal or another program, in ASCII: names in it cannot move a cursor. Bytes that are no UTF-8 become
// U+FFFD.
template <class Json>
std::string ascii_json(const Json& value, int indent = 2) {
  return value.dump(indent, ' ', true, Json::error_handler_t::replace);
}

}  // namespace ditto::formats
