#include "core/assembly/encoded_encoders.h"

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>

#include "core/config/differences.h"
#include "core/data/encoded_set.h"

namespace ditto {

namespace {

nlohmann::json json_of(const std::vector<EncodedNotes::Encoder>& encoders) {
  auto json = nlohmann::json::object();
  for (const auto& one : encoders)
    json[one.section] = {{"plugin", one.plugin}, {"fingerprint", one.fingerprint}, {"precision", one.precision}};
  return json;
}

}  // namespace

std::vector<EncodedNotes::Encoder> noted_encoders(const Recipe& recipe, const Networks& networks) {
  const auto options = flat(recipe.resolved());
  std::vector<EncodedNotes::Encoder> noted;
  for (const auto* one : networks.encoders_of_data()) {
    noted.push_back({one->section, one->found.component.plugin, one->key(), c10::toString(one->ctx->compute), {}});
    const auto prefix = one->section + ".";
    for (const auto& [key, value] : options)
      if (key.starts_with(prefix) && key != prefix + "plugin" && recipe.effects().of(key) != Effect::nothing)
        noted.back().options[key.substr(prefix.size())] = value;
  }
  return noted;
}

void take_encoded(const Recipe& recipe, Networks& networks, const Source& source, FrozenWeights frozen) {
  const auto* encoded = dynamic_cast<const EncodedSet*>(&source);
  if (!encoded) return;
  networks.reads_precomputed = true;
  if (frozen != FrozenWeights::read) return;
  const auto apart = difference(json_of(encoded->encoding().encoders), json_of(noted_encoders(recipe, networks)));
  if (!apart.empty())
    throw Error(ErrorKind::config, "loader.encoded = \"" + recipe.loader.encoded + "\"",
                "is of other encoders: " + apart,
                "encode this recipe into another folder, or name the encoders that it has");
}

}  // namespace ditto
