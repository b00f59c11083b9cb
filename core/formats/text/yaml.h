// YAML that is not ours, as the same tree that JSON has.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include <ditto/error.h>

namespace ditto::formats {

// One document: maps with scalars as keys, lists and scalars. A plain scalar is null, a boolean (true, True, TRUE), an
// integer or a number where it reads as one, else text; a quoted one is text. Throws Error(kind) "WHERE: …" for text
// that is not YAML, has a key twice in one map, nests over 64 deep, or has more values than limits.h allows, aliases
// followed.
nlohmann::json parse_yaml(std::string_view text, std::string_view where, ErrorKind kind);
// The same, and the line (from 1) that each key stands in, by the keys that lead to it with dots between them
// ("model.unet.channels"); of elements of lists none.
nlohmann::json parse_yaml(std::string_view text, std::string_view where, ErrorKind kind,
                          std::map<std::string, int>& lines);

}  // namespace ditto::formats
