// loader.encoded, and the encoders of the recipe that reads it.
#pragma once

#include "core/data/encoded_notes.h"
#include "core/network/networks.h"

namespace ditto {

// What an encoder keeps of a sample: in an fp64 run in fp64.
TensorSpecs kept_of(const RunningEncoder& encoder, const Networks& networks);

// What encoders' bits follow from beside their sections: "fast"; "one, leaves of 32 tokens".
std::string numerics_of(const Recipe& recipe);

// As they are noted: those of the networks that need not see the data again.
std::vector<EncodedNotes::Encoder> noted_encoders(const Recipe& recipe, const Networks& networks);

// Where the source's samples were encoded before, the networks' encoders do the rest alone. Throws Error(config) where
// they were encoded by others: other weights, another tokenizer, options, precision or numerics, or for tensors of
// other names, with both values; of weights that are not `read` nothing is known.
void take_encoded(const Recipe& recipe, Networks& networks, const Source& source, FrozenWeights frozen);

}  // namespace ditto
