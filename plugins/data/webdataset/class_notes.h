// What samples' own notes (member "json", field "class", as `ditto data prepare` writes it) call their labels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace webdataset {

struct ClassNote {
  std::int64_t label;
  std::string name, where;  // "train-000000.tar:0007.json"
};
// Nothing: the notes do not say, or are no JSON.
std::optional<ClassNote> class_note(std::int64_t label, std::span<const std::byte> notes, const std::string& where);

// Holds them against the names that the recipe or classes.json gives, if any does, and against each other. Throws
// Error(config) where a name stands at two numbers: who asks for "cat" would get dogs. Returns what else differs, for
// people.
std::vector<std::string> compare_class_notes(const std::vector<ClassNote>& notes,
                                             const std::vector<std::string>& names);

}  // namespace webdataset
