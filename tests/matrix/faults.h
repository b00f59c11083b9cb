// Mistakes of parallel training, planted from outside: none of this is in the product.
#pragma once

#include <string>
#include <vector>

#include "tests/matrix/training.h"

namespace ditto::matrix {

// A mistake, and a layout in which it must show.
struct PlantedFault {
  std::string name, what;
  Case in;
};
std::vector<PlantedFault> planted_faults();

std::vector<std::string> fault_names();
// What `ditto diff` has to name it by, a part of diff::to_text(Key): "block 0, attention: k".
std::string place_of_fault(const std::string& name);
// Empty name: none. Throws Error(config) for an unknown one.
Tamper fault(const std::string& name);

}  // namespace ditto::matrix
