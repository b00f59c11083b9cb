#include "core/ranks/error_file.h"

#include <cstdlib>
#include <ctime>
#include <fstream>

#include <nlohmann/json.hpp>

namespace ditto {

void write_error_file(const std::string& message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (!path || !*path) return;
  const nlohmann::json extra{{"timestamp", std::to_string(std::time(nullptr))}};
  const nlohmann::json record{{"message", {{"message", message}, {"extraInfo", extra}}}};
  std::ofstream(path) << record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
}

}  // namespace ditto
