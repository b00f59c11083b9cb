// A training that starts from the weights of a model that is not quite its own: run.init_missing and its neighbours.
#pragma once

#include <string>
#include <vector>

#include <ditto/model.h>
#include <ditto/parallel/mesh.h>

#include "core/checkpoint/checkpoint.h"
#include "core/config/recipe.h"

namespace ditto {

// What the recipe asks for. Throws Error(config) where tables of positions are to be interpolated and the model has
// none.
checkpoint::Fit fit_of(const Recipe& recipe, const Model& model);

// What all ranks together took, kept and left out, in lines that name every tensor; none where all fitted. Called by
// all of them. Throws Error(checkpoint) naming `path` where nothing was taken, and for extra tensors that `fit`
// refuses.
std::vector<std::string> fit_report(const checkpoint::Fitted& fitted, const checkpoint::Fit& fit,
                                    const std::string& path, const Group& ranks);

}  // namespace ditto
