// loader.encoded in the place of a recipe's own data.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/components/components.h"
#include "core/data/encoded_set.h"

namespace ditto {

// Options of [data] that decide what its samples are, as TOML, by their keys ("data.size"): read by its plugins'
// declarations, where the data need not be there. Throws Error(config).
std::map<std::string, std::string> options_of_data(Components& components);

// Throws Error(config) where the folder's samples are of another [data], with both values, and as EncodedSet does.
std::shared_ptr<Source> open_encoded(Components& components, SplitOf split);

}  // namespace ditto
