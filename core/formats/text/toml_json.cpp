#include "core/formats/text/toml_json.h"

#include <cmath>

namespace ditto::formats {

nlohmann::json json_of(const Node& node) {
  if (const auto* table = node.as<Table>()) {
    auto object = nlohmann::json::object();
    for (const auto& entry : table->entries()) object[entry.key] = json_of(entry.value);
    return object;
  }
  if (const auto* list = node.as<Array>()) {
    auto array = nlohmann::json::array();
    for (const auto& one : *list) array.push_back(json_of(one));
    return array;
  }
  if (const auto* number = node.as<double>())
    return std::isfinite(*number) ? nlohmann::json(*number)
                                  : nlohmann::json(std::isnan(*number) ? "nan"
                                                   : *number > 0       ? "inf"
                                                                       : "-inf");
  if (const auto* whole = node.as<int64_t>()) return *whole;
  if (const auto* truth = node.as<bool>()) return *truth;
  return *node.as<std::string>();
}

}  // namespace ditto::formats
