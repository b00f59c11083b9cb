// A recipe's tables as sections: their options, and the plugin that one of them names.
#pragma once

#include <string>

#include <ditto/options.h>

#include "core/formats/text/toml.h"

namespace ditto {

// A section that names a plugin.
struct Component {
  std::string plugin;  // empty: the recipe has no such section
  std::string where;   // of the plugin key, for messages
  OptionMap options;
  explicit operator bool() const { return !plugin.empty(); }
};

// Whether a value came from the command line, by its place, "--set KEY=VALUE".
bool is_set(const std::string& where);
// Where a value was written, for messages; of one that the program made, `name`.
std::string place(const formats::Node& node, const std::string& name);
// All keys but "plugin". `section` is how messages call it, `where` its place. Throws Error(config) for what is no
// value of an option.
OptionMap options_of(const formats::Table& table, const std::string& section, const std::string& where);
formats::Node node_of(const OptionValue& value);
// Throws Error(config) where it names no plugin.
Component component_in(const formats::Table& table, const std::string& name, const std::string& where);
// [conditioning], NeMo Imagen's, in the words of a recipe: of [data], [encoder.…], [objective] and [model]. Throws
// Error(config) for what contradicts itself, or stands there too.
void expand_conditioning(formats::Table& recipe, const std::string& file);
// Of [record] what is an option: what run.toml notes there of a run is text and tables.
formats::Table without_notes(formats::Table record);
// Whether it has such notes: it is a run's run.toml.
bool has_notes(const formats::Table& recipe);

}  // namespace ditto
