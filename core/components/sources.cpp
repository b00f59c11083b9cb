#include "core/components/sources.h"

#include <ditto/error.h>
#include <ditto/video_decoder.h>

#include "core/components/encoded_source.h"
#include "core/data/blend.h"

namespace ditto {

namespace {

std::shared_ptr<Source> open_part(Components& components, const DataPart& part, const Source::Needs& needs) {
  if (part.parts.empty()) return components.make<Source>(part.section, part.component, needs);
  std::vector<Blend::Part> parts;
  for (const auto& inner : part.parts) {
    Blend::Part one{inner.section, {}};
    try {
      one.source = open_part(components, inner, needs);
    } catch (const Error& error) {  // a source knows its options as data's, whichever part it is
      if (!inner.parts.empty()) throw;
      throw error.within(inner.section);
    }
    if (needs.split == SplitOf::train) {
      one.weight = inner.weight;
      one.epochs = inner.epochs;
    }
    parts.push_back(std::move(one));
  }
  return std::make_shared<Blend>(std::move(parts));
}

}  // namespace

std::shared_ptr<Source> open_source(Components& components, const Source::Needs& given) {
  const auto& recipe = components.recipe;
  require(recipe, recipe.data, "data");
  auto needs = given;
  needs.decoder = [&components](const std::string& name) {
    const std::string where = "data.decoder";
    return components.make_with<VideoDecoder>(name, where, {"decoder", where, {}}, {}, [](const auto&) {});
  };
  const auto open = [&] { return open_part(components, {"data", recipe.data, 0, 1, recipe.data_parts}, needs); };
  if (!recipe.loader.encoded.empty() && !given.shapes_only) return open_encoded(components, given.split, open);
  return open();
}

}  // namespace ditto
