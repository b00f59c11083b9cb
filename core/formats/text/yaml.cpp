#include "core/formats/text/yaml.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include <ditto/text.h>

#include "core/formats/limits.h"
#include "core/formats/text/utf8.h"

namespace ditto::formats {

namespace {

using json = nlohmann::json;

constexpr const char *kTrue[] = {"true", "True", "TRUE"}, *kFalse[] = {"false", "False", "FALSE"};

class Converter {
 public:
  Converter(std::string_view where, ErrorKind kind, std::map<std::string, int>* lines)
      : where_(where), kind_(kind), lines_(lines) {}

  json convert(const YAML::Node& node, int depth = 0) {
    if (depth > limits::kYamlDepth) fail("this YAML nests deeper than " + std::to_string(limits::kYamlDepth));
    if (++values_ > limits::kYamlValues)
      fail("this YAML has more than " + std::to_string(limits::kYamlValues) + " values, aliases followed");
    switch (node.Type()) {
      case YAML::NodeType::Map: return map(node, depth);
      case YAML::NodeType::Sequence: {
        json list = json::array();
        for (const auto& one : node) list.push_back(convert(one, depth + 1));
        return list;
      }
      case YAML::NodeType::Scalar: return scalar(node);
      default: return nullptr;
    }
  }

  [[noreturn]] void fail(const std::string& what) const { throw Error(kind_, where_, what); }

 private:
  json map(const YAML::Node& node, int depth) {
    json object = json::object();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) fail("this YAML has a key that is no text");
      const auto& key = entry.first.Scalar();
      if (object.contains(key)) fail("the key '" + shown(key, 120) + "' is there twice in one map");
      const auto before = path_.size();
      if (lines_) {
        path_ += (path_.empty() ? "" : ".") + key;
        (*lines_)[path_] = entry.first.Mark().line + 1;
      }
      object[key] = convert(entry.second, depth + 1);
      path_.resize(before);
    }
    return object;
  }

  // A tag "!" says that it was quoted.
  static json scalar(const YAML::Node& node) {
    const auto& text = node.Scalar();
    if (node.Tag() == "!") return text;
    if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
    for (const bool value : {true, false})
      for (const char* spelled : value ? kTrue : kFalse)
        if (text == spelled) return value;
    const char *first = text.data(), *last = first + text.size();
    std::int64_t whole = 0;
    if (const auto [end, error] = std::from_chars(first, last, whole); error == std::errc{} && end == last)
      return whole;
    double number = 0;
    if (const auto [end, error] = std::from_chars(first, last, number);
        error == std::errc{} && end == last && std::isfinite(number))
      return number;
    return text;
  }

  std::string_view where_;
  ErrorKind kind_;
  std::map<std::string, int>* lines_;
  std::string path_;
  std::size_t values_ = 0;
};

}  // namespace

namespace {

json parse(std::string_view text, std::string_view where, ErrorKind kind, std::map<std::string, int>* lines) {
  Converter converter(where, kind, lines);
  if (text.size() > limits::kYamlBytes)
    converter.fail("has " + std::to_string(text.size()) + " bytes of YAML; at most " +
                   std::to_string(limits::kYamlBytes) + " are read");
  if (utf8_damage(text)) converter.fail("this is not YAML: it is not UTF-8");
  try {
    return converter.convert(YAML::Load(std::string(text)));
  } catch (const YAML::Exception& error) {
    const auto place = error.mark.is_null() ? std::string()
                                            : "line " + std::to_string(error.mark.line + 1) + ", column " +
                                                  std::to_string(error.mark.column + 1) + ": ";
    converter.fail("this is not YAML: " + place + shown(error.msg, 120));
  }
}

}  // namespace

json parse_yaml(std::string_view text, std::string_view where, ErrorKind kind) {
  return parse(text, where, kind, nullptr);
}

json parse_yaml(std::string_view text, std::string_view where, ErrorKind kind, std::map<std::string, int>& lines) {
  return parse(text, where, kind, &lines);
}

}  // namespace ditto::formats
