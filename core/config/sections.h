// The sections of a recipe, each listed once, and one of them as it stands in a recipe.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/config/recipe.h"

namespace ditto {

// Where a section is read to, and with that how: of a plugin, of the host (optional: only where the recipe has it), or
// of networks, each with a name. `kernels` has pins beside plugins' options.
using SectionMember =
    std::variant<Component Recipe::*, std::vector<NetworkSection> Recipe::*, RunOptions Recipe::*,
                 LrScheduleOptions Recipe::*, EmaOptions Recipe::*, LoaderOptions Recipe::*, BatchOptions Recipe::*,
                 std::optional<AdapterOptions> Recipe::*, std::optional<TreadOptions> Recipe::*,
                 ParallelOptions Recipe::*, CheckpointOptions Recipe::*, ValidateOptions Recipe::*,
                 report::LogOptions Recipe::*, RecordOptions Recipe::*, PluginOptions Recipe::*,
                 std::map<std::string, GivenOption> Recipe::*>;

struct SectionEntry {
  std::string_view name;
  Effect effect;  // of options that do not say; of plugins' sections what their kind says
  SectionMember member;
};

// In the order in which they are read.
std::span<const SectionEntry> sections();

struct Section {
  const formats::Table* table;  // none: the recipe does not have it
  std::string name, place;      // without a place of its own: the recipe's

  OptionMap options() const;
  Component component() const;  // throws Error(config) where it names no plugin; empty where there is none
};

// Every option that the host itself reads, "run.steps", and of sections of plugins "model.plugin", in their order. Of
// those that have names of their own ([encoder.NAME]) none.
std::vector<std::string> option_keys();

// Throws Error(config) where it is no table.
Section section_in(const formats::Table& recipe, std::string_view name, const std::string& file);
// Throws Error(config), naming the nearest.
void refuse_unknown_sections(const formats::Table& recipe, const std::string& file);
// An option that another of the host's sections has is not looked for among names that merely look alike. `own`: what
// the section declares.
void refuse_elsewhere(const OptionMap& given, const OptionReader& own);

}  // namespace ditto
