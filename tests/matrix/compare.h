// Two trainings of the same model, number by number.
#pragma once

#include <string>

#include "tests/matrix/training.h"

namespace ditto::matrix {

struct Worst {
  double value = 0;
  std::string name;  // of the tensor, or of the number
  void take(double candidate, const std::string& candidate_name);
};

// How far a training is from one rank. In fp64 relative differences: of losses, norms and validations to themselves, of
// tensors element by element to their largest entry. In lower precisions how many times as far as one rank is from
// itself in a wider one (the control): of all steps' losses, and norms, the largest relative differences; of each
// tensor the 2-norms of differences. A key bias of attention without normalised keys has a true gradient of zero: what
// is computed is rounding. It is left out, and with it its weights, average and state.
struct Figures {
  Worst loss, norm, validation, gradient, parameter, average, state;
  bool same_bits = true;
  std::string first_difference;  // of bits
  std::string missing;           // what no rank holds
};

// Of all ranks together; the same on each. `wide`: one rank in a wider precision, null in fp64.
Figures compare(const Record& mine, const Record& one_rank, const Record* wide, const Case& one, const Mesh& mesh);

// Why the figures are not good enough; empty: they are.
std::string verdict(const Figures& figures, const Case& one);
std::string to_text(const Figures& figures, const Case& one);

}  // namespace ditto::matrix
