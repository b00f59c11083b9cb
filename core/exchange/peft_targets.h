// Which of a model's layers peft gives terms to. Terms of others may lie in its file, and it does not read them.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace ditto::checkpoint {

// Whether an adapter_config.json (target_modules, exclude_modules, layers_to_transform, layers_pattern) means the layer
// of this name. Throws Error(checkpoint) at `where` for a pattern that cannot be read.
bool peft_reads(const nlohmann::json& config, const std::string& layer, const std::string& where);

}  // namespace ditto::checkpoint
