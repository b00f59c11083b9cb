// As peft 0.21 chooses them: peft/tuners/tuners_utils.py, check_target_module_exists.
#include "core/exchange/peft_targets.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include <ditto/error.h>
#include <ditto/text.h>

namespace ditto::checkpoint {

namespace {

using nlohmann::json;

constexpr size_t kMostPattern = 2048, kMostName = 512;  // bytes

class LayerChoice {
 public:
  LayerChoice(const json& config, const std::string& layer, const std::string& where)
      : config_(config), layer_(layer), where_(where) {}

  bool is_meant() const {
    if (is_named_by("exclude_modules")) return false;
    const auto targets = config_.find("target_modules");
    if (targets == config_.end() || targets->is_null() || *targets == "all-linear") return true;
    if (targets->is_array() && std::find(targets->begin(), targets->end(), layer_) != targets->end()) return true;
    return is_named_by("target_modules") && is_transformed();
  }

 private:
  // By a pattern for all of the name, or a list of last parts.
  bool is_named_by(const char* key) const {
    const auto found = config_.find(key);
    if (found == config_.end() || *found == "") return false;
    std::smatch whole;
    if (found->is_string()) return std::regex_match(layer_, whole, pattern(key, found->get<std::string>()));
    return std::any_of(found->begin(), found->end(), [&](const json& one) {
      return one.is_string() && (one == layer_ || layer_.ends_with("." + one.get<std::string>()));
    });
  }

  // Of patterns alone peft asks for no number.
  bool is_transformed() const {
    const auto wanted = config_.find("layers_to_transform");
    if (wanted == config_.end() || wanted->is_null() || (wanted->is_array() && wanted->empty()) ||
        config_["target_modules"].is_string())
      return true;
    const auto names = config_.find("layers_pattern");
    std::vector<std::string> patterns;
    if (names != config_.end() && names->is_string() && *names != "") patterns.push_back(names->get<std::string>());
    if (names != config_.end() && names->is_array())
      for (const auto& name : *names)
        if (name.is_string()) patterns.push_back(name.get<std::string>());
    const bool is_any = patterns.empty();
    if (is_any) patterns.emplace_back("[^.]*");
    for (const auto& one : patterns) {
      const auto numbered = pattern("layers_pattern", one + "\\.(\\d+)\\.");
      // From left to right: experts have a number of their own behind the layer's.
      for (size_t at = is_any ? layer_.find('.') + 1 : 0; at < layer_.size(); at = layer_.find('.', at) + 1) {
        std::smatch found;
        const auto begin = layer_.begin() + static_cast<std::ptrdiff_t>(at);
        if (std::regex_search(begin, layer_.end(), found, numbered, std::regex_constants::match_continuous))
          return is_wanted(*wanted, found[found.size() - 1].str());
        if (layer_.find('.', at) == std::string::npos) break;
      }
    }
    return false;
  }

  static bool is_wanted(const json& wanted, const std::string& digits) {
    const auto number = json::parse(digits, nullptr, /*allow_exceptions=*/false);
    return wanted.is_array() ? std::find(wanted.begin(), wanted.end(), number) != wanted.end() : wanted == number;
  }

  // In polynomial time, whatever a file says.
  std::regex pattern(const char* key, const std::string& text) const {
    try {
      if (text.size() <= kMostPattern && layer_.size() <= kMostName)
        return std::regex(text, std::regex::ECMAScript | std::regex_constants::__polynomial);
    } catch (const std::regex_error&) {
    }
    throw Error(ErrorKind::checkpoint, where_,
                "says " + std::string(key) + " = \"" + shown(text) + "\", a pattern that cannot be read here",
                "give " + std::string(key) + " as a list of names");
  }

  const json& config_;
  const std::string& layer_;
  const std::string& where_;
};

}  // namespace

bool peft_reads(const json& config, const std::string& layer, const std::string& where) {
  return LayerChoice(config, layer, where).is_meant();
}

}  // namespace ditto::checkpoint
