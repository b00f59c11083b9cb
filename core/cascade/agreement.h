// What the stages of a cascade must agree on, by the tensors that their recipes make and take.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ditto/batch.h>

#include "core/cascade/cascade.h"
#include "core/formats/text/toml.h"

namespace ditto {

// Of one stage, put together.
struct StageTensors {
  // What it makes of one sample, [C, H, W]. Of a stage that learns on crops: of the whole. A side that depends on the
  // data is kOwnSide.
  std::vector<int64_t> picture;
  // What it is given by the stage before it, as whole; where it takes nothing by the name that the cascade passes:
  // empty, and `makes_passed` says whether it makes it for nobody.
  std::vector<int64_t> passed;
  bool makes_passed = false;
  // What its model is asked for by, of any sample: its conditions but what is made of the passed picture.
  TensorSpecs asked;
  // Of what is made of texts, or of what is made of them: by name, in the order in which they are made, the sections of
  // the encoders that make it, with every default.
  std::multimap<std::string, formats::Table> text_encoders;
};

// `stages`: of each in its place. Throws Error(config) that names the stage: where the first takes the tensor that the
// cascade passes or another does not; where it is of another size than the picture of the stage before; where a stage
// is asked for something that the first is not, or for something else by the same name.
void require_agreement(const Cascade& cascade, const std::vector<StageTensors>& stages);

}  // namespace ditto
