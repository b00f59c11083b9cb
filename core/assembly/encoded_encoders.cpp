#include "core/assembly/encoded_encoders.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>

#include "core/config/differences.h"
#include "core/config/numerics.h"
#include "core/data/encoded_set.h"

namespace ditto {

namespace {

nlohmann::json json_of(const std::vector<EncodedNotes::Encoder>& encoders, const std::string& numerics) {
  nlohmann::json json{{"run.numerics", numerics}};
  for (const auto& one : encoders)
    json[one.section] = {{"plugin", one.plugin}, {"fingerprint", one.fingerprint}, {"precision", one.precision},
                         {"takes", one.takes},   {"caches", one.caches},           {"makes", one.makes}};
  return json;
}

std::string text_of(const TensorSpecs& specs) {
  std::string text;
  for (const auto& spec : specs) text += (text.empty() ? "" : ", ") + to_text(spec);
  return text;
}

}  // namespace

TensorSpecs kept_of(const RunningEncoder& encoder, const Networks& networks) {
  auto specs = encoder.encoder->caches();
  for (auto& spec : specs)
    if (networks.main->setting.compute == torch::kDouble && at::isFloatingType(spec.dtype)) spec.dtype = torch::kDouble;
  return specs;
}

std::string numerics_of(const Recipe& recipe) {
  return recipe.run.numerics +
         (is_one_number(recipe) ? fmt::format(", leaves of {} tokens", recipe.run.token_leaf) : "");
}

std::vector<EncodedNotes::Encoder> noted_encoders(const Recipe& recipe, const Networks& networks) {
  const auto options = flat(recipe.resolved());
  std::vector<EncodedNotes::Encoder> noted;
  for (const auto* one : networks.encoders_of_data()) {
    noted.push_back({one->section,
                     one->found.component.plugin,
                     one->key(),
                     c10::toString(one->ctx->compute),
                     text_of(one->encoder->takes()),
                     text_of(kept_of(*one, networks)),
                     text_of(one->encoder->makes()),
                     {}});
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
  const auto& notes = encoded->encoding();
  const auto apart = difference(json_of(notes.encoders, notes.numerics),
                                json_of(noted_encoders(recipe, networks), numerics_of(recipe)));
  if (!apart.empty())
    throw Error(ErrorKind::config, "loader.encoded = \"" + recipe.loader.encoded + "\"",
                "was encoded otherwise: " + apart,
                "encode this recipe into another folder, or name the encoders that it has");
}

}  // namespace ditto
