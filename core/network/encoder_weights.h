// Where an encoder's weights lie, and what they say of its options, before it is made.
#pragma once

#include <optional>
#include <string>

#include <ditto/encoder.h>

#include "core/components/components.h"
#include "core/network/running_units.h"
#include "core/network/saved_model.h"

namespace ditto {

struct EncoderWeights {
  Component component;              // the section's, with the options that its weights say
  std::string folder;               // Encoder::Needs::folder
  std::string file;                 // another project's; empty: none, or it is not there
  std::string reading;              // which file of a folder that is, for people
  std::optional<SavedModel> saved;  // a run's
};

// `weights`: where it is not `read`, what the section names may not be there, and then says nothing. Throws
// Error(config) where recipe and weights disagree, naming both; Error(checkpoint).
EncoderWeights look_at_weights(Components& components, const NetworkSection& section, FrozenWeights weights);

}  // namespace ditto
