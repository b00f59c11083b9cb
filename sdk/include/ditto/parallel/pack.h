// Samples of several sizes as one row of tokens, and back: between the units that see one size at a time (condition,
// tokens, head) and blocks, which see tokens alone. No model does anything for it.
#pragma once

#include <vector>

#include <ditto/batch.h>
#include <ditto/stream.h>

namespace ditto {

// The streams of a batch's parts, as tokens made them, one after another: B samples of T tokens become B * T tokens of
// one row [1, …]. Throws Error(config) for a model whose stream has no tokens, and Error(plugin) for a field that some
// parts have and others have not, or that is neither per token nor per sample.
DITTO_API Stream pack(std::vector<Stream> parts);
// Their conditioning: a sample's row stays a row. Texts are padded to the longest, under their masks, and text_lengths
// says of each sample how many of its row's tokens are its own: what its part says, or all of that part's S.
DITTO_API Conditioning pack(std::vector<Conditioning> parts, const Batch& batch);
// Constants of the parts alone (Model::constants), whose numbers of samples are `batch`'s.
DITTO_API Stream pack_constants(std::vector<Stream> parts, const Batch& batch);
// What head sees of one part: its tokens as [B, T, …] again, its rows of the conditioning, its grid. Whole samples: not
// of a stream whose tokens are cut.
DITTO_API Stream part_of_pack(const Stream& packed, const Batch& batch, size_t part);

}  // namespace ditto
