// What a sampling run may be handed in the place of what encoders make of data: the model's conditions, and what
// encoders make the rest of them of, as a small picture that gets its noise.
#pragma once

#include <string>
#include <vector>

#include "core/network/networks.h"

namespace ditto {

// One sample's shape as it is made where nobody says another: of a model that learned on parts of pictures the whole.
std::vector<int64_t> shape_of_whole(const Networks& networks);

// The model's conditions, and what encoders that need no text take to make some of them; pictures beside a sample of
// `shape` are larger or smaller than they were in training by as much as it is.
TensorSpecs handed_specs(const Networks& networks, const std::vector<int64_t>& shape);
// Of the conditions those that encoders will make of what is given.
TensorSpecs completed_specs(const Networks& networks, const Batch& given);
// Of what is given that which the model does not take, nor an encoder that will run.
std::vector<std::string> unused_names(const Networks& networks, const Batch& given);
// With them: encoders run in turn whose inputs are there and of whose conditions one is not. Draws are by the samples'
// seeds, each `series` (GenerateOptions) its own. Of ranks that encode together, by all.
Batch completed(Networks& networks, Batch given, int64_t series);

}  // namespace ditto
