// Whether a run may go on from a checkpoint with the recipe it is given now.
#pragma once

#include <string>
#include <vector>

#include "core/config/recipe.h"

namespace ditto {

enum class ChangeKind {
  harmless,  // paths, logging, how often to save, how long to wait for a rank
  sharing,   // who runs which micro-batch: the same bits where the micro-batches stay the same
  rounding,  // the same training within rounding: threads, kernels, layout of ranks, micro-batches, precision
  learning,  // changes what is learned: refused unless allowed
};
ChangeKind change_kind(const std::string& key);

// Compares the recipe of a checkpoint with today's. Returns a line for each difference. Throws Error(config) if one
// changes what is learned and its key (or its section) is not among `allowed`.
std::vector<std::string> compare_recipes(const formats::Table& saved, const formats::Table& now,
                                         const std::vector<std::string>& allowed);

}  // namespace ditto
