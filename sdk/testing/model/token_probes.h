// What a block makes of tokens, seen on one rank: with attention replaced by a function of each token alone.
#pragma once

#include <string>

#include <ditto/model.h>

namespace ditto::testing {

// Each returns one sentence that names block and field, or nothing.

// A token that is made of other tokens outside of attention and all_tokens.
std::string mixed_tokens(Model& model, const Batch& in, Context& ctx);
// A block that knows the places of its tokens by other means than the stream's fields.
std::string own_positions(Model& model, const Batch& in, Context& ctx);
// A block that computes otherwise where it has a part of the tokens.
std::string carried_count(Model& model, const Batch& in, Context& ctx);

}  // namespace ditto::testing
