// What a run starts from: run.init_from, and of an adapter what adapter.weights names.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"
#include "core/process/same_start.h"

namespace ditto {

// Who hears of it, and how ranks make sure that they have found the same.
struct FirstWeightsCall {
  const Mesh& mesh;
  std::function<void(const std::string& topic, const Facts& facts)> expect_same;
  std::function<void(const std::string&)> say;
  std::vector<std::string> allowed = {};  // keys of the recipe that may differ from what the weights were learned with
};
// What can be known of them before any is read: how they are to fit. Throws Error(config).
checkpoint::Fit check_first_weights(const Assembly& assembly);
// That something is there to read them from. Throws Error(checkpoint).
void require_first_weights(const Recipe& recipe);
// Reads them into the run's model. Returns what checkpoints are to note of them: of an adapter's run its base. Throws
// Error(checkpoint) or Error(config).
std::map<std::string, std::string> read_first_weights(Assembly& assembly, const FirstWeightsCall& call);

}  // namespace ditto
