// JSON that is not ours: parsed strictly.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include <ditto/error.h>

namespace ditto::formats {

// Throws Error(kind) "WHERE: …" for text that is not JSON, has a key twice in one object, or nests over 128 deep.
nlohmann::json parse_json(std::string_view text, std::string_view where, ErrorKind kind);

}  // namespace ditto::formats
