// Whether blocks know that a row of tokens may hold several samples.
#pragma once

#include <string>

#include <ditto/model.h>

namespace ditto::testing {

// The samples of a batch as a batch of parts, one each: a pack of them.
Batch packed(const Batch& batch);

// What is wrong of the batch's first two samples in one row of tokens, in double precision; empty: nothing. Samples
// that see one another, or a block that makes something else of a pack than of each sample by itself.
std::string mistaken_pack(Model& model, const Batch& batch, Context& ctx);

}  // namespace ditto::testing
