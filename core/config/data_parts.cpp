#include "core/config/data_parts.h"

#include <ditto/error.h>

#include "core/config/include.h"
#include "core/config/option_effects.h"

namespace ditto {

namespace {

constexpr int kDeepest = 8;  // of blends in blends
constexpr double kLeast = 1e-6, kMost = 1e6;

DataPart read_part(const formats::Table& given, const std::string& section, const std::string& where, int depth);

std::vector<DataPart> read_parts(const formats::Node& node, const std::string& section, const std::string& where,
                                 int depth) {
  if (!formats::is_list_of_tables(node))
    throw Error(ErrorKind::config, place(node, where), section + ".part is " + node.type_name(),
                "expected the parts of a blend, each [[" + section + ".part]] with plugin = \"…\"");
  if (depth == kDeepest)
    throw Error(ErrorKind::config, place(node, where),
                section + " nests blends deeper than " + std::to_string(kDeepest), "blend its parts' parts at once");
  std::vector<DataPart> parts;
  for (const auto& one : *node.as<formats::Array>()) {
    const auto name = section + ".part." + std::to_string(parts.size());
    parts.push_back(read_part(*one.as<formats::Table>(), name, place(one, where), depth + 1));
  }
  return parts;
}

DataPart read_part(const formats::Table& given, const std::string& section, const std::string& where, int depth) {
  formats::Table table = given;
  table.erase("part");
  DataPart part;
  part.section = section;
  part.component = component_in(table, section, where);
  auto& options = part.component.options.given;
  if (depth > 0) {
    OptionMap own{section, where, {}};
    for (const auto& key : own_keys(section))
      if (auto one = options.extract(key)) own.given.insert(std::move(one));
    OptionReader reader(own, effect_of_section(section));
    part.read(reader);
  }
  const auto* parts = given.find("part");
  if (part.component.plugin != kBlend) {
    if (parts)
      throw Error(ErrorKind::config, place(*parts, where),
                  section + " has parts, and its plugin is \"" + part.component.plugin + "\"",
                  "set plugin = \"blend\", or leave the parts out");
    return part;
  }
  if (!parts)
    throw Error(ErrorKind::config, part.component.where, "[" + section + "] is a blend without parts",
                "add them, each [[" + section + ".part]] with plugin = \"…\", and weight or epochs");
  if (!options.empty())
    throw Error(ErrorKind::config, options.begin()->second.where,
                "[" + section + "] has no option \"" + options.begin()->first + "\": it is a blend",
                "options stand in its parts, [[" + section + ".part]]");
  part.parts = read_parts(*parts, section, where, depth);
  return part;
}

}  // namespace

void DataPart::read(OptionReader& option) {
  option("weight", weight, "of a blend's part: its share of the samples against the others'; 0: by epochs")
      .between(0.0, kMost);
  option("epochs", epochs,
         "of a blend's part: how often its samples come while the other parts' come as often as they say")
      .between(kLeast, kMost);
  if (weight > 0 && weight < kLeast) option.reject("weight", "is below a millionth", "make all weights larger alike");
  if (weight > 0 && epochs != 1)
    option.reject("epochs", "stands beside weight", "say one of them: a share of the samples, or how often they come");
}

DataPart read_data(const formats::Table& table, const std::string& where) { return read_part(table, "data", where, 0); }

void collect_sources(DataPart& part, std::vector<DataPart*>& into) {
  if (part.parts.empty()) into.push_back(&part);
  for (auto& inner : part.parts) collect_sources(inner, into);
}

}  // namespace ditto
