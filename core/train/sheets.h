// The sheets of samples that a training draws on its way.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"
#include "core/formats/picture/picture.h"
#include "core/sample/generate.h"

namespace ditto {

// As many as validate.grid says, with seeds from 0 on. Of classes alone each in its turn; of all else what the held-out
// samples have or, where there are none, the first ones to learn from. `warn` hears of samples that cannot be read.
SampleRequests sheet_requests(Assembly& assembly, const std::function<void(const std::string&)>& warn);

// One sheet of these samples; of videos one for each frame. Called by all ranks.
std::vector<formats::Picture> draw_sheets(Assembly& assembly, const std::function<void(const std::string&)>& warn);

}  // namespace ditto
