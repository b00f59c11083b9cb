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

}  // namespace ditto::formats
