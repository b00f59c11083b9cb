#include "core/formats/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace ditto::formats {

nlohmann::json parse_json(std::string_view text, std::string_view where, ErrorKind kind) {
  using json = nlohmann::json;
  constexpr int kMaxDepth = 128;
  // The library ends a text at a NUL byte and takes what stands before it.
  if (text.find('\0') != std::string_view::npos) throw Error(kind, where, "this is not JSON: it has a NUL byte");
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) throw Error(kind, where, "this JSON nests deeper than 128");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw Error(kind, where, "the key '" + value.get<std::string>() + "' is there twice in one object");
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    throw Error(kind, where, std::string("this is not JSON: ") + error.what());
  }
}

}  // namespace ditto::formats
