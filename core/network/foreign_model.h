// Weights as another project's file holds them: what model they are of, and their numbers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/config/recipe.h"
#include "core/data/shapes.h"
#include "core/network/running_units.h"
#include "core/plugin/registry.h"

namespace ditto {

// What a file that Ditto exports says of itself, for open_foreign and for people.
std::map<std::string, std::string> export_notes(const Recipe& recipe, const SavedShapes& shapes,
                                                const std::string& format);

struct ForeignModel {
  Recipe recipe;  // its [model] has the file's options
  SavedShapes shapes;
  std::string file;                       // that is read; or its index
  std::string config_text;                // of the config.json beside it; empty: none
  std::map<std::string, int64_t> others;  // tensors of other models in the file, which are left out
  std::string reading;                    // which file of a folder is read, for people; empty: a file was named
};
// `given`: of it only [model] is needed, and that as far as the weights do not say it; none: the recipe that they were
// exported with. A file that Ditto exported says all of itself, any other what the model's plugin reads out of it.
// `section`: where the recipe has the model's options, for messages. Throws Error(config) where recipe, format and file
// disagree, naming both, or where nothing says which model it is; Error(checkpoint).
ForeignModel open_foreign(const std::string& path, const std::string& format, std::optional<checkpoint::Which> which,
                          std::optional<Recipe> given, const std::vector<std::string>& sets, Registry& registry,
                          const std::string& section = "model");

// What a plugin makes of another project's file, and of `given`, whose options then are the file's where the recipe
// leaves them open. Throws Error(config) where recipe and file disagree. `who`: "model 'dit'".
template <class Interface>
typename Interface::Needs read_foreign(Recipe& recipe, OptionMap& given, const Factory<Interface>& factory,
                                       const ForeignShapes& file, const std::string& who) {
  return recipe.read_options(given, [&] {
    OptionReader reader(given, effect_of_options<Interface>());
    auto needs = guarded(who + ", reading " + file.file, [&] { return factory.foreign_needs(reader, file); });
    reader.finish();
    for (const auto& info : reader.declared()) given.given.try_emplace(info.name, GivenOption{info.value, file.file});
    return needs;
  });
}
// An option that the recipe leaves open is what weights were made with; Error(config) names both where it says
// otherwise. `whose`: "FILE (format diffusers)".
void take_option(OptionMap& given, const std::string& name, const GivenOption& found, const std::string& section,
                 const std::string& whose);

// Reads the weights of `file`, which the section names, into what is here of `into`, whose parameters are all of `of`;
// returns their fingerprint, of the set that it asks for. `reading` is told to people. Called by all ranks of `mesh` together. Throws
// Error(checkpoint), also where ranks read different files.
std::string load_foreign_weights(const Units& of, const NetworkSection& section, const std::string& file,
                                 const std::string& reading, RunningUnits& into, const Mesh& mesh);
// Which set of a file of several the section asks for; none: EMA where there is one.
std::optional<checkpoint::Which> which_of(const NetworkSection& section);
// Throws Error(checkpoint) where the section's weights are not there.
void require_weights(const NetworkSection& section);

}  // namespace ditto
