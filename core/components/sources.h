// The data of a recipe, opened: a source, or a blend of several.
#pragma once

#include <memory>

#include <ditto/data.h>

#include "core/components/components.h"

namespace ditto {

// Or what loader.encoded has of it, in its place, but for
// shapes alone. The held-out samples of a blend's parts come once each, whatever their weights. What is wrong with a
// part is said with its section in front. Throws Error(config).
std::shared_ptr<Source> open_source(Components& components, const Source::Needs& needs);

}  // namespace ditto
