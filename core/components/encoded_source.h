// loader.encoded in the place of a recipe's own data.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/components/components.h"
#include "core/data/encoded_set.h"

namespace ditto {

// Options of [data] that decide what its samples are, as TOML, by their keys ("data.size"), places absolute: of a
// recipe whose data was opened.
std::map<std::string, std::string> resolved_data(const Recipe& recipe);

// `open_data` opens the recipe's own, which need not be there. Throws Error(config) where the folder's samples are of
// another [data], or of data that is there and has another fingerprint, with both values, and as EncodedSet does.
std::shared_ptr<Source> open_encoded(Components& components, SplitOf split,
                                     const std::function<std::shared_ptr<Source>()>& open_data);

}  // namespace ditto
