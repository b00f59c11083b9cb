// The words of --classes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ditto/batch.h>

namespace ditto {

// Classes by name, by number, or as a range of numbers, with commas between, which names may have too; `label` knows
// their names. A word that is a name is that class, whatever number it could be. Where names are numbers ("1", "02"),
// numbers and ranges are of such names, and "number:3" or "number:0-9" is the number. Throws Error(config) for what is
// no class, and for words that could be read in two ways.
std::vector<int64_t> classes_named(const std::string& text, const TensorSpec& label);

// Of labels in numbers: what somebody may take for the name of another class, as a sentence; empty: nothing.
std::string told_apart(const std::vector<int64_t>& labels, const TensorSpec& label);

}  // namespace ditto
