// What an evaluation found, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/evaluate/evaluate.h"

namespace ditto {

// A row for each checkpoint's average and weights, a column for each stratum.
std::string to_text(const EvaluationResult& result);
// With all digits; what is no number is null.
nlohmann::ordered_json to_json(const EvaluationResult& result);

}  // namespace ditto
