// loader.encoded in the place of a recipe's own data.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/components/components.h"
#include "core/data/encoded_set.h"

namespace ditto {

// Options of [data] that decide what its samples are, as TOML, by their keys ("data.size"): of a recipe whose data was
// opened.
std::map<std::string, std::string> resolved_data(const Recipe& recipe);

// Throws Error(config) where the folder's samples are of another [data], with both values, and as EncodedSet does.
std::shared_ptr<Source> open_encoded(Components& components, SplitOf split);

}  // namespace ditto
