// Pieces of parameters: what one block takes of a list of tensors of any sizes.
#pragma once

#include "numbers.h"

namespace ditto_cuda {

struct PieceOf {
  // By halves: the last parameter that begins at the piece or before; those without numbers begin where the next does.
  DITTO_DEVICE PieceOf(const Parameters& p, Index piece) {
    Index at = 0, beyond = p.count;
    while (beyond - at > 1) {
      const Index middle = (at + beyond) / 2;
      if (p.firsts[middle] <= piece)
        at = middle;
      else
        beyond = middle;
    }
    of = p.at + at;
    first = (piece - p.firsts[at]) * kPiece;
    count = of->count - first < kPiece ? of->count - first : kPiece;
  }
  const Parameter* of;
  Index first, count;
};

}  // namespace ditto_cuda
