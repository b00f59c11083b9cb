// Two trainings of the same model, number by number.
#pragma once

#include <string>

#include "tests/matrix/training.h"

namespace ditto::matrix {

struct Worst {
  double value = 0;
  std::string name;  // of the tensor, or of the step
  void take(double candidate, const std::string& candidate_name);
};

// Relative differences: of losses and norms to themselves, of tensors element by element to their largest entry; of the
// 2-norm of all weights. A key bias of attention without normalised keys has a true gradient of zero: what is computed
// is rounding. It is left out.
struct Figures {
  Worst loss, norm, gradient, parameter, average;
  double weights_norm = 0;
  bool same_bits = true;
  std::string first_difference;  // of bits
  std::string missing;           // a parameter that no rank holds
};

// Of all ranks together; the same on each.
Figures compare(const Record& mine, const Record& one_rank, const Case& one, const Mesh& mesh);
double loss_difference(const Record& a, const Record& b);

// Why the figures are not good enough; empty: they are. `half_loss`, for bf16 and fp16: how far one rank's losses are
// from fp32's.
std::string verdict(const Figures& figures, const Case& one, double half_loss);
std::string to_text(const Figures& figures);

}  // namespace ditto::matrix
