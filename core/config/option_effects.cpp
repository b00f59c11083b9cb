#include "core/config/option_effects.h"

#include <algorithm>

namespace ditto {

void OptionEffects::add(const std::string& section, const std::vector<OptionInfo>& declared) {
  for (const auto& info : declared) add(section + "." + info.name, info.effect, info.is_place);
}

void OptionEffects::add(const std::string& key, Effect effect, bool is_place) { by_key_[key] = {effect, is_place}; }

void OptionEffects::merge(const OptionEffects& other) { by_key_.insert(other.by_key_.begin(), other.by_key_.end()); }

Effect OptionEffects::of(const std::string& key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? effect_of_section(key) : it->second.effect;
}

bool OptionEffects::knows(const std::string& word) const {
  return declared(word) || std::any_of(by_key_.begin(), by_key_.end(),
                                       [&](const auto& one) { return one.first.starts_with(word + "."); });
}

bool OptionEffects::is_place(const std::string& key) const {
  const auto it = by_key_.find(key);
  return it != by_key_.end() && it->second.is_place;
}

}  // namespace ditto
