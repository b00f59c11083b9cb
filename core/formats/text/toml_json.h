// TOML's values as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "core/formats/text/toml.h"

namespace ditto::formats {

// Numbers that JSON does not have, infinities and NaN, as text.
nlohmann::json json_of(const Node& node);

}  // namespace ditto::formats
