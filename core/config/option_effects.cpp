#include "core/config/option_effects.h"

#include <ditto/cache.h>
#include <ditto/guidance.h>
#include <ditto/kernels.h>
#include <ditto/optimizer.h>
#include <ditto/sampler.h>

namespace ditto {

Effect effect_of_section(const std::string& section) {
  static const std::map<std::string, Effect> kSections{
      {"lr_schedule", Effect::course},
      {"ema", Effect::course},
      {"checkpoint", Effect::nothing},
      {"validate", Effect::nothing},
      {"log", Effect::nothing},
      {"record", Effect::nothing},
      {"plugins", Effect::nothing},
      {"optimizer", effect_of_options<Optimizer>()},
      {"sampler", effect_of_options<Sampler>()},
      {"guidance", effect_of_options<Guidance>()},
      {"cache", effect_of_options<Cache>()},
      {"kernels", effect_of_options<KernelSet>()},
  };
  const auto it = kSections.find(section.substr(0, section.find('.')));
  return it == kSections.end() ? Effect::learning : it->second;
}

void OptionEffects::add(const std::string& section, const std::vector<OptionInfo>& declared) {
  for (const auto& info : declared) add(section + "." + info.name, info.effect, info.is_place);
}

void OptionEffects::add(const std::string& key, Effect effect, bool is_place) { by_key_[key] = {effect, is_place}; }

void OptionEffects::merge(const OptionEffects& other) { by_key_.insert(other.by_key_.begin(), other.by_key_.end()); }

Effect OptionEffects::of(const std::string& key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? effect_of_section(key) : it->second.effect;
}

bool OptionEffects::is_place(const std::string& key) const {
  const auto it = by_key_.find(key);
  return it != by_key_.end() && it->second.is_place;
}

}  // namespace ditto
