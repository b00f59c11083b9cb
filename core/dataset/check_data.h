// Whether all of a recipe's samples can be read: `ditto data verify RECIPE`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

struct DataCheck {
  std::string part;  // "to learn from", "held out"
  int64_t samples = 0;
  std::vector<std::string> problems;  // what the source warns of, and each sample that a run would leave out or refuse
  std::string contents;               // 32 hex digits of all its samples' tensors, bit by bit, in the source's order
};

// Opens the data as a run does and reads every sample once, on loader.threads threads; of those held out too, where
// validate.every has them read. Throws what opening throws, and what is no sample's fault.
std::vector<DataCheck> check_data(Recipe& recipe, Registry& registry);

}  // namespace ditto
