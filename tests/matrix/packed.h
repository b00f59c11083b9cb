// A model whose micro-batches are one row of tokens each, as loaders of samples of different sizes will make them.
#pragma once

#include <ditto/model.h>

namespace ditto::matrix {

// Runs `inner` on packs: of each sample the first tokens, 64 of them or less by its number; what is left out is zero
// before the head.
std::shared_ptr<Model> pack(std::shared_ptr<Model> inner);

}  // namespace ditto::matrix
