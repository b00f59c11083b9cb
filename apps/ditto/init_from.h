// ditto init --from FILE.yaml
#pragma once

#include <string>
#include <vector>

namespace ditto {

// Writes the recipe of what NeMo's Imagen is trained by, and says what of it needs no option. -> the exit code.
int init_from(const std::string& yaml, const std::string& out, const std::vector<std::string>& plugin_path);

}  // namespace ditto
