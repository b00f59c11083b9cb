// The models that kModels has not (layouts.h), on each axis and its strategies, recomputed, and put together.
#pragma once

#include <string>
#include <vector>

#include "tests/matrix/case.h"

namespace ditto::matrix {

// What a model says where it refuses a layout; empty: it does not.
std::string refusal(const std::string& model, const std::string& layout);
std::vector<Case> model_cases();
std::vector<Case> few_model_cases();  // one composed layout of every model, as short as may be

}  // namespace ditto::matrix
